//! What the policy sees: everything measured, nothing invented.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::id::{EpochIndex, RunId, StepIndex, TopologyRevision};
use crate::seed::{Confirming, Costs, SeedState, SlotState};

/// What a set of samples came to: the loss, and every quality that was measured beside it.
///
/// ```
/// use leyline::state::{ACCURACY, Score};
///
/// let score = Score::new(0.25, 8).with(ACCURACY, 0.75);
/// assert_eq!(serde_json::to_string(&score)?, r#"{"loss":0.25,"num_samples":8,"accuracy":0.75}"#);
/// assert_eq!((score.accuracy(), score.measures.get("top5_accuracy")), (Some(0.75), None));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Score {
    /// Mean loss, in the unit of the task, per sample.
    pub loss: f64,
    /// Samples (count).
    pub num_samples: u64,
    /// The qualities by name; what is absent was not measured. On the wire each is a field beside the loss.
    #[serde(flatten)]
    pub measures: BTreeMap<String, f64>,
}

/// Name of the measure correct predictions / samples, in `[0, 1]`.
pub const ACCURACY: &str = "accuracy";

impl Score {
    /// A loss per sample, in the unit of the task, over so many samples.
    #[must_use]
    pub fn new(loss: f64, num_samples: u64) -> Self {
        Self { loss, num_samples, measures: BTreeMap::new() }
    }

    /// With a quality in the unit of its measure.
    #[must_use]
    pub fn with(mut self, measure: &str, value: f64) -> Self {
        self.measures.insert(measure.to_owned(), value);
        self
    }

    /// Correct predictions / samples, in `[0, 1]`; absent where it was not measured.
    #[must_use]
    pub fn accuracy(&self) -> Option<f64> {
        self.measures.get(ACCURACY).copied()
    }

    /// Whether the loss and every measure are numbers.
    #[must_use]
    pub fn is_finite(&self) -> bool {
        self.loss.is_finite() && self.measures.values().all(|value| value.is_finite())
    }
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
    /// Samples that an epoch passes over, skipped steps included (count); absent where that is not told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples_per_epoch: Option<u64>,
    /// Training data, averaged over the epoch.
    pub train: Option<Score>,
    /// Held-out data that decisions may use; never the test data.
    pub validation: Option<Score>,
    /// Global gradient norm, root mean square over the epoch's optimizer steps.
    pub gradient_norm: Option<f64>,
    /// Conflicting ordered pairs / all ordered pairs over the epoch, in `[0, 1]`.
    pub conflict_ratio: Option<f64>,
    /// What the next confirmation of a gain has to come to; absent where none is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirming: Option<Confirming>,
    /// What the network and looking at seeds cost; absent where it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub costs: Option<Costs>,
    /// Seeds, ordered by id.
    pub seeds: Vec<SeedState>,
    /// Slots, in network order.
    pub slots: Vec<SlotState>,
}
