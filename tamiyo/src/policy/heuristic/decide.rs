//! The order of a decision: observe, judge every seed, then perhaps germinate.

use leyline::command::Operation;
use leyline::id::{BlueprintId, EpochIndex, SlotId};
use leyline::seed::{Confirming, SeedStage, SeedState, SlotState};
use leyline::state::SystemState;
use serde::{Deserialize, Serialize};

use crate::evidence::EvidenceLog;
use crate::issues::Issues;
use crate::policy::heuristic::HeuristicConfig;
use crate::policy::heuristic::budget::Compute;
use crate::policy::heuristic::placement::{Ledger, Offered};
use crate::policy::heuristic::rules::{LAST_BOUNDARY, epochs_left, judge};
use crate::policy::proposal::live_seeds;
use crate::policy::{Proposal, Settings};
use crate::tracker::{Signals, Tracker};

/// What the policy remembers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeuristicMemory {
    pub(in crate::policy) tracker: Tracker,
    pub(in crate::policy) evidence: EvidenceLog,
    pub(in crate::policy) ledger: Ledger,
    /// Of the host at the first decision, before anything grew.
    pub(in crate::policy) initial_parameters: Option<u64>,
    pub(in crate::policy) last_germination: Option<EpochIndex>,
    /// Epochs of seeds in the shadow so far, over all of them (count).
    #[serde(default)]
    pub(in crate::policy) shadow_epochs: u64,
    /// Compute so far.
    #[serde(default)]
    pub(in crate::policy) compute: Compute,
    /// Seeds that ended since the last one that became permanent (count).
    #[serde(default)]
    pub(in crate::policy) tries_in_vain: u64,
}

/// Which reasons count against a germination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::policy) enum Asks {
    /// All of them.
    All,
    /// Those that hold whatever policy decides: not that it would be better to wait.
    Limits,
}

impl HeuristicMemory {
    /// Takes in what will germinate.
    pub(in crate::policy) fn record_germination(
        &mut self,
        config: &HeuristicConfig,
        state: &SystemState,
        (slot, blueprint): (&SlotId, &BlueprintId),
    ) {
        self.compute.germinated(&config.looking, state);
        self.ledger.record_germination(slot, blueprint);
        self.last_germination = Some(state.epoch);
    }
}

impl HeuristicConfig {
    pub(in crate::policy) fn observe(&self, memory: &mut HeuristicMemory, state: &SystemState) {
        let config = self;
        memory.tracker.observe(&config.plateau, &config.stability, state.epoch, state.validation.as_ref());
        memory.initial_parameters.get_or_insert(state.host_parameters);
        let keep = config.evidence.window.max(config.blending.harmful_measurements);
        let in_shadow = |seed: &&SeedState| seed.stage == SeedStage::Training && !seed.paused;
        memory.compute.observe(&config.looking, state, memory.shadow_epochs);
        memory.shadow_epochs += state.seeds.iter().filter(in_shadow).count() as u64;
        for ended in memory.evidence.observe(&config.evidence, keep, state.epoch, &state.seeds) {
            memory.tries_in_vain = if ended.fossilized { 0 } else { memory.tries_in_vain + 1 };
            memory.ledger.record_end(&ended, config.germination.cooldown_germinations);
        }
    }

    /// The germination of this epoch, or the first reason against it.
    fn germinate(&self, memory: &mut HeuristicMemory, state: &SystemState, proposals: &[Proposal]) -> Proposal {
        if let Some(against) = self.against(memory, state, proposals, Asks::All) {
            return against;
        }
        let signals = memory.tracker.signals(&self.plateau, &self.stability);
        let room = self.room(memory, state, proposals);
        let mut offers = room.offers();
        let Some(choice) = memory.ledger.choose(&self.germination, &offers) else { return room.refusal() };
        offers.retain(|offered| self.germination.rank(&offered.offer.blueprint).is_some());
        if let Some(against) = self.does_not_pay(state, &offers) {
            return against;
        }
        let (loss, since) = (signals.loss.unwrap_or(f64::NAN), signals.epochs_since_improvement);
        let detail = format!("loss {loss:.6}, {since} epochs without improvement, {choice}");
        let (slot, blueprint) = (choice.slot, choice.blueprint);
        memory.record_germination(self, state, (slot, blueprint));
        Proposal::act(Operation::germinate(slot.clone(), blueprint.clone()), "plateau", detail)
    }

    /// Why none of these offers, all of which may be taken, is worth a look by what earlier runs say.
    pub(in crate::policy) fn does_not_pay(&self, state: &SystemState, offers: &[Offered<'_>]) -> Option<Proposal> {
        // Without earlier runs every offer pays.
        let grown = state.slots.iter().any(|slot| slot.num_fossilized > 0);
        let pays = |offered: &Offered<'_>| self.earlier.pays(grown, &offered.slot.slot, offered.offer);
        if self.earlier.tries.is_empty() || offers.iter().any(pays) {
            return None;
        }
        let (least, beside) = (self.earlier.min_chance, if grown { "beside a permanent one" } else { "as the first" });
        Some(Proposal::wait("does_not_pay", format!("no seed has a chance of {least} to be kept {beside}")))
    }

    /// The first reason why nothing germinates in this epoch.
    pub(in crate::policy) fn against(
        &self,
        memory: &HeuristicMemory,
        state: &SystemState,
        proposals: &[Proposal],
        asks: Asks,
    ) -> Option<Proposal> {
        let config = &self.germination;
        let signals = memory.tracker.signals(&self.plateau, &self.stability);
        let wait = |rule, detail: String| Some(Proposal::wait(rule, detail));
        let left = epochs_left(state);
        let needed = self.life_epochs() + LAST_BOUNDARY;
        if left < needed {
            return wait("too_late", format!("{left} epochs left, a life takes {needed}"));
        }
        let first = config.first_epoch(state.num_epochs);
        if asks == Asks::All && state.epoch.0 < first {
            return wait("too_early", format!("epoch {}, first at {first}", state.epoch));
        }
        if memory.last_germination == Some(state.epoch) {
            return wait("germinated_already", format!("in epoch {}", state.epoch));
        }
        if signals.loss.is_none() {
            return wait("validation_unmeasured", "no finite validation loss".to_owned());
        }
        if asks == Asks::All && !signals.stabilized {
            let (stable, wanted) = (signals.stable_epochs, self.stability.epochs);
            return wait("not_stabilized", format!("{stable} of {wanted} stable epochs"));
        }
        let since = signals.epochs_since_improvement;
        let patience = self.plateau.patience_epochs;
        if asks == Asks::All && since < patience {
            return wait("improving", format!("{since} of {patience} epochs without improvement"));
        }
        let live: Vec<_> = live_seeds(state, proposals).collect();
        if live.len() as u64 >= config.max_live_seeds {
            return wait("seeds_at_limit", format!("{} live seeds", live.len()));
        }
        if let Some(detail) = state.confirming.filter(|next| !next.has_power()).map(powerless) {
            return wait("no_power", detail);
        }
        if memory.tries_in_vain >= self.looking.max_tries {
            return wait("tries_in_vain", format!("{} seeds in a row", memory.tries_in_vain));
        }
        None
    }

    pub(super) fn parameter_limit(&self, memory: &HeuristicMemory) -> u64 {
        self.germination.parameter_limit(memory.initial_parameters.unwrap_or(0))
    }
}

/// Why nothing could be proven.
fn powerless(next: Confirming) -> String {
    let Confirming { num_samples, needed_samples, num_read, .. } = next;
    format!(
        "{num_samples} samples to confirm a gain on, the smallest that matters needs {needed_samples} after {num_read} seeds; expected more validation data"
    )
}

impl Settings for HeuristicConfig {
    type Memory = HeuristicMemory;

    fn begin(&self) -> HeuristicMemory {
        HeuristicMemory::default()
    }

    fn propose(&self, memory: &mut HeuristicMemory, state: &SystemState) -> Vec<Proposal> {
        self.observe(memory, state);
        let mut proposals: Vec<Proposal> =
            state.seeds.iter().filter_map(|seed| judge(self, &memory.evidence, state, seed)).collect();
        proposals.extend(self.spent(memory, state, &proposals));
        let germination = self.germinate(memory, state, &proposals);
        proposals.push(germination);
        proposals
    }

    fn signals(&self, memory: &HeuristicMemory) -> Option<Signals> {
        Some(memory.tracker.signals(&self.plateau, &self.stability))
    }

    fn check_names(&self, slots: &[SlotState], issues: &mut Issues) {
        for (index, blueprint) in self.germination.blueprints.iter().enumerate() {
            let key = format!("germination.blueprints[{index}]");
            issues.offered(&key, blueprint, &slots.iter().collect::<Vec<_>>());
        }
        self.earlier.check_names(slots, issues);
    }

    fn check(&self, issues: &mut Issues) {
        let Self {
            plateau,
            stability,
            evidence,
            germination,
            training,
            blending,
            holding,
            looking,
            earlier,
            closing_epochs,
            gates: _,
        } = self;
        issues.at_least("plateau.patience_epochs", plateau.patience_epochs, 1);
        issues.within("plateau.min_relative_gain", plateau.min_relative_gain, 0.0..=1.0);
        issues.within("stability.max_relative_rise", stability.max_relative_rise, 0.0..=1.0);
        issues.within("stability.max_relative_fall", stability.max_relative_fall, 0.0..=1.0);
        issues.within("evidence.window", evidence.window, 1..=1000);
        issues.within("evidence.confidence_z", evidence.confidence_z, 0.0..=10.0);
        issues.within("germination.min_share", germination.min_share, 0.0..=1.0);
        issues.at_least("germination.max_live_seeds", germination.max_live_seeds, 1);
        issues.within("germination.max_parameter_ratio", germination.max_parameter_ratio, 1.0..=1e6);
        issues.at_least("training.min_epochs", training.min_epochs, 1);
        issues.at_least("training.max_epochs", training.max_epochs, training.min_epochs);
        issues.within("training.min_gradient_health", training.min_gradient_health, 0.0..=1.0);
        issues.at_least("blending.ramp_epochs", blending.ramp_epochs, 1);
        issues.within("blending.harmful_measurements", blending.harmful_measurements, 1..=1000);
        issues.at_least("holding.min_epochs", holding.min_epochs, 1);
        issues.at_least("holding.max_epochs", holding.max_epochs, holding.min_epochs);
        issues.within("holding.min_gain", holding.min_gain, 0.0..=1e6);
        issues.within("looking.max_share", looking.max_share, 0.0..=1.0);
        issues.within("looking.epoch_cost", looking.epoch_cost, 0.0..=1000.0);
        issues.at_least("looking.max_tries", looking.max_tries, 1);
        earlier.check(issues);
        issues.at_least("closing_epochs", *closing_epochs, 1);
    }
}
