//! How a network is trained.

use std::num::{NonZeroU32, NonZeroUsize};

use serde::{Deserialize, Serialize};

use crate::aggregate::ConflictResolution;
use crate::batch::BatchConfig;
use crate::graph::GraphMode;
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
    /// How steps reach the device.
    #[serde(default)]
    pub execution: ExecutionConfig,
}

/// How steps run on a GPU. On the CPU steps always run eagerly, and none of this matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ExecutionConfig {
    /// Whether steps are recorded and replayed: `auto` or `off`.
    pub graphs: GraphMode,
    /// Eager steps of one shape before it is recorded.
    pub warmup_steps: NonZeroU32,
    /// Graphs kept; the least recently used one goes first.
    pub max_graphs: NonZeroUsize,
    /// Shapes in a row that could not be recorded before no further one is tried.
    pub max_failures: NonZeroU32,
    /// Copies the data of a step while the one before it computes. Costs a few calls per step: worth it for large inputs.
    pub prefetch: bool,
    /// Whether data sets are kept on the device; otherwise every batch is copied there.
    pub data_on_device: bool,
    /// Pinned buffers for data on their way to the device; the host runs ahead by as many steps.
    pub staging_buffers: NonZeroUsize,
}

impl Default for ExecutionConfig {
    fn default() -> Self {
        Self {
            graphs: GraphMode::Auto,
            warmup_steps: const { NonZeroU32::new(2).unwrap() },
            max_graphs: const { NonZeroUsize::new(8).unwrap() },
            max_failures: const { NonZeroU32::new(3).unwrap() },
            prefetch: false,
            data_on_device: true,
            staging_buffers: const { NonZeroUsize::new(4).unwrap() },
        }
    }
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
