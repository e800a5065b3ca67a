//! Measures against their definitions, and what a measure of several counts looks like.
#![expect(clippy::disallowed_methods, reason = "tests look at tensors")]

use candle_core::{DType, Device, Tensor};
use leyline::telemetry::Unit;

use super::{ACCURACY, MEASURES, QualityMeasure, TOP5, named};
use crate::testing::random;

/// The value over all rows, of batches of `batch_size`.
fn measured(measure: &QualityMeasure, scores: &[f32], classes: usize, labels: &[u32], batch_size: usize) -> f64 {
    let mut sums: Vec<f64> = Vec::new();
    for (scores, labels) in scores.chunks(batch_size * classes).zip(labels.chunks(batch_size)) {
        let logits = Tensor::from_slice(scores, (labels.len(), classes), &Device::Cpu).unwrap();
        let rows = (measure.counts)(&logits, &Tensor::new(labels, &Device::Cpu).unwrap()).unwrap();
        for row in rows.to_vec2::<f32>().unwrap() {
            sums.resize(row.len(), 0.0);
            sums.iter_mut().zip(row).for_each(|(sum, count)| *sum += f64::from(count));
        }
    }
    (measure.value)(&sums, labels.len() as f64)
}

#[track_caller]
fn check(measure: &QualityMeasure, scores: &[f32], classes: usize, labels: &[u32], expected: f64) {
    for batch_size in [1, 3, labels.len()] {
        let found = measured(measure, scores, classes, labels, batch_size);
        assert!((found - expected).abs() < 1e-12, "{} in batches of {batch_size}: {found}", measure.name);
    }
}

#[test]
fn every_measure_is_found_by_its_name_alone() {
    for measure in MEASURES {
        assert_eq!(named(measure.name).unwrap().title, measure.title);
    }
    assert!(named("").is_none() && named("Accuracy").is_none());
}

#[test]
fn the_target_counts_where_fewer_than_five_logits_are_larger() {
    let falling: Vec<f32> = (0..7_u8).map(|class| -f32::from(class)).collect();
    for (label, expected) in [(0, 1.0), (4, 1.0), (5, 0.0), (6, 0.0)] {
        check(&TOP5, &falling, 7, &[label], expected);
        // Of equal logits the first is the larger.
        check(&TOP5, &[0.5; 7], 7, &[label], expected);
    }
    for classes in [3, 5, 7] {
        check(&TOP5, &vec![f32::NAN; classes], classes, &[0], 0.0);
        let mut one = vec![1.0; classes];
        one[2] = f32::NAN;
        check(&TOP5, &one, classes, &[0], 0.0);
    }
    check(&TOP5, &[3.0, 1.0, 2.0], 3, &[1], 1.0);
    let (classes, count) = (9, 40_u32);
    let (scores, labels) = (random(360, 3), (0..count).map(|row| (row * 7) % 9).collect::<Vec<_>>());
    let is_hit = |(row, label): (&[f32], &u32)| row.iter().filter(|x| **x > row[*label as usize]).count() < 5;
    let hits = scores.chunks(classes).zip(&labels).filter(|pair| is_hit(*pair)).count();
    check(&TOP5, &scores, classes, &labels, hits as f64 / f64::from(count));
    check(&ACCURACY, &[1.0, 2.0, 5.0, 0.0, 0.0, 0.0], 2, &[1, 0, 1], 2.0 / 3.0);
}

/// Counts of three kinds per class; a batch is one row.
const MACRO_F1: QualityMeasure = QualityMeasure {
    name: "macro_f1",
    title: "Macro F1",
    formula: "mean over classes of 2 hits / (predicted + actual)",
    unit: Unit::Ratio,
    counts: |logits, targets| {
        let classes = Tensor::arange(0, u32::try_from(logits.dims2()?.1).unwrap(), logits.device())?.unsqueeze(0)?;
        let one_hot = |of: &Tensor| of.unsqueeze(1)?.broadcast_eq(&classes)?.to_dtype(DType::F32);
        let (predicted, actual) = (one_hot(&logits.argmax(1)?)?, one_hot(targets)?);
        Ok(Tensor::cat(&[&(&predicted * &actual)?, &predicted, &actual], 1)?.sum_keepdim(0)?)
    },
    value: |sums, _| {
        let classes = sums.len() / 3;
        let of = |class: usize| 2.0 * sums[class] / (sums[classes + class] + sums[2 * classes + class]).max(1.0);
        (0..classes).map(of).sum::<f64>() / classes as f64
    },
};

#[test]
fn a_measure_may_be_any_function_of_counts_that_add_up() {
    // Predicted 0, 0, 1, 1; actual 0, 1, 1, 1: F1 is 2/3 for class 0 and 4/5 for class 1.
    let scores = [1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0];
    check(&MACRO_F1, &scores, 2, &[0, 1, 1, 1], f64::midpoint(2.0 / 3.0, 4.0 / 5.0));
}
