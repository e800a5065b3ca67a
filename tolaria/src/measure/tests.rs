//! Measures against their definitions, and what a measure of several counts looks like.
#![expect(clippy::disallowed_methods, clippy::float_cmp, reason = "tests look at tensors, and flags are exact")]

use candle_core::{DType, Device, Tensor};
use leyline::task::Measure;

use super::{
    ALL, auroc, bits_per_byte, f1, macro_f1, mean_abs_error, named, perplexity, r2, root_mean_square_error, top5,
};
use crate::task::IGNORED;
use crate::testing::random;

/// The value over all rows, of batches of `batch_size`.
fn measured(measure: &Measure, scores: &[f32], classes: usize, labels: &[u32], batch_size: usize) -> f64 {
    let mut sums: Vec<f64> = Vec::new();
    for (scores, labels) in scores.chunks(batch_size * classes).zip(labels.chunks(batch_size)) {
        let logits = Tensor::from_slice(scores, (labels.len(), classes), &Device::Cpu).unwrap();
        let rows = measure.counts(&logits, &Tensor::new(labels, &Device::Cpu).unwrap()).unwrap();
        for row in rows.to_vec2::<f32>().unwrap() {
            sums.resize(row.len(), 0.0);
            sums.iter_mut().zip(row).for_each(|(sum, count)| *sum += f64::from(count));
        }
    }
    measure.value(&sums, labels.len() as f64).unwrap()
}

#[track_caller]
fn check(measure: &Measure, scores: &[f32], classes: usize, labels: &[u32], expected: f64) {
    for batch_size in [1, 3, labels.len()] {
        let found = measured(measure, scores, classes, labels, batch_size);
        assert!((found - expected).abs() < 1e-12, "{} in batches of {batch_size}: {found}", measure.about().name);
    }
}

#[test]
fn every_measure_is_found_by_its_name_alone() {
    for about in ALL {
        assert_eq!(named(about.name).unwrap().title, about.title);
    }
    assert!(named("").is_none() && named("Accuracy").is_none());
}

#[test]
fn the_target_counts_where_fewer_than_five_logits_are_larger() {
    let falling: Vec<f32> = (0..7_u8).map(|class| -f32::from(class)).collect();
    for (label, expected) in [(0, 1.0), (4, 1.0), (5, 0.0), (6, 0.0)] {
        check(&top5(), &falling, 7, &[label], expected);
        // Of equal logits the first is the larger.
        check(&top5(), &[0.5; 7], 7, &[label], expected);
    }
    for classes in [3, 5, 7] {
        check(&top5(), &vec![f32::NAN; classes], classes, &[0], 0.0);
        let mut one = vec![1.0; classes];
        one[2] = f32::NAN;
        check(&top5(), &one, classes, &[0], 0.0);
    }
    check(&top5(), &[3.0, 1.0, 2.0], 3, &[1], 1.0);
    let (classes, count) = (9, 40_u32);
    let (scores, labels) = (random(360, 3), (0..count).map(|row| (row * 7) % 9).collect::<Vec<_>>());
    let is_hit = |(row, label): (&[f32], &u32)| row.iter().filter(|x| **x > row[*label as usize]).count() < 5;
    let hits = scores.chunks(classes).zip(&labels).filter(|pair| is_hit(*pair)).count();
    check(&top5(), &scores, classes, &labels, hits as f64 / f64::from(count));
}

#[test]
fn macro_f1_is_the_mean_over_the_classes() {
    // Predicted 0, 0, 1, 1; actual 0, 1, 1, 1: F1 is 2/3 for class 0 and 4/5 for class 1.
    let scores = [1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0];
    check(&macro_f1(), &scores, 2, &[0, 1, 1, 1], f64::midpoint(2.0 / 3.0, 4.0 / 5.0));
}

/// Over batches of so many samples, of outputs and targets that are both (N, W) of `f32`.
fn of_values(measure: &Measure, outputs: &[f32], targets: &[f32], width: usize, batch_size: usize) -> Option<f64> {
    let (mut sums, size) = (Vec::new(), batch_size * width);
    for (outputs, targets) in outputs.chunks(size).zip(targets.chunks(size)) {
        let tensor = |of: &[f32]| Tensor::from_slice(of, (of.len() / width, width), &Device::Cpu).unwrap();
        let counts = measure.counts(&tensor(outputs), &tensor(targets)).unwrap();
        for row in counts.to_dtype(DType::F64).unwrap().to_vec2::<f64>().unwrap() {
            sums.resize(row.len(), 0.0);
            sums.iter_mut().zip(row).for_each(|(sum, count)| *sum += count);
        }
    }
    measure.value(&sums, (targets.len() / width) as f64)
}

#[track_caller]
fn check_values(measure: &Measure, (outputs, targets): (&[f32], &[f32]), width: usize, expected: Option<f64>) {
    for batch_size in [1, 2, outputs.len()] {
        let found = of_values(measure, outputs, targets, width, batch_size);
        let agree = match (found, expected) {
            (Some(found), Some(expected)) => (found - expected).abs() < 1e-6,
            (found, expected) => found == expected,
        };
        assert!(agree, "{} in batches of {batch_size}: {found:?}, not {expected:?}", measure.about().name);
    }
}

#[test]
fn errors_of_values_are_told_in_units_of_the_data() {
    let values = (&[1.0, 2.0, 3.0, 5.0][..], &[1.0, 0.0, 3.0, 4.0][..]);
    check_values(&mean_abs_error(vec![10.0]), values, 1, Some(7.5));
    check_values(&root_mean_square_error(vec![2.0]), values, 1, Some(2.0 * (5.0_f64 / 4.0).sqrt()));
    // Two values of two samples: errors 0 and 0, then 2 and 1.
    check_values(&mean_abs_error(vec![1.0, 4.0]), values, 2, Some((0.0 + 6.0) / 2.0));
    // Squared error 5; targets 1, 0, 3, 4 around 2 deviate by 1 + 4 + 1 + 4.
    check_values(&r2(), values, 1, Some(0.5));
    check_values(&r2(), (&[1.0, 2.0], &[3.0, 3.0]), 1, None);
}

#[test]
fn targets_that_are_all_the_same_explain_nothing_and_far_ones_lose_nothing() {
    for target in [0.3, 0.1, -7.7, 1e6] {
        for count in [1, 5, 1000] {
            check_values(&r2(), (&vec![0.5; count], &vec![target; count]), 1, None);
        }
    }
    // The spread of these is a millionth of what they are.
    let targets: Vec<f32> = (0..64_u8).map(|place| 1e6 + f32::from(place % 4)).collect();
    let outputs: Vec<f32> = targets.iter().map(|target| target + 0.5).collect();
    check_values(&r2(), (&outputs, &targets), 1, Some(1.0 - 0.25 / 1.25));
}

#[test]
fn set_flags_are_found_by_the_sign_and_ordered_by_their_logits() {
    let flags = (&[2.0, -1.0, 0.5, -3.0][..], &[1.0, 1.0, 0.0, 0.0][..]);
    check_values(&f1(), flags, 1, Some(0.5));
    check_values(&f1(), flags, 2, Some(0.5));
    // Of four pairs 2.0 wins two, -1.0 wins one and loses one.
    check_values(&auroc(), flags, 1, Some(0.75));
    check_values(&auroc(), (&[1.0, 1.0], &[0.0, 1.0]), 1, Some(0.5));
    // A set flag whose logit is no number ties with the lowest, and is no flag that is not set.
    check_values(&auroc(), (&[f32::NAN, -90.0], &[1.0, 0.0]), 1, Some(0.5));
    for measure in [f1(), auroc()] {
        check_values(&measure, (&[-1.0, -2.0], &[0.0, 0.0]), 1, None);
    }
    let (logits, set) = (random(400, 5), random(400, 6).into_iter().map(|x| f32::from(x > 0.2)).collect::<Vec<_>>());
    let of = |wanted: f32| logits.iter().zip(&set).filter(move |(_, set)| **set == wanted).map(|(logit, _)| *logit);
    let wins: f64 = of(1.0).map(|set| of(0.0).filter(|unset| set > *unset).count() as f64).sum();
    let expected = wins / (of(1.0).count() * of(0.0).count()) as f64;
    let found = of_values(&auroc(), &logits, &set, 1, 64).unwrap();
    assert!((found - expected).abs() < 1e-3, "{found} in steps, {expected} exactly");
    // Probabilities of a ten thousandth, of which each set flag has more than the unset one beside it.
    check_values(&auroc(), (&[-9.0, -9.1, -8.0, -8.1], &[1.0, 0.0, 1.0, 0.0]), 1, Some(0.75));
}

#[test]
fn surprise_is_told_per_token_that_counts_and_per_byte() {
    let logits = Tensor::zeros((2, 3, 8), DType::F32, &Device::Cpu).unwrap();
    let targets = Tensor::new(&[[0_u32, 7, IGNORED], [IGNORED, 3, 1]], &Device::Cpu).unwrap();
    for (measure, expected) in [(perplexity(), 8.0), (bits_per_byte(2.0), 1.5)] {
        let counts = measure.counts(&logits, &targets).unwrap().to_vec2::<f32>().unwrap();
        let sums: Vec<f64> = (0..2).map(|place| counts.iter().map(|row| f64::from(row[place])).sum()).collect();
        assert!((measure.value(&sums, 2.0).unwrap() - expected).abs() < 1e-5, "{sums:?}");
    }
}
