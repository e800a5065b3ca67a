//! The control by dice: random legal actions from a seeded generator.

use leyline::command::{AlphaCurve, Operation};
use leyline::seed::{SeedStage, SeedState, SlotState};
use leyline::state::SystemState;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use crate::issues::Issues;
use crate::policy::proposal::{acts_in_full, full_ramp, live_seeds};
use crate::policy::{Proposal, Settings};

/// Acts on each live seed with a given probability, by a legal operation drawn uniformly, and germinates a uniformly
/// drawn blueprint in a uniformly drawn free slot with the same probability.
///
/// The only legal operation on a seed whose ramp still runs is to cull it, so of the seeds that start to blend about
/// `(1 − rate)^(ramp epochs)` come to act in full.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RandomConfig {
    /// Seed of the generator (any number, default 0).
    pub seed: u64,
    /// Probability per decision that a live seed is acted on, and that something germinates (in `[0, 1]`,
    /// default 0.2).
    pub rate: f64,
    /// Seeds that may live at once (count, default 2).
    pub max_live_seeds: u64,
    /// Length of the ramp from 0 to 1 (epochs, default 3).
    pub ramp_epochs: u64,
    /// Shape of the ramp: `linear`, `cosine` or `sigmoid` (default `linear`).
    pub curve: AlphaCurve,
}

/// What the dice remember.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomMemory {
    rng: ChaCha8Rng,
}

impl RandomMemory {
    fn fires(&mut self, rate: f64) -> bool {
        self.rng.random_bool(rate)
    }

    /// Draws from a slice that is not empty.
    fn draw<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.rng.random_range(0..from.len())]
    }
}

impl Default for RandomConfig {
    fn default() -> Self {
        Self { seed: 0, rate: 0.2, max_live_seeds: 2, ramp_epochs: 3, curve: AlphaCurve::Linear }
    }
}

impl RandomConfig {
    fn moves(&self, seed: &SeedState, state: &SystemState) -> Vec<Operation> {
        let id = seed.seed_id;
        let onward = match seed.stage {
            SeedStage::Germinated => Some(Operation::StartTraining { seed: id }),
            SeedStage::Training => {
                let ramp = full_ramp(self.ramp_epochs, self.curve, state);
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

impl Settings for RandomConfig {
    type Memory = RandomMemory;

    fn begin(&self) -> RandomMemory {
        RandomMemory { rng: ChaCha8Rng::seed_from_u64(self.seed) }
    }

    fn propose(&self, memory: &mut RandomMemory, state: &SystemState) -> Vec<Proposal> {
        let mut proposals = Vec::new();
        for seed in state.seeds.iter().filter(|seed| seed.stage.is_live()) {
            if memory.fires(self.rate) {
                let operation = memory.draw(&self.moves(seed, state)).clone();
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
        if num_live < self.max_live_seeds && !free.is_empty() && memory.fires(self.rate) {
            let slot = *memory.draw(&free);
            let blueprint = memory.draw(&slot.offers).blueprint.clone();
            let detail = format!("one of {} offers in one of {} free slots", slot.offers.len(), free.len());
            proposals.push(Proposal::act(Operation::germinate(slot.slot.clone(), blueprint), "random", detail));
        }
        proposals
    }

    fn check(&self, issues: &mut Issues) {
        issues.within("rate", self.rate, 0.0..=1.0);
        issues.at_least("max_live_seeds", self.max_live_seeds, 1);
        issues.at_least("ramp_epochs", self.ramp_epochs, 1);
    }
}
