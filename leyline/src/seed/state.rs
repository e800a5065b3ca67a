//! What the seed manager tells others about seeds and slots.

use serde::{Deserialize, Serialize};

use crate::command::BlendMode;
use crate::id::{BlueprintId, EpochIndex, SeedId, SlotId};
use crate::seed::{Confirmed, Counterfactual, GateReport, GradientHealth, SeedStage};
use crate::unit::Alpha;

/// What an alpha controller is doing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AlphaMode {
    /// Alpha stays.
    #[default]
    Hold,
    /// Alpha rises to its target.
    Up,
    /// Alpha falls to its target.
    Down,
}

/// How far an alpha ramp is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RampProgress {
    /// Optimizer steps of it that are over (count).
    pub steps_done: u64,
    /// Optimizer steps it takes (count).
    pub steps_total: u64,
}

/// One seed as it is now. Fields that earlier versions did not write are read as the defaults of their types.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SeedState {
    /// The seed.
    pub seed_id: SeedId,
    /// Where it sits.
    pub slot: SlotId,
    /// Position of its slot in the network, from 0 at the inputs.
    #[serde(default)]
    pub layer_depth: u32,
    /// What it is.
    pub blueprint: BlueprintId,
    /// Where it is in its life.
    pub stage: SeedStage,
    /// The stage before this one; absent before the first change.
    #[serde(default)]
    pub previous_stage: Option<SeedStage>,
    /// Whether it was taken out of the computation for a while.
    #[serde(default)]
    pub paused: bool,
    /// Whether its weights are still being fetched.
    #[serde(default)]
    pub weights_pending: bool,
    /// Epochs since germination (count).
    pub age_epochs: u64,
    /// Epochs in this stage (count).
    pub epochs_in_stage: u64,
    /// How it is mixed with the host's value.
    #[serde(default)]
    pub blend: BlendMode,
    /// Blend coefficient now.
    pub alpha: Alpha,
    /// Where the ramp leads.
    pub alpha_target: Alpha,
    /// What the alpha controller does.
    pub alpha_mode: AlphaMode,
    /// The running ramp; absent when none runs.
    #[serde(default)]
    pub alpha_ramp: Option<RampProgress>,
    /// Trainable elements (count); 0 once pruned.
    pub num_parameters: u64,
    /// Latest measurement of its effect; absent until measured in this stage.
    pub counterfactual: Option<Counterfactual>,
    /// Epoch of that measurement; absent when it is not known, and then the measurement counts for nothing.
    #[serde(default)]
    pub counterfactual_epoch: Option<EpochIndex>,
    /// Latest measurement of its gradient; absent until measured.
    pub gradient: Option<GradientHealth>,
    /// Epoch of that measurement; absent when it is not known, and then the measurement counts for nothing.
    #[serde(default)]
    pub gradient_epoch: Option<EpochIndex>,
    /// Share of its measurements in this stage that showed a gain, in `[0, 1]`; absent until measured.
    #[serde(default)]
    pub stability: Option<f64>,
    /// Leaks between it and the host that were found while it trained in the shadow (count).
    #[serde(default)]
    pub isolation_violations: u64,
    /// Whether its gain was confirmed on samples that nothing else is decided by; absent before they were read for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirmation: Option<Confirmed>,
    /// Latest verdict of a gate.
    pub last_gate: Option<GateReport>,
}

impl SeedState {
    /// A seed that just germinated with its weights, by a residual blend in the first slot.
    #[must_use]
    pub fn germinated(seed_id: SeedId, slot: SlotId, blueprint: BlueprintId, num_parameters: u64) -> Self {
        Self {
            seed_id,
            slot,
            layer_depth: 0,
            blueprint,
            stage: SeedStage::Germinated,
            previous_stage: None,
            paused: false,
            weights_pending: false,
            age_epochs: 0,
            epochs_in_stage: 0,
            blend: BlendMode::Residual,
            alpha: Alpha::ZERO,
            alpha_target: Alpha::ONE,
            alpha_mode: AlphaMode::Hold,
            alpha_ramp: None,
            num_parameters,
            counterfactual: None,
            counterfactual_epoch: None,
            gradient: None,
            gradient_epoch: None,
            stability: None,
            isolation_violations: 0,
            confirmation: None,
            last_gate: None,
        }
    }
}

/// A blueprint that fits a slot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BlueprintOffer {
    /// The blueprint.
    pub blueprint: BlueprintId,
    /// Trainable elements it would add here (count).
    pub num_parameters: u64,
}

/// One slot as it is now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SlotState {
    /// The slot.
    pub slot: SlotId,
    /// The seed that occupies it, from germination to the end of its reset; absent when the slot is free.
    pub occupant: Option<SeedId>,
    /// Seeds that became permanent here (count).
    pub num_fossilized: u64,
    /// What could germinate here, ordered by blueprint id.
    pub offers: Vec<BlueprintOffer>,
}
