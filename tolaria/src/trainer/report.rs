//! What an epoch came to: one record, written as one line of `metrics.jsonl` and shown to the observer.

use leyline::id::{EpochIndex, StepIndex, TopologyRevision};
use leyline::layout::Owner;
use leyline::policy::Rationale;
use leyline::seed::{SeedStage, SeedState};
use leyline::state::{Score, SystemState};
use serde::{Deserialize, Deserializer, Serialize, de};

use crate::measure;
use crate::trainer::stop::StepEvaluation;

/// Most layers of an owner that are reported.
pub const LAYERS_REPORTED: usize = 8;

const HOST: &str = "host";

/// One command of the policy and what became of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CommandRecord {
    /// Its number; absent where orders are not numbered.
    pub sequence: Option<u64>,
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

/// Gradients of the host and the seeds in an epoch; absent when no window told their owners apart.
///
/// An owner's gradient is the sum of the microbatches' gradients, each times its samples' share of the window and the
/// part of them attributed to the owner. A window is measured when several owners take part in it and its step
/// is not left out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConflictRecord {
    /// Conflicting ordered pairs / all ordered pairs, in `[0, 1]`.
    pub ratio: f64,
    /// Ordered pairs of owners whose gradients have a negative inner product, over all measured windows (count).
    pub conflicts: u64,
    /// Ordered pairs of owners, over all measured windows (count).
    pub pairs: u64,
    /// Windows in which owners were told apart, those of steps that were left out among them (count).
    pub windows: u64,
    /// Mean share of the samples' attribution that stays with the host, over these windows, in `[0, 1]`.
    pub host_share: f64,
    /// The owners that took part in a measured window: the host first, then seeds by id.
    pub owners: Vec<OwnerRecord>,
    /// Every two owners that took part in one measured window.
    pub cosines: Vec<CosineRecord>,
}

/// One owner's gradients in an epoch, before the method weighs them. An owner whose gradients were not finite is left
/// out: a mean over them says nothing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OwnerRecord {
    /// `host` or `seed-N`.
    #[serde(with = "owner_text")]
    pub owner: Owner,
    /// Measured windows in which it took part (count); what follows is about those.
    pub windows: u64,
    /// Mean part of the samples that is attributed to it, in `[0, 1]`.
    pub weight: f64,
    /// L2 norm of its gradient, root mean square over windows.
    pub norm: f64,
    /// Mean of its norm / the sum of all owners' norms, in `[0, 1]`; in one window the shares sum to 1.
    pub share: f64,
    /// `share` minus the one of the epoch before; absent when that epoch has none.
    pub share_delta: Option<f64>,
    /// Ordered pairs that start at it and have a negative inner product (count).
    pub conflicts: u64,
    /// Ordered pairs that start at it (count).
    pub pairs: u64,
    /// `conflicts / pairs`, in `[0, 1]`; 0 without a pair.
    pub conflict_ratio: f64,
    /// Mean weight that the method gave its gradient; 1 leaves it as it is.
    pub resolved_weight: f64,
    /// Mean alpha of the seed; absent for the host.
    pub alpha: Option<f64>,
    /// Mean part of what seeds took over from the host that went to this seed, in `[0, 1]`; absent for the host.
    pub host_split: Option<f64>,
    /// Its trainable elements (count).
    pub num_parameters: u64,
    /// Its trainable elements / those of the whole network, in `[0, 1]`.
    pub parameter_fraction: f64,
    /// The parameter tensors in which its gradient is largest, the largest first; at most [`LAYERS_REPORTED`].
    pub layers: Vec<LayerRecord>,
}

/// An owner's gradient in one parameter tensor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerRecord {
    /// Name of the parameter.
    pub layer: String,
    /// L2 norm of the owner's gradient there, root mean square over windows.
    pub norm: f64,
}

/// The angle between the gradients of two owners.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CosineRecord {
    /// `host` or `seed-N`.
    #[serde(with = "owner_text")]
    pub a: Owner,
    /// `seed-N`.
    #[serde(with = "owner_text")]
    pub b: Owner,
    /// Mean cosine over the windows in which both have a gradient that counts as more than zero, in `[-1, 1]`.
    pub cosine: f64,
    /// These windows (count).
    pub windows: u64,
}

/// An owner for people and files: `host` or `seed-N`.
#[must_use]
pub fn owner_name(owner: Owner) -> String {
    match owner {
        Owner::Host => HOST.to_owned(),
        Owner::Seed(seed) => seed.to_string(),
    }
}

/// An owner as the text of [`owner_name`].
mod owner_text {
    use leyline::layout::Owner;
    use serde::{Deserialize as _, Deserializer, Serializer, de};

    pub(super) fn serialize<S: Serializer>(owner: &Owner, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&super::owner_name(*owner))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Owner, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text == super::HOST { Ok(Owner::Host) } else { text.parse().map(Owner::Seed).map_err(de::Error::custom) }
    }
}

/// A score of provided measures alone: a name that is none of them is damage.
fn of_known_measures<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Score, D::Error> {
    let score = Score::deserialize(deserializer)?;
    match score.measures.keys().find(|name| measure::named(name).is_none()) {
        None => Ok(score),
        Some(name) => Err(de::Error::custom(format!("there is no measure `{name}`"))),
    }
}

/// A score that is there was measured: null is damage.
fn measured_score<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Score>, D::Error> {
    of_known_measures(deserializer).map(Some)
}

/// A number that is there was measured: null is damage.
fn measured_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    f64::deserialize(deserializer).map(Some)
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
    /// Training data, averaged while it trained; absent where every step was skipped.
    #[serde(default, deserialize_with = "measured_score", skip_serializing_if = "Option::is_none")]
    pub train: Option<Score>,
    /// Held-out data that decisions may use.
    #[serde(deserialize_with = "of_known_measures")]
    pub validation: Score,
    /// Global gradient norm of the main loss before clipping, of what is not frozen, root mean square over optimizer steps;
    /// absent where every step was skipped.
    #[serde(default, deserialize_with = "measured_number", skip_serializing_if = "Option::is_none")]
    pub gradient_norm: Option<f64>,
    /// Gradients of the owners, and how they conflict.
    pub conflict: Option<ConflictRecord>,
    /// Seeds at the end of the epoch, after the commands below.
    pub seeds: Vec<SeedState>,
    /// What the policy was shown at the end of the epoch, before its commands; absent where it was not asked, and in runs of
    /// earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<SystemState>,
    /// Commands of the policy at the end of the epoch.
    pub commands: Vec<CommandRecord>,
    /// Why the policy gave no more of them: what it waits for, what it dropped.
    #[serde(default)]
    pub waiting: Vec<Rationale>,
    /// Stage changes at the end of the epoch.
    pub transitions: Vec<TransitionRecord>,
    /// Time the epoch took, evaluation and decisions included, in seconds; of one that was taken up in the middle, the time since.
    pub wall_s: f64,
    /// Training samples per second of `wall_s`, those in it alone, of skipped steps too.
    pub samples_per_s: f64,
    /// Optimizer steps that changed nothing, because their loss or gradient was not finite (count); `train` and
    /// `gradient_norm` are over the others.
    #[serde(default)]
    pub skipped_steps: u64,
    /// Evaluations in the middle of the epoch, in the order of steps.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evaluations: Vec<StepEvaluation>,
}

#[cfg(test)]
mod tests {
    use leyline::id::SeedId;

    use super::*;

    #[test]
    fn an_epoch_whose_steps_were_all_skipped_has_no_training_loss() {
        let report = EpochReport {
            epoch: EpochIndex(1),
            step: StepIndex(2),
            topology: TopologyRevision(0),
            num_parameters: 6,
            learning_rate: 0.1,
            train: None,
            validation: Score::new(0.5, 4),
            gradient_norm: None,
            conflict: None,
            seeds: Vec::new(),
            asked: None,
            commands: Vec::new(),
            waiting: Vec::new(),
            transitions: Vec::new(),
            wall_s: 1.0,
            samples_per_s: 8.0,
            skipped_steps: 2,
            evaluations: Vec::new(),
        };
        let read = |text: &str| serde_json::from_str::<EpochReport>(text);
        let text = serde_json::to_string(&report).unwrap();
        assert!(!text.contains("train") && !text.contains("gradient_norm"), "{text}");
        assert_eq!(read(&text).unwrap(), report);
        let measured = EpochReport { train: Some(Score::new(0.25, 8)), gradient_norm: Some(1.5), ..report };
        let text = serde_json::to_string(&measured).unwrap();
        assert_eq!(read(&text).unwrap(), measured);
        // What is no number was measured, and is damage.
        for number in ["0.25", "1.5"] {
            assert!(read(&text.replace(number, "null")).is_err(), "{number}");
        }
    }

    #[test]
    fn owners_are_written_as_people_name_them() {
        let record = CosineRecord { a: Owner::Host, b: Owner::Seed(SeedId(7)), cosine: -0.5, windows: 3 };
        let text = serde_json::to_string(&record).unwrap();
        assert_eq!(text, r#"{"a":"host","b":"seed-7","cosine":-0.5,"windows":3}"#);
        assert_eq!(serde_json::from_str::<CosineRecord>(&text).unwrap(), record);
        for name in ["Host", "seed-", "7", ""] {
            let refused = text.replace("seed-7", name);
            assert!(serde_json::from_str::<CosineRecord>(&refused).is_err(), "{refused}");
        }
    }
}
