//! Settings of the heuristic policy.
//!
//! The stage lengths follow one idea: a seed needs `1 + training.min_epochs + blending.ramp_epochs +
//! holding.min_epochs` epochs from germination to permanence (12 by default). For longer or shorter runs scale all of
//! them by one factor.

use leyline::command::AlphaCurve;
use leyline::id::BlueprintId;
use serde::{Deserialize, Serialize};

use crate::policy::heuristic::EarlierConfig;

/// Settings of the heuristic policy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HeuristicConfig {
    /// When the validation loss counts as no longer improving.
    pub plateau: PlateauConfig,
    /// When the host counts as stabilized.
    pub stability: StabilityConfig,
    /// How measurements become a bound.
    pub evidence: EvidenceConfig,
    /// When, where and what germinates.
    pub germination: GerminationConfig,
    /// The shadow training of a seed.
    pub training: TrainingConfig,
    /// The ramp of a seed.
    pub blending: BlendingConfig,
    /// The judgement of a seed.
    pub holding: HoldingConfig,
    /// What trying seeds may cost.
    #[serde(skip_serializing_if = "LookingConfig::is_usual")]
    pub looking: LookingConfig,
    /// What became of seeds in earlier runs.
    #[serde(skip_serializing_if = "EarlierConfig::is_usual")]
    pub earlier: EarlierConfig,
    /// From how many epochs before the end of the run a seed that acts on the output must prove itself or go (epochs,
    /// default 3: a blending seed at full alpha still has two epochs of holding before the last boundary).
    pub closing_epochs: u64,
    /// Those of the seed manager, whatever stands here: who builds both fills it in. A stage is not shorter than its gate allows.
    #[serde(skip)]
    pub gates: GateEpochs,
}

/// Epochs that a gate asks for before the stage it guards the end of is left (epochs, default 0: none is known).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GateEpochs {
    /// Of shadow training.
    pub training: u64,
    /// Of blending, those of the ramp included.
    pub blending: u64,
    /// Of holding.
    pub holding: u64,
}

/// When the validation loss counts as no longer improving.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PlateauConfig {
    /// Measured epochs without improvement that make a plateau (epochs, default 3).
    pub patience_epochs: u64,
    /// Smallest improvement of the best loss that counts, relative to it (fraction in `[0, 1]`, default 0.1): a seed that comes while the loss still falls slowly has more left to learn.
    pub min_relative_gain: f64,
}

/// When the host counts as stabilized: for good, once its loss has moved little for some epochs in a row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StabilityConfig {
    /// Stable epochs in a row that are needed; 0 means stabilized from the start (epochs, default 3).
    pub epochs: u64,
    /// A stable epoch raises the loss by less than this, relative to the last (fraction in `[0, 1]`, default 0.05).
    pub max_relative_rise: f64,
    /// A stable epoch lowers the loss by less than this, relative to the last (fraction in `[0, 1]`, default 0.03).
    pub max_relative_fall: f64,
}

/// How measurements become a bound; see [`crate::evidence`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EvidenceConfig {
    /// Latest measurements of the present stage that are averaged, and epochs for which one counts (count in `[1, 1000]`,
    /// default 3).
    pub window: usize,
    /// Standard errors between the mean and its bound (in `[0, 10]`, default 1.645: one-sided 95 % for a normal mean).
    ///
    /// Looked at epoch after epoch, a bound is passed by chance more often than its nominal level; lower this only
    /// with that in mind.
    pub confidence_z: f64,
}

/// When, where and what germinates.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GerminationConfig {
    /// No germination before this many epochs are completed (epochs, default 4).
    pub min_epoch: u64,
    /// Nor before this share of the epochs of the run is (fraction in `[0, 1]`, default 0): what grows late costs the price of the larger network
    /// for the rest alone.
    #[serde(skip_serializing_if = "is_none_of_it")]
    pub min_share: f64,
    /// Seeds that may live at once (count, default 2).
    pub max_live_seeds: u64,
    /// Largest number of parameters in all, as a multiple of the host's at the first decision (ratio in `[1, 1e6]`,
    /// default 2).
    pub max_parameter_ratio: f64,
    /// Largest number of parameters in all; the smaller of both limits holds (count, default: no such limit).
    pub max_parameters: Option<u64>,
    /// After a seed was culled, its blueprint stands back for this many germinations of others (count, default 2).
    ///
    /// Counted in germinations and not in epochs, because a penalty that decays while nothing germinates is gone
    /// before it could act. It stands back and is not barred: when every blueprint on offer does, the one that has
    /// waited longest is taken.
    pub cooldown_germinations: u64,
    /// Blueprints that may be used, the preferred ones first; empty means all that are offered (default: empty).
    pub blueprints: Vec<BlueprintId>,
}

/// The shadow training of a seed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrainingConfig {
    /// Not judged before (epochs, default 5).
    pub min_epochs: u64,
    /// Culled without proof after (epochs, at least `min_epochs`, default 10).
    pub max_epochs: u64,
    /// Of no effect any more: `seeds.gates.min_gradient_health` asks for it. Read, so that earlier configurations are.
    pub min_gradient_health: f64,
}

/// The ramp of a seed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BlendingConfig {
    /// Length of the ramp from 0 to 1 (epochs, default 3).
    pub ramp_epochs: u64,
    /// Shape of the ramp: `linear`, `cosine` or `sigmoid` (default `linear`).
    pub curve: AlphaCurve,
    /// Over how long a seed that acts loses its influence when it is culled, in the shape of the ramp (epochs, default 0: at
    /// once). At the close of a run it goes at once in any case.
    pub fade_epochs: u64,
    /// Measurements in a row whose upper bound is below 0 that end a seed while it acts (count in `[1, 1000]`,
    /// default 2).
    pub harmful_measurements: usize,
}

/// The judgement of a seed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HoldingConfig {
    /// Not made permanent before (epochs, default 3).
    pub min_epochs: u64,
    /// Culled without proof after (epochs, at least `min_epochs`, default 5).
    pub max_epochs: u64,
    /// Of no effect any more: `seeds.gates.min_loss_gain` asks for it. Read, so that earlier configurations are.
    pub min_gain: f64,
}

/// What trying seeds may cost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LookingConfig {
    /// Largest share of the compute of a run that looking at seeds takes (in `[0, 1]`, default 0.2). It is counted in operations; how long
    /// they take is not looked at, for then a run would decide otherwise on another machine.
    pub max_share: f64,
    /// What an epoch of one seed in the shadow counts where its operations are not known, in epochs of the network (in `[0, 1000]`, default 1.5):
    /// its side loss is another pass through the rest of the network, and it is evaluated.
    pub epoch_cost: f64,
    /// Seeds in a row that were tried in vain, after which none is tried any more (count, default 6).
    pub max_tries: u64,
}

impl LookingConfig {
    fn is_usual(&self) -> bool {
        *self == Self::default()
    }
}

impl Default for LookingConfig {
    fn default() -> Self {
        Self { max_share: 0.2, epoch_cost: 1.5, max_tries: 6 }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields by reference")]
fn is_none_of_it(share: &f64) -> bool {
    *share <= 0.0
}

impl GerminationConfig {
    /// Epochs that have to be completed before a germination, of a run of so many.
    #[must_use]
    pub fn first_epoch(&self, num_epochs: u64) -> u64 {
        // A product that is a whole number but for its last place is that number.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of a count")]
        let of_run = (num_epochs as f64 * self.min_share - 1e-9).ceil() as u64;
        self.min_epoch.max(of_run)
    }

    /// Most parameters of a network whose host has so many at the first decision (counts).
    #[must_use]
    pub fn parameter_limit(&self, host_parameters: u64) -> u64 {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count; saturates")]
        let relative = (host_parameters as f64 * self.max_parameter_ratio) as u64;
        self.max_parameters.map_or(relative, |absolute| absolute.min(relative))
    }
}

impl HeuristicConfig {
    /// Epochs from germination to permanence when every stage takes its shortest time; the first is spent on the way
    /// from germinated to training.
    #[must_use]
    pub fn life_epochs(&self) -> u64 {
        let [training, blending, holding] = self.least_epochs();
        1 + training + blending + holding
    }

    /// Shortest time in training, blending and holding (epochs): what this policy waits for and what the gates ask for, whichever is more.
    #[must_use]
    pub fn least_epochs(&self) -> [u64; 3] {
        let GateEpochs { training, blending, holding } = self.gates;
        [
            self.training.min_epochs.max(training),
            self.blending.ramp_epochs.max(blending),
            self.holding.min_epochs.max(holding),
        ]
    }
}

impl Default for HeuristicConfig {
    fn default() -> Self {
        Self {
            plateau: PlateauConfig::default(),
            stability: StabilityConfig::default(),
            evidence: EvidenceConfig::default(),
            germination: GerminationConfig::default(),
            training: TrainingConfig::default(),
            blending: BlendingConfig::default(),
            holding: HoldingConfig::default(),
            looking: LookingConfig::default(),
            earlier: EarlierConfig::default(),
            closing_epochs: 3,
            gates: GateEpochs::default(),
        }
    }
}

impl Default for PlateauConfig {
    fn default() -> Self {
        Self { patience_epochs: 3, min_relative_gain: 0.1 }
    }
}

impl Default for StabilityConfig {
    fn default() -> Self {
        Self { epochs: 3, max_relative_rise: 0.05, max_relative_fall: 0.03 }
    }
}

impl Default for EvidenceConfig {
    fn default() -> Self {
        Self { window: 3, confidence_z: 1.645 }
    }
}

impl Default for GerminationConfig {
    fn default() -> Self {
        Self {
            min_epoch: 4,
            min_share: 0.0,
            max_live_seeds: 2,
            max_parameter_ratio: 2.0,
            max_parameters: None,
            cooldown_germinations: 2,
            blueprints: Vec::new(),
        }
    }
}

impl Default for TrainingConfig {
    fn default() -> Self {
        Self { min_epochs: 5, max_epochs: 10, min_gradient_health: 0.7 }
    }
}

impl Default for BlendingConfig {
    fn default() -> Self {
        Self { ramp_epochs: 3, curve: AlphaCurve::Linear, fade_epochs: 0, harmful_measurements: 2 }
    }
}

impl Default for HoldingConfig {
    fn default() -> Self {
        Self { min_epochs: 3, max_epochs: 5, min_gain: 0.005 }
    }
}
