//! F1 of each class, averaged over the classes.

use candle_core::{DType, Result, Tensor};
use leyline::task::{About, Direction, Measure, Scale};

/// The mean over all classes of 2 · hits / (predicted + actual); 0 for a class that is neither.
pub const MACRO_F1: About = About {
    name: "macro_f1",
    title: "Macro F1",
    formula: "mean over classes of 2 hits / (predicted + actual)",
    scale: Scale::Ratio,
    direction: Direction::HigherIsBetter,
};

/// [`MACRO_F1`] of logits (B, C) with targets (B,) of `u32`.
#[must_use]
pub fn macro_f1() -> Measure {
    Measure::new(MACRO_F1, counts, value)
}

/// Hits, predictions and targets of each class: one row of 3 · C.
fn counts(logits: &Tensor, targets: &Tensor) -> Result<Tensor> {
    let classes = u32::try_from(logits.dims2()?.1).map_err(candle_core::Error::wrap)?;
    let classes = Tensor::arange(0, classes, logits.device())?.unsqueeze(0)?;
    let one_hot = |of: &Tensor| of.unsqueeze(1)?.broadcast_eq(&classes)?.to_dtype(DType::F32);
    let (predicted, actual) = (one_hot(&logits.argmax(1)?)?, one_hot(targets)?);
    Tensor::cat(&[&(&predicted * &actual)?, &predicted, &actual], 1)?.sum_keepdim(0)
}

fn value(sums: &[f64], _num_samples: f64) -> f64 {
    let classes = sums.len() / 3;
    let of = |class: usize| 2.0 * sums[class] / (sums[classes + class] + sums[2 * classes + class]).max(1.0);
    (0..classes).map(of).sum::<f64>() / classes as f64
}
