//! What an epoch came to: one record, written as one line of `metrics.jsonl` and shown to the observer.

use leyline::id::{EpochIndex, StepIndex, TopologyRevision};
use leyline::seed::{SeedStage, SeedState};
use leyline::state::Score;
use serde::{Deserialize, Serialize};

/// One command of the policy and what became of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CommandRecord {
    /// Its sequence number.
    pub sequence: u64,
    /// What was asked, for people: `germinate mlp in input`.
    pub operation: String,
    /// Why it was asked.
    pub reason: String,
    /// Why it was refused; absent when it was carried out.
    pub refused: Option<String>,
}

/// One change of stage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TransitionRecord {
    /// The seed, `seed-N`.
    pub seed: leyline::id::SeedId,
    /// Stage before.
    pub from: SeedStage,
    /// Stage after.
    pub to: SeedStage,
    /// Why.
    pub reason: String,
}

/// Gradient algebra of the epoch; absent when no window was aggregated by attribution.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConflictRecord {
    /// Conflicting ordered pairs / all ordered pairs, in `[0, 1]`.
    pub ratio: f64,
    /// Mean share of the gradient that no seed is responsible for, in `[0, 1]`.
    pub host_share: f64,
}

/// One epoch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EpochReport {
    /// Epochs completed, from 1.
    pub epoch: EpochIndex,
    /// Optimizer steps taken in the run.
    pub step: StepIndex,
    /// Structure of the network during the epoch.
    pub topology: TopologyRevision,
    /// Trainable elements, live seeds included (count).
    pub num_parameters: u64,
    /// Learning rate of the last step.
    pub learning_rate: f64,
    /// Training data, averaged while it trained.
    pub train: Score,
    /// Held-out data that decisions may use.
    pub validation: Score,
    /// Global gradient norm of the main loss before clipping, root mean square over optimizer steps.
    pub gradient_norm: f64,
    /// Conflicts between owners.
    pub conflict: Option<ConflictRecord>,
    /// Seeds at the end of the epoch, after the commands below.
    pub seeds: Vec<SeedState>,
    /// Commands of the policy at the end of the epoch.
    pub commands: Vec<CommandRecord>,
    /// Stage changes at the end of the epoch.
    pub transitions: Vec<TransitionRecord>,
    /// Time the epoch took, evaluation and decisions included, in seconds.
    pub wall_s: f64,
    /// Training samples per second of `wall_s`.
    pub samples_per_s: f64,
}
