//! What the policy sees: everything measured, nothing invented.

use serde::{Deserialize, Serialize};

use crate::id::{EpochIndex, RunId, StepIndex, TopologyRevision};
use crate::seed::{SeedState, SlotState};

/// Averages over a set of samples.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Score {
    /// Mean loss, nats per sample.
    pub loss: f64,
    /// Correct predictions / samples, in `[0, 1]`.
    pub accuracy: f64,
    /// Samples (count).
    pub num_samples: u64,
}

/// The trainer at a decision boundary. An absent value was not measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SystemState {
    /// The run.
    pub run_id: RunId,
    /// Epochs completed.
    pub epoch: EpochIndex,
    /// Epochs the run will have.
    pub num_epochs: u64,
    /// Optimizer steps taken.
    pub step: StepIndex,
    /// Optimizer steps per epoch (count).
    pub steps_per_epoch: u64,
    /// Structure of the network.
    pub topology: TopologyRevision,
    /// Trainable elements of the host, fossilized seeds included (count).
    pub host_parameters: u64,
    /// Training data, averaged over the epoch.
    pub train: Option<Score>,
    /// Held-out data that decisions may use; never the test data.
    pub validation: Option<Score>,
    /// Global gradient norm, root mean square over the epoch's optimizer steps.
    pub gradient_norm: Option<f64>,
    /// Conflicting ordered pairs / all ordered pairs over the epoch, in `[0, 1]`.
    pub conflict_ratio: Option<f64>,
    /// Seeds, ordered by id.
    pub seeds: Vec<SeedState>,
    /// Slots, in network order.
    pub slots: Vec<SlotState>,
}
