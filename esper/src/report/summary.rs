//! `summary.json`: what a run came to; also the last line that `esper train --json` prints.

use std::collections::BTreeMap;
use std::fmt;

use leyline::id::{BlueprintId, EpochIndex, SeedId, SlotId, StepIndex};
use leyline::seed::SeedStage;
use leyline::state::ACCURACY;
use leyline::unit::Alpha;
use serde::{Deserialize, Serialize};
use tolaria::trainer::Best;

use super::waiting::Waiting;

/// The result of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Summary {
    /// Correct predictions / samples on the test data, in `[0, 1]`; absent when it was not measured.
    pub test_accuracy: Option<f64>,
    /// What else the test data were measured by, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub test_measures: BTreeMap<String, f64>,
    /// Mean loss on the test data, nats per sample; absent when it was not measured.
    pub test_loss: Option<f64>,
    /// Correct predictions / samples on the validation data after the last epoch, in `[0, 1]`; absent before the first.
    pub validation_accuracy: Option<f64>,
    /// Epochs completed (count).
    pub epochs: u64,
    /// Optimizer steps taken (count).
    pub steps: u64,
    /// Trainable elements at the end, live seeds included (count).
    pub parameters: u64,
    /// Trainable elements of the host network before any seed (count).
    pub host_parameters: u64,
    /// Seconds from the start of the command to its result; of all parts of a resumed run, see
    /// [`ResumedRecord::earlier_s`](super::ResumedRecord::earlier_s).
    pub wall_s: f64,
    /// The run folder.
    pub out: String,
    /// Checkpoint the run was taken up from; absent when it was not interrupted.
    pub resumed_from: Option<String>,
    /// How it ended.
    pub outcome: RunOutcome,
    /// Why it failed or diverged, with what can be done, or why it ended before its last epoch; absent otherwise.
    #[serde(default)]
    pub reason: Option<String>,
    /// The evaluation with the lowest loss on validation data; absent before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best: Option<Best>,
    /// The network that the test measures are of, and that is evaluated, predicted with and exported afterwards; absent when
    /// nothing was measured, and in a run of an earlier version: then it is the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tested: Option<Tested>,
    /// Seeds at the end, fossilized ones included, by id.
    pub seeds: Vec<SeedSummary>,
    /// Why the policy gave no more commands, the latest reason first.
    #[serde(default)]
    pub waiting: Vec<Waiting>,
    /// What is not claimed of this run, though it is of others: sentences.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// The largest bytes of each part of the memory, of the last part of a resumed run; absent is what was not measured, or was not
    /// there ([`Trainer::memory`](tolaria::trainer::Trainer::memory)).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub memory: BTreeMap<String, u64>,
}

impl Summary {
    /// A measure on the test data; absent where it was not taken.
    pub(crate) fn test_measure(&self, name: &str) -> Option<f64> {
        if name == ACCURACY { self.test_accuracy } else { self.test_measures.get(name).copied() }
    }

    /// Trainable elements of the network that the test measures are of; of the last one where nothing was measured.
    pub(crate) fn tested_parameters(&self) -> u64 {
        self.tested.map_or(self.parameters, |tested| tested.parameters)
    }
}

/// A network of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tested {
    /// Which one.
    pub network: Which,
    /// The epoch that it ended, or in the middle of which it was, from 1; 0 before the first.
    pub epoch: EpochIndex,
    /// Optimizer steps taken.
    pub step: StepIndex,
    /// Its trainable elements, live seeds included (count).
    pub parameters: u64,
}

/// Which network of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Which {
    /// That of the evaluation with the lowest loss on validation data, as it was evaluated.
    Best,
    /// That of the end of the run.
    Last,
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunOutcome {
    /// All epochs were trained, or it ended before for a reason that its settings give: then [`Summary::reason`] says it.
    Completed,
    /// Asked to stop; the newest checkpoint continues it.
    Interrupted,
    /// Halted by an emergency: [`Summary::reason`] says which; the newest checkpoint continues it.
    Halted,
    /// Its numbers are not finite, or it is worse than a guess on training and validation data.
    Diverged,
    /// Ended by an error.
    Failed,
}

impl RunOutcome {
    /// The name in lower case, as serialized.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Interrupted => "interrupted",
            Self::Halted => "halted",
            Self::Diverged => "diverged",
            Self::Failed => "failed",
        }
    }
}

impl fmt::Display for RunOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One seed at the end of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SeedSummary {
    /// The seed.
    pub seed_id: SeedId,
    /// Where it sits.
    pub slot: SlotId,
    /// What it is.
    pub blueprint: BlueprintId,
    /// Where it is in its life.
    pub stage: SeedStage,
    /// Blend coefficient.
    pub alpha: Alpha,
    /// Trainable elements (count).
    pub parameters: u64,
}

impl From<&leyline::seed::SeedState> for SeedSummary {
    fn from(state: &leyline::seed::SeedState) -> Self {
        Self {
            seed_id: state.seed_id,
            slot: state.slot.clone(),
            blueprint: state.blueprint.clone(),
            stage: state.stage,
            alpha: state.alpha,
            parameters: state.num_parameters,
        }
    }
}
