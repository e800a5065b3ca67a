//! What the seed manager tells others about seeds and slots.

use serde::{Deserialize, Serialize};

use crate::id::{BlueprintId, SeedId, SlotId};
use crate::seed::{Counterfactual, GradientHealth, SeedStage};
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

/// Verdict of a gate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GateReport {
    /// Stage the gate guards.
    pub target: SeedStage,
    /// Whether the seed may pass.
    pub passed: bool,
    /// Conditions that were met.
    pub met: Vec<String>,
    /// Conditions that were not met, with the measured value or `not measured`.
    pub failed: Vec<String>,
}

/// One seed as it is now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SeedState {
    /// The seed.
    pub seed_id: SeedId,
    /// Where it sits.
    pub slot: SlotId,
    /// What it is.
    pub blueprint: BlueprintId,
    /// Where it is in its life.
    pub stage: SeedStage,
    /// Epochs since germination (count).
    pub age_epochs: u64,
    /// Epochs in this stage (count).
    pub epochs_in_stage: u64,
    /// Blend coefficient now.
    pub alpha: Alpha,
    /// Where the ramp leads.
    pub alpha_target: Alpha,
    /// What the alpha controller does.
    pub alpha_mode: AlphaMode,
    /// Trainable elements (count); 0 once pruned.
    pub num_parameters: u64,
    /// Latest measurement of its effect; absent until measured in this stage.
    pub counterfactual: Option<Counterfactual>,
    /// Latest measurement of its gradient; absent until measured.
    pub gradient: Option<GradientHealth>,
    /// Latest verdict of a gate.
    pub last_gate: Option<GateReport>,
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
