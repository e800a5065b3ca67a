//! How often the target is among the five largest logits.

use candle_core::{DType, Result, Tensor};
use leyline::task::{About, Direction, Measure, Scale};

/// Classes among which the target has to be.
const BEST: usize = 5;

/// Targets among the five largest logits / samples. Of equal logits the first is the larger; among five classes or fewer
/// it is 1. Beside a logit that is no number nothing is recognized.
pub const TOP5: About = About {
    name: "top5_accuracy",
    title: "Top-5 accuracy",
    formula: "targets among the five largest logits / samples",
    scale: Scale::Ratio,
    direction: Direction::HigherIsBetter,
};

/// [`TOP5`] of logits (B, C) with targets (B,) of `u32`.
#[must_use]
pub fn top5() -> Measure {
    Measure::new(TOP5, counts, |hits, num_samples| hits[0] / num_samples)
}

fn counts(logits: &Tensor, targets: &Tensor) -> Result<Tensor> {
    let (_, num_classes) = logits.dims2()?;
    let targets = targets.unsqueeze(1)?;
    let own = logits.contiguous()?.gather(&targets.contiguous()?, 1)?;
    let classes = u32::try_from(num_classes).map_err(candle_core::Error::wrap)?;
    let is_later = Tensor::arange(0, classes, logits.device())?.unsqueeze(0)?.broadcast_gt(&targets)?;
    let is_below = (logits.broadcast_lt(&own)? + (logits.broadcast_eq(&own)? * is_later)?)?;
    let num_below = is_below.to_dtype(DType::F32)?.sum_keepdim(1)?;
    let is_hit = num_below.ge(num_classes.saturating_sub(BEST) as f64)?.to_dtype(DType::F32)?;
    // Nothing else is unequal to itself.
    let are_numbers = logits.eq(logits)?.to_dtype(DType::F32)?.min_keepdim(1)?;
    is_hit * are_numbers
}
