//! Losses and gradients against a direct computation in `f64`.

use candle_core::{DType, Device, Tensor, Var};

use super::{IGNORED, correct, cross_entropy, hits, per_sample};
use crate::error::Error;
use crate::testing::{assert_close, random, values};

/// Rounding of a sum of a few `f32` exponentials and one division, relative to values of about 1.
const ROUNDING: f64 = 4e-6;

fn logits(values: &[f32], classes: usize) -> Var {
    Var::from_slice(values, (values.len() / classes, classes), &Device::Cpu).unwrap()
}

fn targets(values: &[u32]) -> Tensor {
    Tensor::new(values, &Device::Cpu).unwrap()
}

/// Softmax of a row in `f64`.
fn softmax(row: &[f32]) -> Vec<f64> {
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let exps: Vec<f64> = row.iter().map(|x| (f64::from(*x) - f64::from(max)).exp()).collect();
    let sum: f64 = exps.iter().sum();
    exps.into_iter().map(|e| e / sum).collect()
}

type Loss = fn(&Tensor, &Tensor) -> Result<Tensor, Error>;

/// Losses, their mean, and the gradient of 3 times the mean.
#[track_caller]
fn check(scores: &[f32], classes: usize, labels: &[u32]) {
    let (logits, targets) = (logits(scores, classes), targets(labels));
    let rows: Vec<Vec<f64>> = scores.chunks(classes).map(softmax).collect();
    let losses: Vec<f64> = rows.iter().zip(labels).map(|(row, label)| -row[*label as usize].ln()).collect();
    let count = labels.len() as f64;
    let mean = losses.iter().sum::<f64>() / count;
    let mut gradient: Vec<f64> = rows.iter().flatten().map(|p| 3.0 * p / count).collect();
    for (row, label) in labels.iter().enumerate() {
        gradient[row * classes + *label as usize] -= 3.0 / count;
    }

    let scale = losses.iter().copied().fold(1.0, f64::max);
    assert_close(&values(&per_sample(&logits, &targets).unwrap()), &losses, ROUNDING * scale);
    let loss = cross_entropy(&logits, &targets).unwrap();
    assert_eq!(loss.dims(), [0_usize; 0]);
    assert_close(&values(&loss), &[mean], ROUNDING * scale);
    let found = (loss * 3.0).unwrap().backward().unwrap();
    assert_close(&values(found.get(&logits).unwrap()), &gradient, ROUNDING);
}

#[test]
fn losses_and_gradients_equal_their_definition() {
    check(&[0.0, 0.0], 2, &[1]);
    check(&[1.0, 2.0, 3.0, 0.5, -0.5, 0.0], 3, &[2, 0]);
    check(&[5.0], 1, &[0]);
    for seed in 0..20 {
        let classes = 2 + seed as usize % 9;
        let labels: Vec<u32> = (0..7).map(|row| (row * 5 + seed) % (2 + seed % 9)).collect();
        let scores: Vec<f32> = random(7 * classes, u64::from(seed)).iter().map(|x| 8.0 * x).collect();
        check(&scores, classes, &labels);
    }
}

#[test]
fn an_ignored_row_has_no_loss_no_gradient_and_no_hit_and_changes_no_bit_of_others() {
    for (classes, seed) in [(3, 1), (40, 2)] {
        let mut scores = random(4 * classes, seed);
        // Nothing of an ignored row matters, and its largest logit is no prediction.
        scores[classes] = f32::NAN;
        scores[3 * classes] = 9.0;
        let of = |scores: &[f32], labels: &[u32]| {
            let (logits, targets) = (logits(scores, classes), targets(labels));
            let loss = cross_entropy(&logits, &targets).unwrap();
            let gradient = loss.backward().unwrap().get(&logits).unwrap().affine(labels.len() as f64, 0.0).unwrap();
            let of_rows = [per_sample, hits].map(|of| values(&of(&logits, &targets).unwrap()));
            (
                values(&loss)[0] * labels.len() as f32,
                values(&gradient),
                of_rows,
                values(&correct(&logits, &targets).unwrap()),
            )
        };
        let (loss, gradient, [losses, hit], sum) = of(&scores, &[0, IGNORED, 2, IGNORED]);
        let kept = [&scores[..classes], &scores[2 * classes..3 * classes]].concat();
        let (expected_loss, expected, [expected_losses, expected_hit], expected_sum) = of(&kept, &[0, 2]);
        assert!((loss - expected_loss).abs() < 1e-5, "{loss}, not {expected_loss}");
        let zeros = vec![0.0; classes];
        assert_eq!(gradient, [&expected[..classes], &*zeros, &expected[classes..], &*zeros].concat());
        assert_eq!(losses, [expected_losses[0], 0.0, expected_losses[1], 0.0]);
        assert_eq!(hit, [expected_hit[0], 0.0, expected_hit[1], 0.0]);
        assert_eq!(sum, expected_sum);
    }
}

#[test]
fn huge_logits_do_not_overflow() {
    check(&[1e4, -1e4, 0.0], 3, &[0]);
    check(&[1e4, 1e4, -1e4], 3, &[1]);
    check(&[1e30, 1e30], 2, &[0]);
    check(&[-1e30, -1e30, -1e30], 3, &[2]);
    check(&[-120.0, 0.0], 2, &[0]);
}

#[test]
fn the_gradient_is_the_slope_of_the_loss() {
    const STEP: f32 = 1e-2;
    let (scores, labels) = (random(12, 5), targets(&[3, 0, 1]));
    let loss_at = |scores: &[f32]| values(&cross_entropy(&logits(scores, 4), &labels).unwrap())[0];
    let at = logits(&scores, 4);
    let gradient = cross_entropy(&at, &labels).unwrap().backward().unwrap();
    let slopes: Vec<f64> = (0..scores.len())
        .map(|index| {
            let mut moved = [scores.clone(), scores.clone()];
            moved[0][index] += STEP;
            moved[1][index] -= STEP;
            f64::from((loss_at(&moved[0]) - loss_at(&moved[1])) / (2.0 * STEP))
        })
        .collect();
    // The quotient: curvature of order STEP² and the rounding of two losses over 2 STEP.
    assert_close(&values(gradient.get(&at).unwrap()), &slopes, 1e-4);
}

#[test]
fn logits_need_not_be_contiguous() {
    let stored = logits(&[1.0, -1.0, 2.0, 0.5, 0.0, 3.0], 2);
    let (view, targets) = (stored.t().unwrap(), targets(&[2, 0]));
    let (from_view, from_copy) =
        (cross_entropy(&view, &targets).unwrap(), cross_entropy(&view.copy().unwrap(), &targets).unwrap());
    assert_eq!(values(&from_view), values(&from_copy));
    assert_eq!(from_view.backward().unwrap().get(&stored).unwrap().dims(), [3, 2]);
}

#[test]
fn shorter_logits_become_f32_and_longer_ones_are_refused() {
    let wide = Tensor::new(&[[1.0_f64, 2.0], [0.0, 0.0]], &Device::Cpu).unwrap();
    let labels = targets(&[1, 0]);
    let loss = cross_entropy(&wide.to_dtype(DType::BF16).unwrap(), &labels).unwrap();
    let expected = ((1.0 + (-1.0_f64).exp()).ln() + 2.0_f64.ln()) / 2.0;
    assert_close(&values(&loss), &[expected], ROUNDING);
    for function in [cross_entropy as Loss, per_sample, hits, correct] {
        let error = function(&wide, &labels).unwrap_err();
        assert_eq!(error.to_string(), "logits: expected f32, bf16 or f16, found f64");
    }
}

#[test]
fn a_nan_shows_in_the_loss_and_is_no_hit() {
    let (logits, targets) = (logits(&[f32::NAN, 1.0, 0.0, 2.0], 2), targets(&[1, 1]));
    assert!(values(&cross_entropy(&logits, &targets).unwrap())[0].is_nan());
    let losses = values(&per_sample(&logits, &targets).unwrap());
    assert!(losses[0].is_nan() && losses[1].is_finite());
    assert_eq!(values(&hits(&logits, &targets).unwrap()), [0.0, 1.0]);
}

#[test]
fn of_equal_logits_the_first_is_the_prediction() {
    let logits = logits(&[1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, -1.0, 0.0, 2.0], 3);
    let labels = targets(&[0, 1, 0, 2]);
    let expected = [1.0, 0.0, 1.0, 1.0];
    assert_eq!(values(&hits(&logits, &labels).unwrap()), expected);
    assert_eq!(values(&correct(&logits, &labels).unwrap()), [3.0]);
}

#[test]
fn scores_carry_no_graph() {
    let (logits, targets) = (logits(&[0.0, 1.0], 2), targets(&[1]));
    let loss = (per_sample(&logits, &targets).unwrap() * 2.0).unwrap().sum_all().unwrap();
    assert!(loss.backward().unwrap().get(&logits).is_none());
}

#[track_caller]
fn refused(scores: &[f32], shape: &[usize], labels: &Tensor, message: &str) {
    let logits = Tensor::from_slice(scores, shape, &Device::Cpu).unwrap();
    for function in [cross_entropy as Loss, per_sample, hits, correct] {
        let error = function(&logits, labels).unwrap_err();
        let text = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
        assert!(text.contains(message), "{text}");
    }
}

#[test]
fn unfit_shapes_and_labels_are_refused() {
    refused(&[0.0; 4], &[2, 2], &targets(&[0]), "targets: expected U32 [2], found U32 [1]");
    refused(&[0.0; 4], &[4], &targets(&[0, 0, 0, 0]), "logits: expected (B, C)");
    refused(&[], &[0, 2], &Tensor::from_slice::<_, u32>(&[], 0, &Device::Cpu).unwrap(), "at least one element");
    refused(&[0.0; 4], &[2, 2], &targets(&[0, 2]), "target 2 is no class");
    refused(&[0.0; 2], &[1, 2], &Tensor::new(&[0_i64], &Device::Cpu).unwrap(), "expected U32 [1], found I64 [1]");
}
