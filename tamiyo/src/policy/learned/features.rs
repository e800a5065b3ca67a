//! What the network is shown, number by number.
//!
//! A row has the features of the run, then those of one seed, then those of one slot or offer; of what it is not about, and of what was
//! not measured, all are 0, and a flag says so. Sizes and times are shown as ln(1 + x), gains as fractions of the loss. Networks are
//! trained for one list: a change of it is a new [`FEATURES_VERSION`].

use leyline::seed::{SeedStage, SeedState, SlotState};
use leyline::state::SystemState;

use crate::policy::HeuristicConfig;
use crate::policy::heuristic::decide::HeuristicMemory;
use crate::policy::heuristic::placement::{Offered, SlotRecord};
use crate::policy::heuristic::rules::{epochs_left, gate_is_open};

/// Version of [`FEATURES`].
pub const FEATURES_VERSION: u32 = 2;

/// Numbers in a row.
pub const NUM_FEATURES: usize = FEATURES.len();

/// A row of features, in the order of [`FEATURES`]; all finite, and within ±1000.
pub type Row = [f32; NUM_FEATURES];

const NUM_OF_RUN: usize = 19;
const NUM_OF_SEED: usize = 20;
const NUM_OF_OFFER: usize = 6;
/// Largest size of a feature.
const LARGEST: f64 = 1e3;

/// Every feature: its name, and its unit.
pub const FEATURES: [(&str, &str); NUM_OF_RUN + NUM_OF_SEED + 4 + NUM_OF_OFFER] = [
    ("run.progress", "fraction of the epochs"),
    ("run.epochs_left", "ln(1 + epochs)"),
    ("run.lives_left", "epochs left / shortest life of a seed, at most 10"),
    ("run.loss_fallen", "ln(first validation loss / last)"),
    ("run.loss_above_best", "ln(last validation loss / best)"),
    ("run.generalization_gap", "ln(validation loss / training loss)"),
    ("run.generalization_gap_measured", "flag"),
    ("run.epochs_since_improvement", "ln(1 + epochs)"),
    ("run.stable_epochs", "ln(1 + epochs)"),
    ("run.stabilized", "flag"),
    ("run.gradient_norm", "ln(1 + norm)"),
    ("run.gradient_norm_measured", "flag"),
    ("run.conflict_ratio", "fraction"),
    ("run.conflict_ratio_measured", "flag"),
    ("run.live_seeds", "count"),
    ("run.permanent_seeds", "count"),
    ("run.parameters", "ln(now / at the first decision)"),
    ("run.tries_in_vain", "ln(1 + seeds)"),
    ("run.looking_spent", "fraction of what is allowed"),
    ("seed.is_germinated", "flag"),
    ("seed.is_training", "flag"),
    ("seed.is_blending", "flag"),
    ("seed.is_holding", "flag"),
    ("seed.epochs_in_stage", "ln(1 + epochs)"),
    ("seed.age", "ln(1 + epochs)"),
    ("seed.alpha", "fraction"),
    ("seed.gain", "fraction of the validation loss"),
    ("seed.gain_over_error", "standard errors, within ±10"),
    ("seed.gain_measured", "flag"),
    ("seed.harmful_streak", "measurements"),
    ("seed.gradient_health", "fraction"),
    ("seed.gradient_over_host", "ln(1 + ratio)"),
    ("seed.gradient_measured", "flag"),
    ("seed.gate_open", "flag"),
    ("seed.gate_score", "fraction"),
    ("seed.confirmed", "flag"),
    ("seed.not_confirmed", "flag"),
    ("seed.stability", "fraction"),
    ("seed.parameters", "ln(1 + parameters / parameters of the network)"),
    ("place.depth", "fraction of the network, from its inputs"),
    ("place.permanent_seeds", "ln(1 + seeds)"),
    ("place.germinations", "ln(1 + seeds)"),
    ("place.offers", "ln(1 + offers)"),
    ("offer.parameters", "ln(1 + parameters / parameters of the network)"),
    ("offer.tried", "flag"),
    ("offer.mean_gain", "fraction of the validation loss"),
    ("offer.gain_measured", "flag"),
    ("offer.standing_back", "ln(1 + germinations of others)"),
    ("offer.rank", "place among the preferred blueprints"),
];

/// What rows of one decision have in common.
pub(super) struct Shown<'a> {
    limits: &'a HeuristicConfig,
    memory: &'a HeuristicMemory,
    state: &'a SystemState,
    /// The row about the run alone.
    run: Row,
    /// To measure gains by, nats per sample.
    loss: f64,
}

fn log1p(count: u64) -> f64 {
    (count as f64).ln_1p()
}

fn flag(is: bool) -> f64 {
    f64::from(u8::from(is))
}

/// ln(a / b) of two positive numbers; 0 where there are none.
fn log_ratio(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    let positive = |x: &f64| x.is_finite() && *x > 0.0;
    Some((a.filter(positive)? / b.filter(positive)?).ln())
}

/// The row with `numbers` from `offset` on.
fn with(mut row: Row, numbers: &[f64], offset: usize) -> Row {
    for (place, number) in row[offset..].iter_mut().zip(numbers) {
        let number = if number.is_finite() { number.clamp(-LARGEST, LARGEST) } else { 0.0 };
        #[expect(clippy::cast_possible_truncation, reason = "it is small; rounding is all that happens")]
        let number = number as f32;
        *place = number;
    }
    row
}

impl<'a> Shown<'a> {
    pub(super) fn of(
        limits: &'a HeuristicConfig,
        memory: &'a HeuristicMemory,
        first_loss: Option<f64>,
        state: &'a SystemState,
    ) -> Self {
        let signals = memory.tracker.signals(&limits.plateau, &limits.stability);
        let left = epochs_left(state);
        let train = state.train.as_ref().map(|score| score.loss);
        let gap = log_ratio(signals.loss, train);
        let norm = state.gradient_norm.filter(|norm| norm.is_finite() && *norm >= 0.0);
        let conflicts = state.conflict_ratio.filter(|ratio| ratio.is_finite());
        let live = state.seeds.iter().filter(|seed| seed.stage.is_live()).count();
        let permanent = state.slots.iter().map(|slot| slot.num_fossilized).sum::<u64>();
        let grown = (state.host_parameters.max(1) as f64, memory.initial_parameters.unwrap_or(0).max(1) as f64);
        let run: [f64; NUM_OF_RUN] = [
            state.epoch.0 as f64 / state.num_epochs.max(1) as f64,
            log1p(left),
            (left as f64 / limits.life_epochs() as f64).min(10.0),
            log_ratio(first_loss, signals.loss).unwrap_or(0.0),
            log_ratio(signals.loss, signals.best_loss).unwrap_or(0.0),
            gap.unwrap_or(0.0),
            flag(gap.is_some()),
            log1p(signals.epochs_since_improvement),
            log1p(signals.stable_epochs),
            flag(signals.stabilized),
            norm.map_or(0.0, f64::ln_1p),
            flag(norm.is_some()),
            conflicts.unwrap_or(0.0),
            flag(conflicts.is_some()),
            live as f64,
            permanent as f64,
            (grown.0 / grown.1).ln(),
            log1p(memory.tries_in_vain),
            limits.part_spent(memory, state).min(10.0),
        ];
        let loss = signals.loss.filter(|loss| *loss > 0.0).unwrap_or(1.0);
        Self { limits, memory, state, run: with([0.0; NUM_FEATURES], &run, 0), loss }
    }

    fn share_of_network(&self, num_parameters: u64) -> f64 {
        (num_parameters as f64 / self.state.host_parameters.max(1) as f64).ln_1p()
    }

    /// About the run alone.
    pub(super) fn run(&self) -> Row {
        self.run
    }

    /// About a seed.
    pub(super) fn seed(&self, seed: &SeedState) -> Row {
        let evidence = &self.limits.evidence;
        let estimate = self.memory.evidence.estimate(evidence, seed.seed_id);
        let z = |gain: f64, error: f64| if error > 0.0 { (gain / error).clamp(-10.0, 10.0) } else { 0.0 };
        let gradient = seed.gradient.filter(|gradient| gradient.health.is_finite());
        let next = if seed.stage == SeedStage::Training { SeedStage::Blending } else { SeedStage::Fossilized };
        let gate = seed.last_gate.as_ref().filter(|gate| gate.target == next);
        let confirmed = |passed: bool| flag(seed.confirmation.is_some_and(|confirmed| confirmed.passed == passed));
        let numbers: [f64; NUM_OF_SEED] = [
            flag(seed.stage == SeedStage::Germinated),
            flag(seed.stage == SeedStage::Training),
            flag(seed.stage == SeedStage::Blending),
            flag(seed.stage == SeedStage::Holding),
            log1p(seed.epochs_in_stage),
            log1p(seed.age_epochs),
            seed.alpha.get(),
            estimate.map_or(0.0, |estimate| estimate.mean_gain / self.loss),
            estimate.map_or(0.0, |estimate| z(estimate.mean_gain, estimate.std_error)),
            flag(estimate.is_some()),
            self.memory.evidence.harmful_streak(evidence, seed.seed_id) as f64,
            gradient.map_or(0.0, |gradient| gradient.health),
            gradient.and_then(|gradient| gradient.host_ratio).map_or(0.0, |ratio| ratio.max(0.0).ln_1p()),
            flag(gradient.is_some()),
            flag(gate_is_open(seed, next)),
            gate.map_or(0.0, |gate| gate.score),
            confirmed(true),
            confirmed(false),
            seed.stability.unwrap_or(0.0),
            self.share_of_network(seed.num_parameters),
        ];
        with(self.run, &numbers, NUM_OF_RUN)
    }

    fn place(&self, index: usize, slot: &SlotState, record: SlotRecord<'_>) -> [f64; 4] {
        let germination = &self.limits.germination;
        let may_be_used = slot.offers.iter().any(|offer| germination.rank(&offer.blueprint).is_some());
        let germinations = if may_be_used { record.num_germinations } else { 0 };
        [
            index as f64 / self.state.slots.len().saturating_sub(1).max(1) as f64,
            log1p(slot.num_fossilized),
            log1p(germinations),
            log1p(slot.offers.len() as u64),
        ]
    }

    /// About a slot.
    pub(super) fn slot(&self, index: usize, slot: &SlotState) -> Row {
        with(self.run, &self.place(index, slot, self.memory.ledger.of_slot(&slot.slot)), NUM_OF_RUN + NUM_OF_SEED)
    }

    /// About each of these blueprints, which are all of one slot.
    pub(super) fn offers(&self, offers: &[Offered<'_>]) -> Vec<Row> {
        let Some(Offered { index, slot, .. }) = offers.first() else { return Vec::new() };
        let record = self.memory.ledger.of_slot(&slot.slot);
        let place = with(self.run, &self.place(*index, slot, record), NUM_OF_RUN + NUM_OF_SEED);
        let row = |offered: &Offered<'_>| {
            let found = self.memory.ledger.candidate(&self.limits.germination, record, *offered);
            let gain = found.as_ref().and_then(|found| found.mean_gain);
            let numbers: [f64; NUM_OF_OFFER] = [
                self.share_of_network(offered.offer.num_parameters),
                flag(found.as_ref().is_some_and(|found| found.tried)),
                gain.map_or(0.0, |gain| gain / self.loss),
                flag(gain.is_some()),
                found.as_ref().map_or(0.0, |found| log1p(found.cooling)),
                found.map_or(0.0, |found| found.rank as f64),
            ];
            with(place, &numbers, NUM_FEATURES - NUM_OF_OFFER)
        };
        offers.iter().map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_list_of_features_is_another_version() {
        // FNV-1a: a network that was trained for one list is not shown another under the same number.
        let text: String = FEATURES.iter().map(|(name, unit)| format!("{name}: {unit}\n")).collect();
        let digest = text
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        assert_eq!(
            (FEATURES_VERSION, digest),
            (2, 0x4a97_203f_f2cd_4239),
            "a new list needs a new version, and its digest here"
        );
    }
}
