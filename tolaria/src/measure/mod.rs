//! Qualities of predictions that are measured beside the loss.
//!
//! ```text
//!   logits, targets of a batch ──counts──► rows that add up ──Σ over the data──► sums, samples ──value──► Score::measures
//! ```
//!
//! The accuracy is always measured, while training too; the others on held-out data, where `train.measures` names them. A new
//! one is a file with its [`QualityMeasure`] and its line in [`MEASURES`]: settings, evaluation, telemetry, `metrics.jsonl`,
//! `summary.json` and the report take it from there.

mod accuracy;
mod top5;

pub use accuracy::ACCURACY;
use candle_core::Tensor;
use leyline::telemetry::Unit;
pub use top5::TOP5;

use crate::error::Error;

/// Every quality that can be measured, in the order of reports.
pub const MEASURES: [QualityMeasure; 2] = [ACCURACY, TOP5];

/// What is counted of predictions, and what the counts come to.
#[derive(Debug, Clone, Copy)]
pub struct QualityMeasure {
    /// In settings, files and labels of metrics.
    pub name: &'static str,
    /// For people.
    pub title: &'static str,
    /// What is divided by what.
    pub formula: &'static str,
    /// Unit of the value; a ratio is shown in percent.
    pub unit: Unit,
    /// Counts of a batch, (rows, counts) of `f32`, from logits (B, C) of `f32` and targets (B,) of `u32`. Rows are added up,
    /// of all batches; how many a batch has does not matter.
    pub counts: fn(&Tensor, &Tensor) -> Result<Tensor, Error>,
    /// The value from the sums of the counts and the number of samples.
    pub value: fn(&[f64], f64) -> f64,
}

/// The measure of this name.
#[must_use]
pub fn named(name: &str) -> Option<QualityMeasure> {
    MEASURES.into_iter().find(|measure| measure.name == name)
}

#[cfg(test)]
mod tests;
