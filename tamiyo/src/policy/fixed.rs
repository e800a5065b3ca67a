//! The control by the clock: seeds germinate at given epochs and spend fixed times in each stage, whatever is measured.

use leyline::command::{AlphaCurve, Operation};
use leyline::id::{BlueprintId, SlotId};
use leyline::seed::{SeedStage, SeedState, SlotState};
use leyline::state::SystemState;
use serde::{Deserialize, Serialize};

use crate::issues::Issues;
use crate::policy::proposal::{acts_in_full, full_ramp};
use crate::policy::{Proposal, Settings};

/// Walks a schedule.
///
/// An entry that is due and finds no free slot with its blueprint stays due; entries germinate in their order, so a
/// later one never overtakes. Nothing is ever culled.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FixedConfig {
    /// What germinates when, in order of epoch (default: one seed after the first epoch, first slot, first offer).
    pub germinations: Vec<FixedGermination>,
    /// Length of shadow training (epochs, default 5).
    pub training_epochs: u64,
    /// Length of the ramp from 0 to 1 (epochs, default 3).
    pub ramp_epochs: u64,
    /// Length of holding (epochs, default 3).
    pub holding_epochs: u64,
    /// Shape of the ramp: `linear`, `cosine` or `sigmoid` (default `linear`).
    pub curve: AlphaCurve,
    /// A pause in the life of every seed (default: none).
    pub pause: Option<FixedPause>,
}

/// For how long seeds of the schedule are taken out of the computation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FixedPause {
    /// Age of a seed at which it begins (epochs since germination).
    pub age_epochs: u64,
    /// Its length (epochs); the schedule of the seed stands still meanwhile.
    pub epochs: u64,
}

/// One entry of the fixed schedule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FixedGermination {
    /// Due once this many epochs are completed.
    pub epoch: u64,
    /// Where; absent means the first free slot that offers the blueprint.
    #[serde(default)]
    pub slot: Option<SlotId>,
    /// What; absent means the first offer.
    #[serde(default)]
    pub blueprint: Option<BlueprintId>,
}

/// What a schedule remembers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FixedMemory {
    /// Entries of the schedule that germinated (count).
    num_germinated: usize,
}

impl Default for FixedConfig {
    fn default() -> Self {
        Self {
            germinations: vec![FixedGermination { epoch: 1, slot: None, blueprint: None }],
            training_epochs: 5,
            ramp_epochs: 3,
            holding_epochs: 3,
            curve: AlphaCurve::Linear,
            pause: None,
        }
    }
}

impl Settings for FixedConfig {
    type Memory = FixedMemory;

    fn begin(&self) -> FixedMemory {
        FixedMemory::default()
    }

    fn propose(&self, memory: &mut FixedMemory, state: &SystemState) -> Vec<Proposal> {
        let mut proposals: Vec<Proposal> = state.seeds.iter().filter_map(|seed| self.advance(seed, state)).collect();
        self.germinate(memory, state, &mut proposals);
        proposals
    }

    fn check(&self, issues: &mut Issues) {
        let mut earliest = 0;
        for (index, entry) in self.germinations.iter().enumerate() {
            issues.at_least(&format!("germinations[{index}].epoch"), entry.epoch, earliest);
            earliest = entry.epoch.max(earliest);
        }
        issues.at_least("training_epochs", self.training_epochs, 1);
        issues.at_least("ramp_epochs", self.ramp_epochs, 1);
        issues.at_least("holding_epochs", self.holding_epochs, 1);
        if let Some(FixedPause { age_epochs, epochs }) = self.pause {
            issues.at_least("pause.age_epochs", age_epochs, 1);
            issues.at_least("pause.epochs", epochs, 1);
        }
    }

    fn check_names(&self, slots: &[SlotState], issues: &mut Issues) {
        let known = slots.iter().map(|slot| slot.slot.as_str()).collect::<Vec<_>>().join(", ");
        for (index, entry) in self.germinations.iter().enumerate() {
            let key = |name: &str| format!("germinations[{index}].{name}");
            let found = entry.slot.as_ref().and_then(|wanted| slots.iter().find(|slot| slot.slot == *wanted));
            if let (Some(wanted), None) = (&entry.slot, found) {
                issues.require(false, &key("slot"), format_args!("`{wanted}`"), format_args!("one of {known}"));
            }
            if let Some(blueprint) = &entry.blueprint {
                let eligible = found.map_or_else(|| slots.iter().collect(), |slot| vec![slot]);
                issues.offered(&key("blueprint"), blueprint, &eligible);
            }
        }
    }
}

impl FixedConfig {
    fn advance(&self, seed: &SeedState, state: &SystemState) -> Option<Proposal> {
        let id = seed.seed_id;
        let FixedPause { age_epochs: from, epochs } = self.pause.unwrap_or(FixedPause { age_epochs: 0, epochs: 0 });
        let detail = || format!("{} epochs old, paused from {from} for {epochs}", seed.age_epochs);
        if seed.paused {
            let is_over = seed.age_epochs >= from.saturating_add(epochs);
            return is_over.then(|| Proposal::act(Operation::Resume { seed: id }, "schedule", detail()));
        }
        // At a later epoch where the answer of the first one was too late.
        if (from..from.saturating_add(epochs)).contains(&seed.age_epochs) && seed.stage.is_live() {
            return Some(Proposal::act(Operation::Pause { seed: id }, "schedule", detail()));
        }
        let (wanted, operation) = match seed.stage {
            SeedStage::Germinated => (0, Operation::StartTraining { seed: id }),
            SeedStage::Training => {
                let ramp = full_ramp(self.ramp_epochs, self.curve, state);
                (self.training_epochs, Operation::StartBlending { seed: id, ramp })
            }
            SeedStage::Blending if acts_in_full(seed) => (self.ramp_epochs, Operation::Hold { seed: id }),
            SeedStage::Holding => (self.holding_epochs, Operation::Fossilize { seed: id }),
            SeedStage::Blending
            | SeedStage::Dormant
            | SeedStage::Fossilized
            | SeedStage::Pruned
            | SeedStage::Embargoed
            | SeedStage::Resetting => return None,
        };
        let detail = || format!("{} epochs in {}, scheduled {wanted}", seed.epochs_in_stage, seed.stage);
        (seed.epochs_in_stage >= wanted).then(|| Proposal::act(operation, "schedule", detail()))
    }

    fn germinate(&self, memory: &mut FixedMemory, state: &SystemState, proposals: &mut Vec<Proposal>) {
        let mut taken: Vec<SlotId> = Vec::new();
        while let Some(entry) = self.germinations.get(memory.num_germinated) {
            if state.epoch.0 < entry.epoch {
                return;
            }
            let detail = format!("entry {} due at epoch {}", memory.num_germinated, entry.epoch);
            let Some((slot, blueprint)) = place(entry, state, &taken) else {
                proposals.push(Proposal::wait("schedule_blocked", detail));
                return;
            };
            taken.push(slot.clone());
            memory.num_germinated += 1;
            proposals.push(Proposal::act(Operation::germinate(slot, blueprint), "schedule", detail));
        }
    }
}

/// The first free slot that satisfies the entry, with the blueprint to put there.
fn place(entry: &FixedGermination, state: &SystemState, taken: &[SlotId]) -> Option<(SlotId, BlueprintId)> {
    state
        .slots
        .iter()
        .filter(|slot| slot.occupant.is_none() && !taken.contains(&slot.slot))
        .filter(|slot| entry.slot.as_ref().is_none_or(|wanted| *wanted == slot.slot))
        .find_map(|slot| {
            let wanted = |blueprint: &BlueprintId| entry.blueprint.as_ref().is_none_or(|wanted| wanted == blueprint);
            let offer = slot.offers.iter().find(|offer| wanted(&offer.blueprint))?;
            Some((slot.slot.clone(), offer.blueprint.clone()))
        })
}
