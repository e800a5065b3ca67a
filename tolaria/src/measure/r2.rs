//! How much of the spread of values is explained.

use candle_core::{Result, Tensor};
use leyline::task::{About, Direction, Measure, Scale};

/// 1 - Σ (output - target)² / Σ (target - mean of the targets)², averaged over the values of a sample; absent where the
/// targets of a value are all the same. Targets far from 0 against their spread lose digits: standardized ones do not.
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

/// Squared errors, targets and their squares: a row of 3 · W per sample.
fn counts(outputs: &Tensor, targets: &Tensor) -> Result<Tensor> {
    Tensor::cat(&[&(outputs - targets)?.sqr()?, targets, &targets.sqr()?], 1)
}

fn value(sums: &[f64], num_samples: f64) -> f64 {
    let width = sums.len() / 3;
    let of = |value: usize| {
        let (error, sum, squares) = (sums[value], sums[width + value], sums[2 * width + value]);
        1.0 - error / (squares - sum * sum / num_samples)
    };
    (0..width).map(of).sum::<f64>() / width as f64
}
