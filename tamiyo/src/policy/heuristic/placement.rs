//! Where and what to germinate, from what became of earlier seeds.
//!
//! Candidates are pairs of a free slot and a blueprint on offer there, for which there is room. First come those
//! whose blueprint is not standing back after a cull; among these the untried pairs, then the tried ones by the mean
//! gain that their seeds showed. A tried pair of which nothing was ever measured comes last. Ties go to the slot with
//! fewer germinations, then to the preferred blueprint, then to the slot that comes first in the network.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;

use leyline::id::{BlueprintId, SlotId};
use leyline::seed::{BlueprintOffer, SlotState};
use serde::{Deserialize, Serialize};

use crate::evidence::EndedSeed;
use crate::policy::heuristic::GerminationConfig;

/// What became of earlier germinations.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::policy) struct Ledger {
    num_germinations: u64,
    pairs: BTreeMap<SlotId, BTreeMap<BlueprintId, PairRecord>>,
    /// The number of germinations up to which a blueprint stands back.
    stand_back_until: BTreeMap<BlueprintId, u64>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PairRecord {
    num_germinations: u64,
    num_measured: u64,
    sum_gain: f64,
}

/// An offer of a free slot.
#[derive(Debug, Clone, Copy)]
pub(in crate::policy) struct Offered<'a> {
    pub(in crate::policy) index: usize,
    pub(in crate::policy) slot: &'a SlotState,
    pub(in crate::policy) offer: &'a BlueprintOffer,
}

/// What became of earlier germinations in one slot.
#[derive(Debug, Clone, Copy)]
pub(in crate::policy) struct SlotRecord<'a> {
    pairs: Option<&'a BTreeMap<BlueprintId, PairRecord>>,
    pub(in crate::policy) num_germinations: u64,
}

/// The pair that was chosen.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::policy) struct Candidate<'a> {
    pub(super) slot: &'a SlotId,
    pub(super) blueprint: &'a BlueprintId,
    pub(in crate::policy) cooling: u64,
    pub(in crate::policy) tried: bool,
    pub(in crate::policy) mean_gain: Option<f64>,
    pub(in crate::policy) slot_germinations: u64,
    pub(in crate::policy) rank: usize,
    slot_index: usize,
}

impl fmt::Display for Candidate<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.tried, self.mean_gain) {
            (false, _) => f.write_str("untried pair"),
            (true, Some(gain)) => write!(f, "pair with mean gain {gain:+.6}"),
            (true, None) => f.write_str("pair tried without measurement"),
        }
    }
}

impl Offered<'_> {
    /// The offers of each slot; `offers` are slot by slot.
    pub(in crate::policy) fn by_slot(offers: &[Self]) -> impl Iterator<Item = &[Self]> {
        offers.chunk_by(|one, next| one.index == next.index)
    }
}

impl GerminationConfig {
    /// Place among the preferred blueprints; absent where it may not be used.
    pub(in crate::policy) fn rank(&self, blueprint: &BlueprintId) -> Option<usize> {
        if self.blueprints.is_empty() {
            return Some(0);
        }
        self.blueprints.iter().position(|allowed| allowed == blueprint)
    }
}

impl Ledger {
    /// The best pair of `offers`, which are slot by slot.
    pub(super) fn choose<'a>(&self, config: &GerminationConfig, offers: &[Offered<'a>]) -> Option<Candidate<'a>> {
        let candidates = Offered::by_slot(offers).flat_map(|offers| {
            let record = self.of_slot(&offers[0].slot.slot);
            offers.iter().filter_map(move |offered| self.candidate(config, record, *offered))
        });
        candidates.min_by(Candidate::order)
    }

    pub(in crate::policy) fn of_slot(&self, slot: &SlotId) -> SlotRecord<'_> {
        let pairs = self.pairs.get(slot);
        let num_germinations = pairs.map_or(0, |pairs| pairs.values().map(|pair| pair.num_germinations).sum());
        SlotRecord { pairs, num_germinations }
    }

    /// Counts a germination when it is asked for, so that one the seed manager refuses cannot block all others.
    pub(super) fn record_germination(&mut self, slot: &SlotId, blueprint: &BlueprintId) {
        self.num_germinations += 1;
        self.pair_mut(slot, blueprint).num_germinations += 1;
    }

    /// Takes in how a seed ended; a culled one makes its blueprint stand back for `cooldown` germinations.
    pub(super) fn record_end(&mut self, ended: &EndedSeed, cooldown: u64) {
        if let Some(gain) = ended.contribution {
            let pair = self.pair_mut(&ended.slot, &ended.blueprint);
            pair.num_measured += 1;
            pair.sum_gain += gain;
        }
        if !ended.fossilized {
            self.stand_back_until.insert(ended.blueprint.clone(), self.num_germinations.saturating_add(cooldown));
        }
    }

    /// The pair of an offer, whose slot has this record; absent where its blueprint may not be used.
    pub(in crate::policy) fn candidate<'a>(
        &self,
        config: &GerminationConfig,
        of_slot: SlotRecord<'_>,
        Offered { index, slot, offer }: Offered<'a>,
    ) -> Option<Candidate<'a>> {
        let blueprint = &offer.blueprint;
        let rank = config.rank(blueprint)?;
        let record = of_slot.pairs.and_then(|pairs| pairs.get(blueprint)).copied().unwrap_or_default();
        let until = self.stand_back_until.get(blueprint).copied().unwrap_or(0);
        Some(Candidate {
            slot: &slot.slot,
            blueprint,
            cooling: until.saturating_sub(self.num_germinations),
            tried: record.num_germinations > 0,
            mean_gain: (record.num_measured > 0).then(|| record.sum_gain / record.num_measured as f64),
            slot_germinations: of_slot.num_germinations,
            rank,
            slot_index: index,
        })
    }

    fn pair_mut(&mut self, slot: &SlotId, blueprint: &BlueprintId) -> &mut PairRecord {
        self.pairs.entry(slot.clone()).or_default().entry(blueprint.clone()).or_default()
    }
}

impl Candidate<'_> {
    /// The smaller one is preferred; no two candidates are equal.
    fn order(&self, other: &Self) -> Ordering {
        let gain = |candidate: &Self| candidate.mean_gain.unwrap_or(f64::NEG_INFINITY);
        self.cooling
            .cmp(&other.cooling)
            .then(self.tried.cmp(&other.tried))
            .then_with(|| gain(other).total_cmp(&gain(self)))
            .then(self.slot_germinations.cmp(&other.slot_germinations))
            .then(self.rank.cmp(&other.rank))
            .then_with(|| self.blueprint.cmp(other.blueprint))
            .then(self.slot_index.cmp(&other.slot_index))
    }
}
