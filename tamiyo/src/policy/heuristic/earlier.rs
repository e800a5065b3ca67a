//! What became of seeds in earlier runs, and the chance that one more is kept.
//!
//! A pair is a slot and a blueprint with its size, apart for networks that have no permanent seed yet and those that have one: the first
//! takes what is there to take. Whether a seed of a pair becomes permanent is Bernoulli; the chance has a Beta posterior, whose prior
//! weighs two seeds and has the mean of all pairs, which itself begins with a uniform prior:
//! ```text
//!  of all   p = (1 + kept of all) / (2 + tries of all)
//!  of one   (2 p + kept) / (2 + tries)
//! ```
//! A pair of which nothing is known has the chance of all, and where nothing at all is known everything is tried. Nothing is tried while no
//! pair with room has a chance worth a look. Which one is tried first does not depend on it (decision 36 says why).

use leyline::id::{BlueprintId, SlotId};
use leyline::seed::{BlueprintOffer, SlotState};
use serde::{Deserialize, Serialize};

use crate::issues::Issues;

/// The meaning of the counts.
const VERSION: u32 = 1;
/// How many seeds the chance of all counts for, in that of one pair.
const PRIOR_TRIES: f64 = 2.0;

/// What became of seeds in earlier runs of the same host on the same data; `esper runs earlier` counts it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EarlierConfig {
    /// Of the meaning of `tries` (1).
    pub version: u32,
    /// Nothing is tried while no pair with room has this chance that its seed is kept (in `[0, 1]`, default 0.1).
    pub min_chance: f64,
    /// Seeds of earlier runs by pair (default: none, and every pair may be tried).
    pub tries: Vec<EarlierTries>,
}

/// What became of the seeds of one pair.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EarlierTries {
    /// Where they were.
    pub slot: SlotId,
    /// What they were.
    pub blueprint: BlueprintId,
    /// Of a seed (count).
    pub parameters: u64,
    /// Whether the network had a permanent seed when they germinated.
    pub grown: bool,
    /// Seeds whose life ended, by permanence or removal (count).
    pub tries: u64,
    /// Those that became permanent (count).
    pub kept: u64,
}

impl Default for EarlierConfig {
    fn default() -> Self {
        Self { version: VERSION, min_chance: 0.1, tries: Vec::new() }
    }
}

impl EarlierTries {
    /// Whether both are of one pair.
    #[must_use]
    pub fn is_of_pair_of(&self, other: &Self) -> bool {
        self.grown == other.grown && self.is_of(&other.slot, &other.blueprint, other.parameters)
    }

    fn is_of(&self, slot: &SlotId, blueprint: &BlueprintId, parameters: u64) -> bool {
        self.slot == *slot && self.blueprint == *blueprint && self.parameters == parameters
    }
}

impl EarlierConfig {
    pub(super) fn is_usual(&self) -> bool {
        *self == Self::default()
    }

    /// The chance that a seed of this offer is kept, in `(0, 1)`; none where nothing is known.
    pub(super) fn chance(&self, grown: bool, slot: &SlotId, offer: &BlueprintOffer) -> Option<f64> {
        let beside = || self.tries.iter().filter(|one| one.grown == grown);
        let sum = |(tries, kept): (f64, f64), one: &EarlierTries| (tries + one.tries as f64, kept + one.kept as f64);
        let (tries, kept) = beside().fold((0.0, 0.0), sum);
        if tries <= 0.0 {
            return None;
        }
        let of_all = (kept + 1.0) / (tries + 2.0);
        let of_pair = |one: &&EarlierTries| one.is_of(slot, &offer.blueprint, offer.num_parameters);
        let (tries, kept) = beside().filter(of_pair).fold((0.0, 0.0), sum);
        Some((PRIOR_TRIES * of_all + kept) / (PRIOR_TRIES + tries))
    }

    /// Whether looking at a seed of this offer pays.
    pub(super) fn pays(&self, grown: bool, slot: &SlotId, offer: &BlueprintOffer) -> bool {
        self.chance(grown, slot, offer).is_none_or(|chance| chance >= self.min_chance)
    }

    pub(super) fn check(&self, issues: &mut Issues) {
        issues.within("earlier.version", self.version, VERSION..=VERSION);
        issues.within("earlier.min_chance", self.min_chance, 0.0..=1.0);
        for (index, one) in self.tries.iter().enumerate() {
            let key = |name: &str| format!("earlier.tries[{index}]{name}");
            issues.at_least(&key(".tries"), one.tries, 1);
            issues.within(&key(".kept"), one.kept, 0..=one.tries);
            let is_again = self.tries[..index].iter().any(|other| other.is_of_pair_of(one));
            issues.require(!is_again, &key(""), "of a pair that stands there before", "each pair once");
        }
    }

    /// They must be of this host: a pair that it has not, or not in that size, says nothing here.
    pub(super) fn check_names(&self, slots: &[SlotState], issues: &mut Issues) {
        for (index, one) in self.tries.iter().enumerate() {
            let key = |name: &str| format!("earlier.tries[{index}].{name}");
            let Some(slot) = slots.iter().find(|slot| slot.slot == one.slot) else {
                let names = slots.iter().map(|slot| slot.slot.as_str()).collect::<Vec<_>>().join(", ");
                issues.require(false, &key("slot"), format_args!("`{}`", one.slot), format_args!("one of {names}"));
                continue;
            };
            let Some(offer) = slot.offers.iter().find(|offer| offer.blueprint == one.blueprint) else {
                issues.offered(&key("blueprint"), &one.blueprint, &[slot]);
                continue;
            };
            let has = offer.num_parameters;
            let expected = format_args!("{has}, which a seed of `{}` in `{}` has here", one.blueprint, one.slot);
            issues.require(one.parameters == has, &key("parameters"), one.parameters, expected);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tries(slot: &str, grown: bool, tries: u64, kept: u64) -> EarlierTries {
        let (slot, blueprint) = (SlotId::new(slot).unwrap(), BlueprintId::new("mlp").unwrap());
        EarlierTries { slot, blueprint, parameters: 10, grown, tries, kept }
    }

    #[track_caller]
    fn check(known: &[EarlierTries], (slot, parameters, grown): (&str, u64, bool), expected: Option<f64>) {
        let earlier = EarlierConfig { tries: known.to_vec(), ..EarlierConfig::default() };
        let offer = BlueprintOffer { blueprint: BlueprintId::new("mlp").unwrap(), num_parameters: parameters };
        let found = earlier.chance(grown, &SlotId::new(slot).unwrap(), &offer);
        match (found, expected) {
            (Some(found), Some(expected)) => assert!((found - expected).abs() < 1e-12, "{found} for {expected}"),
            _ => assert_eq!(found, expected),
        }
    }

    #[test]
    fn a_chance_is_that_of_the_pair_drawn_to_that_of_all() {
        let known = [tries("a", false, 6, 5), tries("b", false, 8, 0), tries("a", true, 20, 0)];
        // Of all 6/16 without a permanent seed, 1/22 with one.
        check(&known, ("a", 10, false), Some((0.75 + 5.0) / 8.0));
        check(&known, ("b", 10, false), Some(0.75 / 10.0));
        check(&known, ("a", 10, true), Some(2.0 / 22.0 / 22.0));
    }

    #[test]
    fn what_is_not_known_has_the_chance_of_all_or_none() {
        let known = [tries("a", false, 6, 5)];
        check(&known, ("c", 10, false), Some(6.0 / 8.0));
        check(&known, ("a", 11, false), Some(6.0 / 8.0));
        check(&known, ("a", 10, true), None);
        check(&[], ("a", 10, false), None);
    }
}
