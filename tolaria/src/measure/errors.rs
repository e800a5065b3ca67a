//! How far values are from their targets, in units of the data.

use candle_core::{Result, Tensor};
use leyline::task::{About, Direction, Measure, Scale};

/// The mean over samples and values of |output - target|, in the unit of the targets.
pub const MEAN_ABS_ERROR: About = About {
    name: "mean_abs_error",
    title: "Mean absolute error",
    formula: "mean of |output - target|, in units of the target",
    scale: Scale::Number,
    direction: Direction::LowerIsBetter,
};

/// The root of the mean over samples and values of (output - target)², in the unit of the targets.
pub const ROOT_MEAN_SQUARE_ERROR: About = About {
    name: "root_mean_square_error",
    title: "Root mean square error",
    formula: "root of the mean of (output - target)², in units of the target",
    scale: Scale::Number,
    direction: Direction::LowerIsBetter,
};

/// [`MEAN_ABS_ERROR`] of outputs and targets (B, W) that are multiples of these scales (W), as standardized targets are.
#[must_use]
pub fn mean_abs_error(scales: Vec<f64>) -> Measure {
    let counts = |outputs: &Tensor, targets: &Tensor| (outputs - targets)?.abs();
    Measure::new(MEAN_ABS_ERROR, counts, move |sums, num_samples| {
        let of = |(sum, scale): (&f64, &f64)| sum / num_samples * scale;
        sums.iter().zip(&scales).map(of).sum::<f64>() / sums.len() as f64
    })
}

/// [`ROOT_MEAN_SQUARE_ERROR`] of outputs and targets (B, W) that are multiples of these scales (W).
#[must_use]
pub fn root_mean_square_error(scales: Vec<f64>) -> Measure {
    Measure::new(ROOT_MEAN_SQUARE_ERROR, squares, move |sums, num_samples| {
        let of = |(sum, scale): (&f64, &f64)| sum / num_samples * scale * scale;
        (sums.iter().zip(&scales).map(of).sum::<f64>() / sums.len() as f64).sqrt()
    })
}

/// (output - target)², (B, W).
fn squares(outputs: &Tensor, targets: &Tensor) -> Result<Tensor> {
    (outputs - targets)?.sqr()
}
