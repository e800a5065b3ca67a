//! The area under the curve of hits over false alarms.

use candle_core::{DType, Result, Tensor};
use leyline::task::{About, Direction, Measure, Scale};

/// Logits that are told apart: those in one step count as equal. Near 1/2 that is a step of 1/1024 in probability, and never more than
/// 1/256 of the probability or of its complement: rare flags keep their order.
const STEPS_PER_LOGIT: usize = 256;
/// Logits beyond this are in the first step or the last: probabilities of 1e-14.
const LARGEST_LOGIT: usize = 32;
const BINS: usize = 2 * LARGEST_LOGIT * STEPS_PER_LOGIT;

/// The probability that a set flag has a larger logit than one that is not, equal ones counted half; over all flags of all
/// samples. Logits in the same 1/256, and those beyond ±32, count as equal. Absent where no flag, or every flag, is set.
pub const AUROC: About = About {
    name: "auroc",
    title: "AUROC",
    formula: "P(logit of a set flag > logit of another), equal ones half, in steps of 1/256",
    scale: Scale::Ratio,
    direction: Direction::HigherIsBetter,
};

/// [`AUROC`] of logits (B, L) with targets (B, L) of `f32` that are 0 or 1.
#[must_use]
pub fn auroc() -> Measure {
    Measure::new(AUROC, counts, value)
}

/// How many flags that are not set, then how many that are, fall into each step of logits: one row.
fn counts(logits: &Tensor, flags: &Tensor) -> Result<Tensor> {
    let flags = flags.flatten_all()?;
    // A logit that is no number goes to the first step, as a prediction of nothing.
    let steps = logits.flatten_all()?.to_dtype(DType::F32)?.affine(STEPS_PER_LOGIT as f64, (BINS / 2) as f64)?;
    let bins = steps.floor()?.clamp(0.0, (BINS - 1) as f64)?;
    let places = (bins.to_dtype(DType::U32)? + (&flags * BINS as f64)?.to_dtype(DType::U32)?)?;
    let ones = flags.ones_like()?;
    Tensor::zeros(2 * BINS, DType::F32, logits.device())?.index_add(&places, &ones, 0)?.unsqueeze(0)
}

fn value(sums: &[f64], _num_samples: f64) -> f64 {
    let (unset, set) = sums.split_at(BINS);
    let mut below = 0.0;
    let mut wins = 0.0;
    for (unset, set) in unset.iter().zip(set) {
        wins += set * (below + unset / 2.0);
        below += unset;
    }
    wins / (below * set.iter().sum::<f64>())
}
