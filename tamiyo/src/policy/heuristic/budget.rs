//! The budget of looking: what it has cost so far, what is still to come, and what the run allows.
//!
//! Costs are operations of products, from shapes ([`Costs`](leyline::seed::Costs)), so a run decides alike on every machine. Where they are
//! not known an epoch of the network counts 1, and one of a seed in the shadow `looking.epoch_cost`.
//!
//! What is allowed is reckoned with the network as it is: a seed that becomes permanent makes all later epochs cost more, and more may be
//! looked at then; one that does not leaves the share as it was promised.

use leyline::command::Operation;
use leyline::id::{BlueprintId, EpochIndex, SlotId};
use leyline::seed::{BlueprintOffer, Cost, SeedStage, SeedState, SlotState};
use leyline::state::SystemState;
use serde::{Deserialize, Serialize};

use crate::policy::Proposal;
use crate::policy::heuristic::decide::HeuristicMemory;
use crate::policy::heuristic::placement::Offered;
use crate::policy::heuristic::rules::epochs_left;
use crate::policy::heuristic::{HeuristicConfig, LookingConfig};
use crate::policy::proposal::live_seeds;

/// What a run has cost so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(in crate::policy) struct Compute {
    network: f64,
    looking: f64,
    /// Seeds for which the samples that confirm were read (count).
    num_read: u64,
    /// The last epoch that was counted; absent before the first, and where an earlier version counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    last: Option<EpochIndex>,
}

/// What an epoch costs.
#[derive(Debug, Clone, Copy)]
struct Prices<'a> {
    state: &'a SystemState,
    epoch_cost: f64,
    /// Samples that are trained on, held out, confirm, and are passed over once more by an audit of isolation; none where costs are not
    /// known.
    samples: Option<[f64; 4]>,
}

impl<'a> Prices<'a> {
    fn of(config: &LookingConfig, state: &'a SystemState) -> Self {
        // Those of skipped steps are in no average, and were passed over all the same.
        let trained = state.samples_per_epoch.or_else(|| Some(state.train.as_ref()?.num_samples));
        let scores = trained.zip(state.validation.as_ref()).filter(|_| state.costs.is_some());
        let samples = scores.map(|(trained, validation)| {
            let trained = trained as f64;
            // A microbatch, which is at most what a step takes.
            let audited = trained / state.steps_per_epoch.max(1) as f64;
            let confirming = state.confirming.map_or(0, |next| next.num_samples);
            [trained, validation.num_samples as f64, confirming as f64, audited]
        });
        Self { state, epoch_cost: config.epoch_cost, samples }
    }

    /// An epoch of the network with its permanent seeds.
    fn network(&self) -> f64 {
        let costs = self.samples.zip(self.state.costs.as_ref());
        costs.map_or(1.0, |([trained, held_out, ..], costs)| costs.network.of_samples(trained, held_out))
    }

    /// An epoch of looking that costs so much for each sample; of one in the shadow whose cost is not known without it.
    fn epoch(&self, cost: Option<Cost>) -> f64 {
        let known = self.samples.zip(cost);
        known.map_or(self.epoch_cost * self.network(), |([trained, held_out, _, audited], cost)| {
            cost.of_samples(trained + audited, held_out)
        })
    }

    /// Once, for a seed that germinates.
    fn germination(&self) -> f64 {
        self.samples.zip(self.state.costs.as_ref()).map_or(0.0, |(_, costs)| costs.germination)
    }

    /// To read the samples that confirm.
    fn reading(&self, cost: Option<Cost>) -> f64 {
        self.samples.zip(cost).map_or(0.0, |([.., confirming, _], cost)| cost.of_samples(0.0, confirming))
    }

    fn of_offers(&self) -> OfferPrices<'a> {
        OfferPrices::of(self.state.costs.as_ref().map_or(&[], |costs| &costs.offers))
    }

    /// Of looking at a live seed as it is now.
    fn of_seed(&self, seed: &SeedState) -> Option<Cost> {
        let known = self.state.costs.iter().flat_map(|costs| &costs.seeds).find(|(of, _)| *of == seed.seed_id);
        known.map(|(_, cost)| *cost)
    }

    /// What looking took in the epoch that ended.
    fn of_the_last_epoch(&self) -> f64 {
        let trains = |seed: &SeedState| seed.stage == SeedStage::Training && !seed.paused;
        let seeds = self.state.seeds.iter().filter(|seed| trains(seed) || self.of_seed(seed).is_some());
        let attribution = self.state.costs.as_ref().map(|costs| Cost { training: costs.attribution, evaluation: 0.0 });
        let attribution = attribution.map_or(0.0, |cost| self.epoch(Some(cost)));
        seeds.map(|seed| self.epoch(self.of_seed(seed))).sum::<f64>() + attribution
    }

    /// What a seed in the shadow has still to cost before it is judged.
    fn reserved(&self, min_epochs: u64, seed: &SeedState) -> f64 {
        let (epochs, cost) = match seed.stage {
            SeedStage::Germinated => (min_epochs, self.of_offers().of_slot(&seed.slot).cost(&seed.blueprint)),
            SeedStage::Training => (min_epochs.saturating_sub(seed.epochs_in_stage), self.of_seed(seed)),
            SeedStage::Dormant
            | SeedStage::Blending
            | SeedStage::Holding
            | SeedStage::Fossilized
            | SeedStage::Pruned
            | SeedStage::Embargoed
            | SeedStage::Resetting => return 0.0,
        };
        let reading = if seed.confirmation.is_none() { self.reading(cost) } else { 0.0 };
        epochs as f64 * self.epoch(cost) + reading
    }
}

/// What offers cost, as they are told: in pieces of one slot each, so that the name of a slot is looked for among slots and not among
/// offers. Of a pair that is told twice the first cost counts.
struct OfferPrices<'a>(Vec<&'a [(SlotId, BlueprintId, Cost)]>);

/// Those of one slot.
struct SlotPrices<'a>(Vec<&'a [(SlotId, BlueprintId, Cost)]>);

impl<'a> OfferPrices<'a> {
    fn of(offers: &'a [(SlotId, BlueprintId, Cost)]) -> Self {
        Self(offers.chunk_by(|(slot, ..), (next, ..)| slot == next).collect())
    }

    fn of_slot(&self, slot: &SlotId) -> SlotPrices<'a> {
        SlotPrices(self.0.iter().copied().filter(|piece| piece[0].0 == *slot).collect())
    }
}

impl SlotPrices<'_> {
    fn cost(&self, blueprint: &BlueprintId) -> Option<Cost> {
        self.0.iter().copied().flatten().find(|(_, of, _)| of == blueprint).map(|(.., cost)| *cost)
    }
}

impl Compute {
    /// Takes in that a seed germinates.
    pub(super) fn germinated(&mut self, config: &LookingConfig, state: &SystemState) {
        self.looking += Prices::of(config, state).germination();
    }

    pub(super) fn observe(&mut self, config: &LookingConfig, state: &SystemState, shadow_epochs: u64) {
        let prices = Prices::of(config, state);
        let before = state.epoch.0.saturating_sub(1);
        if self.network <= 0.0 && before > 0 {
            // Of an earlier version, which counted epochs, or of a policy that was not asked until now.
            self.network = before as f64 * prices.network();
            self.looking = shadow_epochs as f64 * prices.epoch(None);
        }
        // An answer that came too late or failed leaves no memory, and its epoch passed all the same: as this one, it is assumed.
        let epochs = self.last.map_or(1, |last| state.epoch.0.saturating_sub(last.0)) as f64;
        self.last = Some(state.epoch);
        self.network += epochs * prices.network();
        self.looking += epochs * prices.of_the_last_epoch();
        let num_read = state.confirming.map_or(0, |next| next.num_read);
        let newly = num_read.saturating_sub(self.num_read) as f64;
        let dearest = state.costs.iter().flat_map(|costs| &costs.seeds).map(|(_, cost)| prices.reading(Some(*cost)));
        self.looking += newly * dearest.fold(0.0, f64::max);
        self.num_read = num_read;
    }
}

/// What a new seed may have and cost.
#[derive(Debug)]
pub(in crate::policy) struct Room<'a> {
    pub(in crate::policy) parameters: u64,
    present: u64,
    limit: u64,
    prices: Prices<'a>,
    min_epochs: u64,
    spent: f64,
    reserved: f64,
    allowed: f64,
}

impl<'a> Room<'a> {
    /// The offers of free slots for which there is room, slot by slot.
    pub(in crate::policy) fn offers(&self) -> Vec<Offered<'a>> {
        let prices = self.prices.of_offers();
        let free = self.prices.state.slots.iter().enumerate().filter(|(_, slot)| slot.occupant.is_none());
        free.flat_map(|(index, slot)| {
            let of_slot = prices.of_slot(&slot.slot);
            let offers = slot.offers.iter().filter(move |offer| self.holds(offer, of_slot.cost(&offer.blueprint)));
            offers.map(move |offer| Offered { index, slot, offer })
        })
        .collect()
    }

    /// Whether a seed of this offer has room: its parameters, and its shortest time in the shadow.
    fn holds(&self, offer: &BlueprintOffer, cost: Option<Cost>) -> bool {
        let needed =
            self.prices.germination() + self.min_epochs as f64 * self.prices.epoch(cost) + self.prices.reading(cost);
        offer.num_parameters <= self.parameters && self.spent + self.reserved + needed <= self.allowed
    }

    /// Why nothing on offer has room.
    pub(in crate::policy) fn refusal(&self) -> Proposal {
        let free: Vec<&SlotState> = self.prices.state.slots.iter().filter(|slot| slot.occupant.is_none()).collect();
        let is_small = |offer: &BlueprintOffer| offer.num_parameters <= self.parameters;
        if free.iter().any(|slot| slot.offers.iter().any(is_small)) {
            return Proposal::wait("looking_spent", self.spent());
        }
        let Self { present, limit, .. } = self;
        Proposal::wait(
            "nothing_to_place",
            format!("{} free slots, {present} parameters of at most {limit}", free.len()),
        )
    }

    fn spent(&self) -> String {
        let network = self.prices.network().max(f64::MIN_POSITIVE);
        let [spent, reserved, allowed] = [self.spent, self.reserved, self.allowed].map(|cost| cost / network);
        format!("looking took {spent:.1} epochs of the network, {reserved:.1} reserved, {allowed:.1} allowed")
    }
}

impl HeuristicConfig {
    /// What looking may take in the whole run.
    fn allowed(&self, memory: &HeuristicMemory, state: &SystemState) -> f64 {
        let share = self.looking.max_share;
        let network = Prices::of(&self.looking, state).network();
        share / (1.0 - share) * (memory.compute.network + epochs_left(state) as f64 * network)
    }

    /// The part of that which was spent, in `[0, ∞)`.
    pub(in crate::policy) fn part_spent(&self, memory: &HeuristicMemory, state: &SystemState) -> f64 {
        let allowed = self.allowed(memory, state);
        if allowed > 0.0 { memory.compute.looking / allowed } else { 1.0 }
    }

    /// The room beside the seeds that live on.
    pub(in crate::policy) fn room<'a>(
        &self,
        memory: &HeuristicMemory,
        state: &'a SystemState,
        proposals: &[Proposal],
    ) -> Room<'a> {
        let (prices, [min_epochs, ..]) = (Prices::of(&self.looking, state), self.least_epochs());
        let live: Vec<_> = live_seeds(state, proposals).collect();
        let present = state.host_parameters + live.iter().map(|seed| seed.num_parameters).sum::<u64>();
        let limit = self.parameter_limit(memory);
        Room {
            parameters: limit.saturating_sub(present),
            present,
            limit,
            prices,
            min_epochs,
            spent: memory.compute.looking,
            // A sum of nothing would be -0.
            reserved: live.iter().fold(0.0, |sum, seed| sum + prices.reserved(min_epochs, seed)),
            allowed: self.allowed(memory, state),
        }
    }

    /// The ends of seeds in the shadow that another epoch would take beyond what may be looked at.
    pub(in crate::policy) fn spent(
        &self,
        memory: &HeuristicMemory,
        state: &SystemState,
        proposals: &[Proposal],
    ) -> Vec<Proposal> {
        let room = self.room(memory, state, proposals);
        // What blends now costs nothing more, and what is confirmed is no look any more.
        let may_end = |seed: &&SeedState| {
            seed.stage == SeedStage::Training
                && seed.epochs_in_stage >= room.min_epochs
                && !seed.confirmation.is_some_and(|confirmed| confirmed.passed)
                && !proposals.iter().any(|one| one.operation.as_ref().and_then(Operation::seed) == Some(seed.seed_id))
        };
        let mut planned = room.spent + room.reserved;
        let mut ends = Vec::new();
        for seed in state.seeds.iter().filter(may_end) {
            let next = room.prices.epoch(room.prices.of_seed(seed));
            if planned + next <= room.allowed {
                planned += next;
            } else {
                ends.push(Proposal::act(Operation::Cull { seed: seed.seed_id }, "looking_spent", room.spent()));
            }
        }
        ends
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// In whatever order pairs are told, and however often.
        #[test]
        fn the_price_of_an_offer_is_the_first_that_is_told_of_its_pair(told in proptest::collection::vec((0..4, 0..4), 0..40)) {
            let slot = |index: i32| SlotId::new(format!("slot{index}")).unwrap();
            let blueprint = |index: i32| BlueprintId::new(format!("mlp{index}")).unwrap();
            let cost = |index: usize| Cost { training: index as f64, evaluation: 0.0 };
            let costs = told.iter().enumerate().map(|(i, (at, of))| (slot(*at), blueprint(*of), cost(i)));
            let costs: Vec<_> = costs.collect();
            let prices = OfferPrices::of(&costs);
            for pair in (0..5).flat_map(|at| (0..5).map(move |of| (at, of))) {
                let searched = told.iter().position(|one| *one == pair).map(cost);
                prop_assert_eq!(prices.of_slot(&slot(pair.0)).cost(&blueprint(pair.1)), searched, "{:?}", pair);
            }
        }
    }
}
