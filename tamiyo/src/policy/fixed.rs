//! The control by the clock: seeds germinate at given epochs and spend fixed times in each stage, whatever is measured.

use leyline::command::Operation;
use leyline::id::{BlueprintId, SlotId};
use leyline::seed::{SeedStage, SeedState};
use leyline::state::SystemState;
use serde::{Deserialize, Serialize};

use crate::config::{FixedConfig, FixedGermination, PolicyKind};
use crate::error::Error;
use crate::policy::proposal::{acts_in_full, full_ramp};
use crate::policy::{Memory, Proposal, Proposer};

/// Walks a schedule.
///
/// An entry that is due and finds no free slot with its blueprint stays due; entries germinate in their order, so a
/// later one never overtakes. Nothing is ever culled.
#[derive(Debug, Clone)]
pub struct Fixed {
    config: FixedConfig,
    memory: FixedMemory,
}

/// What [`Fixed`] remembers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FixedMemory {
    /// Entries of the schedule that germinated (count).
    num_germinated: usize,
}

impl Fixed {
    /// The schedule from its start.
    #[must_use]
    pub fn new(config: FixedConfig) -> Self {
        Self { config, memory: FixedMemory::default() }
    }

    fn advance(&self, seed: &SeedState, state: &SystemState) -> Option<Proposal> {
        let id = seed.seed_id;
        let (wanted, operation) = match seed.stage {
            SeedStage::Germinated => (0, Operation::StartTraining { seed: id }),
            SeedStage::Training => {
                let ramp = full_ramp(self.config.ramp_epochs, self.config.curve, state);
                (self.config.training_epochs, Operation::StartBlending { seed: id, ramp })
            }
            SeedStage::Blending if acts_in_full(seed) => (self.config.ramp_epochs, Operation::Hold { seed: id }),
            SeedStage::Holding => (self.config.holding_epochs, Operation::Fossilize { seed: id }),
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

    fn germinate(&mut self, state: &SystemState, proposals: &mut Vec<Proposal>) {
        let mut taken: Vec<SlotId> = Vec::new();
        while let Some(entry) = self.config.germinations.get(self.memory.num_germinated) {
            if state.epoch.0 < entry.epoch {
                return;
            }
            let detail = format!("entry {} due at epoch {}", self.memory.num_germinated, entry.epoch);
            let Some((slot, blueprint)) = place(entry, state, &taken) else {
                proposals.push(Proposal::wait("schedule_blocked", detail));
                return;
            };
            taken.push(slot.clone());
            self.memory.num_germinated += 1;
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

impl Proposer for Fixed {
    fn kind(&self) -> PolicyKind {
        PolicyKind::Fixed
    }

    fn propose(&mut self, state: &SystemState) -> Vec<Proposal> {
        let mut proposals: Vec<Proposal> = state.seeds.iter().filter_map(|seed| self.advance(seed, state)).collect();
        self.germinate(state, &mut proposals);
        proposals
    }

    fn memory(&self) -> Memory {
        Memory::Fixed(self.memory)
    }

    fn recall(&mut self, memory: Memory) -> Result<(), Error> {
        match memory {
            Memory::Fixed(memory) => {
                self.memory = memory;
                Ok(())
            }
            other @ (Memory::Heuristic(_) | Memory::Off | Memory::Random(_)) => Err(other.mismatch(self.kind())),
        }
    }
}
