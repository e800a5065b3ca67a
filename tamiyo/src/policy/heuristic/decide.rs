//! The order of a decision: observe, judge every seed, then perhaps germinate.

use leyline::command::Operation;
use leyline::id::EpochIndex;
use leyline::state::SystemState;
use serde::{Deserialize, Serialize};

use crate::config::{HeuristicConfig, PolicyKind};
use crate::error::Error;
use crate::evidence::EvidenceLog;
use crate::policy::heuristic::placement::Ledger;
use crate::policy::heuristic::rules::{LAST_BOUNDARY, epochs_left, judge};
use crate::policy::proposal::live_seeds;
use crate::policy::{Memory, Proposal, Proposer};
use crate::tracker::{Signals, Tracker};

/// Grows seeds on measured evidence; the rules are in the [module](crate::policy::heuristic).
#[derive(Debug, Clone)]
pub struct Heuristic {
    config: HeuristicConfig,
    memory: HeuristicMemory,
}

/// What [`Heuristic`] remembers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeuristicMemory {
    tracker: Tracker,
    evidence: EvidenceLog,
    ledger: Ledger,
    /// Of the host at the first decision, before anything grew.
    initial_parameters: Option<u64>,
    last_germination: Option<EpochIndex>,
}

impl Heuristic {
    /// The policy with nothing observed yet.
    #[must_use]
    pub fn new(config: HeuristicConfig) -> Self {
        Self { config, memory: HeuristicMemory::default() }
    }

    fn observe(&mut self, state: &SystemState) {
        let Self { config, memory } = self;
        memory.tracker.observe(&config.plateau, &config.stability, state.epoch, state.validation.as_ref());
        memory.initial_parameters.get_or_insert(state.host_parameters);
        let keep = config.evidence.window.max(config.blending.harmful_measurements);
        for ended in memory.evidence.observe(&config.evidence, keep, state.epoch, &state.seeds) {
            memory.ledger.record_end(&ended, config.germination.cooldown_germinations);
        }
    }

    /// The germination of this epoch, or the first reason against it.
    fn germinate(&mut self, state: &SystemState, proposals: &[Proposal]) -> Proposal {
        let config = &self.config.germination;
        let signals = self.memory.tracker.signals(&self.config.stability);
        let left = epochs_left(state);
        let needed = self.config.life_epochs() + LAST_BOUNDARY;
        if left < needed {
            return Proposal::wait("too_late", format!("{left} epochs left, a life takes {needed}"));
        }
        if state.epoch.0 < config.min_epoch {
            return Proposal::wait("too_early", format!("epoch {}, first at {}", state.epoch, config.min_epoch));
        }
        if self.memory.last_germination == Some(state.epoch) {
            return Proposal::wait("germinated_already", format!("in epoch {}", state.epoch));
        }
        let Some(loss) = signals.loss else {
            return Proposal::wait("validation_unmeasured", "no finite validation loss");
        };
        if !signals.stabilized {
            let (stable, wanted) = (signals.stable_epochs, self.config.stability.epochs);
            return Proposal::wait("not_stabilized", format!("{stable} of {wanted} stable epochs"));
        }
        let since = signals.epochs_since_improvement;
        let patience = self.config.plateau.patience_epochs;
        if since < patience {
            return Proposal::wait("improving", format!("{since} of {patience} epochs without improvement"));
        }
        let live: Vec<_> = live_seeds(state, proposals).collect();
        if live.len() as u64 >= config.max_live_seeds {
            return Proposal::wait("seeds_at_limit", format!("{} live seeds", live.len()));
        }
        let present = state.host_parameters + live.iter().map(|seed| seed.num_parameters).sum::<u64>();
        let limit = self.parameter_limit();
        let Some(choice) = self.memory.ledger.choose(config, &state.slots, limit.saturating_sub(present)) else {
            let free = state.slots.iter().filter(|slot| slot.occupant.is_none()).count();
            let detail = format!("{free} free slots, {present} parameters of at most {limit}");
            return Proposal::wait("nothing_to_place", detail);
        };
        let detail = format!("loss {loss:.6}, {since} epochs without improvement, {choice}");
        self.memory.ledger.record_germination(&choice.slot, &choice.blueprint);
        self.memory.last_germination = Some(state.epoch);
        Proposal::act(Operation::germinate(choice.slot, choice.blueprint), "plateau", detail)
    }

    fn parameter_limit(&self) -> u64 {
        let config = &self.config.germination;
        let initial = self.memory.initial_parameters.unwrap_or(0) as f64;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count; saturates")]
        let relative = (initial * config.max_parameter_ratio) as u64;
        config.max_parameters.map_or(relative, |absolute| absolute.min(relative))
    }
}

impl Proposer for Heuristic {
    fn kind(&self) -> PolicyKind {
        PolicyKind::Heuristic
    }

    fn propose(&mut self, state: &SystemState) -> Vec<Proposal> {
        self.observe(state);
        let mut proposals: Vec<Proposal> =
            state.seeds.iter().filter_map(|seed| judge(&self.config, &self.memory.evidence, state, seed)).collect();
        let germination = self.germinate(state, &proposals);
        proposals.push(germination);
        proposals
    }

    fn signals(&self) -> Option<Signals> {
        Some(self.memory.tracker.signals(&self.config.stability))
    }

    fn memory(&self) -> Memory {
        Memory::Heuristic(self.memory.clone())
    }

    fn recall(&mut self, memory: Memory) -> Result<(), Error> {
        match memory {
            Memory::Heuristic(memory) => {
                self.memory = memory;
                Ok(())
            }
            other @ (Memory::Off | Memory::Fixed(_) | Memory::Random(_)) => Err(other.mismatch(self.kind())),
        }
    }
}
