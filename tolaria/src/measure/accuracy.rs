//! How often the target has the largest logit.

use leyline::telemetry::Unit;

use super::QualityMeasure;
use crate::loss;

/// Correct predictions / samples.
pub const ACCURACY: QualityMeasure = QualityMeasure {
    name: leyline::state::ACCURACY,
    title: "Accuracy",
    formula: "correct / samples",
    unit: Unit::Ratio,
    counts: |logits, targets| Ok(loss::hits(logits, targets)?.unsqueeze(1)?),
    value: |correct, num_samples| correct[0] / num_samples,
};
