//! F1 of flags that are set.

use candle_core::{DType, Result, Tensor};
use leyline::task::{About, Direction, Measure, Scale};

/// 2 · hits / (predicted + actual) over all flags of all samples; absent where no flag is set and none was predicted.
pub const F1: About = About {
    name: "f1",
    title: "F1",
    formula: "2 hits / (predicted + actual), over all flags",
    scale: Scale::Ratio,
    direction: Direction::HigherIsBetter,
};

/// [`F1`] of logits (B, L), which predict a flag above 0, with targets (B, L) of `f32` that are 0 or 1.
#[must_use]
pub fn f1() -> Measure {
    Measure::new(F1, counts, |sums, _| 2.0 * sums[0] / (sums[1] + sums[2]))
}

/// Hits, predictions and targets: a row per sample.
fn counts(logits: &Tensor, flags: &Tensor) -> Result<Tensor> {
    let predicted = logits.gt(0.0)?.to_dtype(DType::F32)?;
    let hits = (&predicted * flags)?;
    let of = |flags: &Tensor| flags.sum_keepdim(1);
    Tensor::cat(&[of(&hits)?, of(&predicted)?, of(flags)?], 1)
}
