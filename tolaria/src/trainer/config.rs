//! How a network is trained.

use std::num::NonZeroUsize;

use serde::{Deserialize, Serialize};

use crate::aggregate::ConflictResolution;
use crate::batch::BatchConfig;
use crate::optim::{OptimizerConfig, ScheduleConfig};

/// Settings of the trainer; immutable once it is built.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainConfig {
    /// Samples per microbatch and microbatches per optimizer step.
    pub batch: BatchConfig,
    /// How gradients become updates.
    pub optimizer: OptimizerConfig,
    /// How the learning rate moves over the run.
    pub schedule: ScheduleConfig,
    /// Largest global gradient norm; absent leaves gradients as they are.
    #[serde(default)]
    pub clip_norm: Option<f64>,
    /// How the gradients of one window become one gradient.
    #[serde(default)]
    pub conflict: ConflictResolution,
    /// Samples per forward pass of an evaluation.
    pub eval_batch_size: NonZeroUsize,
    /// Conflict ratio of an epoch from which on a warning is emitted, in `[0, 1]`.
    pub conflict_warn: f64,
}

impl TrainConfig {
    /// Every setting that cannot work, as (key, what is accepted).
    #[must_use]
    pub fn validate(&self) -> Vec<(String, String)> {
        let mut issues = Vec::new();
        if self.clip_norm.is_some_and(|norm| !(norm > 0.0 && norm.is_finite())) {
            issues.push(("clip_norm".to_owned(), "a finite number above 0, or absent".to_owned()));
        }
        if !(0.0..=1.0).contains(&self.conflict_warn) {
            issues.push(("conflict_warn".to_owned(), "a number from 0 to 1".to_owned()));
        }
        issues.extend(self.optimizer.validate().into_iter().map(|(key, text)| (format!("optimizer.{key}"), text)));
        issues.extend(self.schedule.validate().into_iter().map(|(key, text)| (format!("schedule.{key}"), text)));
        issues
    }
}
