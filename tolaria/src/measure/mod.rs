//! Qualities of outputs that are measured beside the loss.
//!
//! ```text
//!   outputs, targets of a batch ──counts──► rows that add up ──Σ over the data──► sums, samples ──value──► Score::measures
//! ```
//!
//! Where there is something to recognize, the accuracy is always measured, while training too; the others on held-out data,
//! where `train.measures` names them or the task measures them by default. A new one is a file with its [`About`] and its
//! [`Measure`](leyline::task::Measure), its line in [`ALL`], and its line in the task whose outputs it reads: settings, evaluation, telemetry,
//! `metrics.jsonl`, `summary.json` and the report take it from there.

mod auroc;
mod errors;
mod f1;
mod macro_f1;
mod perplexity;
mod r2;
mod top_k;

use leyline::task::{About, Direction, Scale};

pub use auroc::{AUROC, auroc};
pub use errors::{MEAN_ABS_ERROR, ROOT_MEAN_SQUARE_ERROR, mean_abs_error, root_mean_square_error};
pub use f1::{F1, f1};
pub use macro_f1::{MACRO_F1, macro_f1};
pub use perplexity::{BITS_PER_BYTE, PERPLEXITY, bits_per_byte, perplexity};
pub use r2::{R2, r2};
pub use top_k::{TOP5, top5};

/// How much was recognized; see [`Task::hits`](leyline::task::Task::hits).
pub const ACCURACY: About = About {
    name: leyline::state::ACCURACY,
    title: "Accuracy",
    formula: "correct / samples",
    scale: Scale::Ratio,
    direction: Direction::HigherIsBetter,
};

/// Every quality that is provided, in the order of reports.
pub const ALL: [&About; 10] = [
    &ACCURACY,
    &TOP5,
    &MACRO_F1,
    &F1,
    &AUROC,
    &R2,
    &MEAN_ABS_ERROR,
    &ROOT_MEAN_SQUARE_ERROR,
    &PERPLEXITY,
    &BITS_PER_BYTE,
];

/// What is known about the provided quality of this name.
///
/// ```
/// assert_eq!(tolaria::measure::named("macro_f1").unwrap().title, "Macro F1");
/// assert_eq!(tolaria::measure::named("F1"), None);
/// ```
#[must_use]
pub fn named(name: &str) -> Option<&'static About> {
    ALL.into_iter().find(|about| about.name == name)
}

#[cfg(test)]
mod tests;
