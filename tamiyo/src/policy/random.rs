//! The control by dice: random legal actions from a seeded generator.

use leyline::command::Operation;
use leyline::seed::{SeedStage, SeedState, SlotState};
use leyline::state::SystemState;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use crate::config::{PolicyKind, RandomConfig};
use crate::error::Error;
use crate::policy::proposal::{acts_in_full, full_ramp, live_seeds};
use crate::policy::{Memory, Proposal, Proposer};

/// Acts on each live seed with a given probability, by a legal operation drawn uniformly, and germinates a uniformly
/// drawn blueprint in a uniformly drawn free slot with the same probability.
///
/// The only legal operation on a seed whose ramp still runs is to cull it, so of the seeds that start to blend about
/// `(1 − rate)^(ramp epochs)` come to act in full.
#[derive(Debug, Clone)]
pub struct Random {
    config: RandomConfig,
    memory: RandomMemory,
}

/// What [`Random`] remembers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomMemory {
    rng: ChaCha8Rng,
}

impl Random {
    /// The generator at its start.
    #[must_use]
    pub fn new(config: RandomConfig) -> Self {
        let memory = RandomMemory { rng: ChaCha8Rng::seed_from_u64(config.seed) };
        Self { config, memory }
    }

    fn fires(&mut self) -> bool {
        self.memory.rng.random_bool(self.config.rate)
    }

    /// Draws from a slice that is not empty.
    fn draw<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.memory.rng.random_range(0..from.len())]
    }

    fn moves(&self, seed: &SeedState, state: &SystemState) -> Vec<Operation> {
        let id = seed.seed_id;
        let onward = match seed.stage {
            SeedStage::Germinated => Some(Operation::StartTraining { seed: id }),
            SeedStage::Training => {
                let ramp = full_ramp(self.config.ramp_epochs, self.config.curve, state);
                Some(Operation::StartBlending { seed: id, ramp })
            }
            SeedStage::Blending => acts_in_full(seed).then_some(Operation::Hold { seed: id }),
            SeedStage::Holding => Some(Operation::Fossilize { seed: id }),
            SeedStage::Dormant
            | SeedStage::Fossilized
            | SeedStage::Pruned
            | SeedStage::Embargoed
            | SeedStage::Resetting => return Vec::new(),
        };
        onward.into_iter().chain([Operation::Cull { seed: id }]).collect()
    }
}

impl Proposer for Random {
    fn kind(&self) -> PolicyKind {
        PolicyKind::Random
    }

    fn propose(&mut self, state: &SystemState) -> Vec<Proposal> {
        let mut proposals = Vec::new();
        for seed in state.seeds.iter().filter(|seed| seed.stage.is_live()) {
            if self.fires() {
                let operation = self.draw(&self.moves(seed, state)).clone();
                proposals.push(Proposal::act(
                    operation,
                    "random",
                    format!("one of the moves of a {} seed", seed.stage),
                ));
            }
        }
        let free: Vec<&SlotState> =
            state.slots.iter().filter(|slot| slot.occupant.is_none() && !slot.offers.is_empty()).collect();
        let num_live = live_seeds(state, &proposals).count() as u64;
        if num_live < self.config.max_live_seeds && !free.is_empty() && self.fires() {
            let slot = *self.draw(&free);
            let blueprint = self.draw(&slot.offers).blueprint.clone();
            let detail = format!("one of {} offers in one of {} free slots", slot.offers.len(), free.len());
            proposals.push(Proposal::act(Operation::germinate(slot.slot.clone(), blueprint), "random", detail));
        }
        proposals
    }

    fn memory(&self) -> Memory {
        Memory::Random(self.memory.clone())
    }

    fn recall(&mut self, memory: Memory) -> Result<(), Error> {
        match memory {
            Memory::Random(memory) => {
                self.memory = memory;
                Ok(())
            }
            other @ (Memory::Heuristic(_) | Memory::Off | Memory::Fixed(_)) => Err(other.mismatch(self.kind())),
        }
    }
}
