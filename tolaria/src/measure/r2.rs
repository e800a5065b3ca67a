//! How much of the spread of values is explained.

use candle_core::{DType, Result, Tensor};
use leyline::task::{About, Direction, Measure, Scale};

/// 1 - Σ (output - target)² / Σ (target - mean of the targets)², averaged over the values of a sample; absent where the
/// targets of a value are all the same, or as good as: where their spread is lost in rounding.
pub const R2: About = About {
    name: "r2",
    title: "R²",
    formula: "1 - squared error / squared deviation of the targets from their mean",
    scale: Scale::Number,
    direction: Direction::HigherIsBetter,
};

/// [`R2`] of outputs and targets (B, W).
#[must_use]
pub fn r2() -> Measure {
    Measure::new(R2, counts, value)
}

/// Squared errors, targets and their squares: a row of 3 · W per sample, in `f64`, of which the spread is a difference.
fn counts(outputs: &Tensor, targets: &Tensor) -> Result<Tensor> {
    let (errors, targets) = ((outputs - targets)?.to_dtype(DType::F64)?, targets.to_dtype(DType::F64)?);
    Tensor::cat(&[&errors.sqr()?, &targets, &targets.sqr()?], 1)
}

fn value(sums: &[f64], num_samples: f64) -> f64 {
    let width = sums.len() / 3;
    let of = |value: usize| {
        let (error, sum, squares) = (sums[value], sums[width + value], sums[2 * width + value]);
        let deviation = squares - sum * sum / num_samples;
        // So far the rounding of as many additions may reach.
        if deviation > 2.0 * num_samples * f64::EPSILON * squares { 1.0 - error / deviation } else { f64::NAN }
    };
    (0..width).map(of).sum::<f64>() / width as f64
}
