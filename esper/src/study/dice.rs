//! The arm `random-equal`: as many permanent seeds as the first policy kept, with slot, blueprint and time drawn by dice and no evidence
//! asked. What the first policy is above it, its choices are worth.

use std::iter;

use blake3::OutputReader;
use kasmina::Kasmina;
use leyline::id::{BlueprintId, SlotId};
use leyline::seed::{BlueprintOffer, Gate};
use tamiyo::policy::{FixedConfig, FixedGermination, PolicyKind};
use tamiyo::risk::RiskRule;
use tolaria::batch::num_windows;

use crate::config::EsperConfig;
use crate::data;
use crate::wire::{kasmina_config, policy_config};

/// Schedules that are drawn before none is said to fit.
const DRAWS: usize = 100_000;

/// What may be drawn as one seed.
#[derive(Debug, Clone)]
struct Pair {
    slot: SlotId,
    blueprint: BlueprintId,
    num_parameters: u64,
}

/// What a schedule has to keep to.
#[derive(Debug, Clone, Copy)]
struct Limits {
    /// From germination to permanence (epochs).
    life: u64,
    /// The last epoch after which a whole life still fits.
    last: u64,
    /// Parameters of all seeds (count).
    room: u64,
    /// Seeds that live at once (count).
    at_once: usize,
}

/// With a schedule of `num_seeds` seeds, drawn from the random seed of the run: uniformly among those that keep to the limits of the policy
/// `first`, whose stages are as long as they are there at their shortest. Policies that have no such limits or lengths of their own have those
/// of `heuristic`; `fixed` has lengths and no limits.
///
/// # Errors
/// When none was found.
pub(super) fn drawn(config: &EsperConfig, first: &str, num_seeds: usize) -> anyhow::Result<EsperConfig> {
    let mut config = config.clone();
    let train = data::load(&config.data)?.splits.train;
    let network = kasmina_config(&config, &train).map_err(|issues| anyhow::anyhow!("the network: {issues:?}"))?;
    let host = Kasmina::count_host_parameters(&network.host)?;
    let (rules, gates) = (&config.policy.heuristic, &config.seeds.gates);
    let is_fixed = first == PolicyKind::Fixed.name();
    let (limit, at_once, blueprints) = if is_fixed {
        (u64::MAX, usize::MAX, &[][..])
    } else {
        let of = &rules.germination;
        (of.parameter_limit(host), usize::try_from(of.max_live_seeds)?, &of.blueprints[..])
    };
    let [training_epochs, blending_epochs, holding_epochs] = policy_config(&config).heuristic.least_epochs();
    let mut fixed = if is_fixed {
        config.policy.fixed.clone()
    } else {
        FixedConfig {
            germinations: Vec::new(),
            training_epochs,
            ramp_epochs: blending_epochs,
            holding_epochs,
            curve: rules.blending.curve,
            pause: None,
        }
    };
    let may_be = |pair: &Pair| {
        gates.max_seed_parameters.is_none_or(|most| pair.num_parameters <= most)
            && (blueprints.is_empty() || blueprints.contains(&pair.blueprint))
    };
    let slots = Kasmina::preview(&network)?;
    let pairs = slots.iter().flat_map(|slot| {
        let pair = |offer: &BlueprintOffer| Pair {
            slot: slot.slot.clone(),
            blueprint: offer.blueprint.clone(),
            num_parameters: offer.num_parameters,
        };
        slot.offers.iter().map(pair)
    });
    let pairs: Vec<Pair> = pairs.filter(may_be).collect();
    let of_pause = fixed.pause.map_or(0, |pause| pause.epochs);
    let life = 1 + fixed.training_epochs + fixed.ramp_epochs + fixed.holding_epochs + of_pause;
    let steps = num_windows(train.num_samples(), &config.train.batch) as u64;
    let epochs = config.run.epochs.get();
    let epochs = config.run.max_steps.map_or(epochs, |most| epochs.min(most.get().div_ceil(steps)));
    let limits = Limits {
        life,
        // A command after the last epoch may find nobody to obey.
        last: epochs.saturating_sub(1 + life),
        room: limit.min(gates.max_total_parameters.unwrap_or(u64::MAX)).saturating_sub(host),
        at_once,
    };
    fixed.germinations = schedule(config.run.seed, &pairs, num_seeds, limits).ok_or_else(|| {
        let Limits { life, last, room, at_once } = limits;
        let pairs = pairs.len();
        anyhow::anyhow!(
            "{num_seeds} seeds were kept beside it, and no {DRAWS} draws have as many: {pairs} pairs of slot and blueprint, {last} epochs to \
             begin in, {life} to live, {room} parameters in all, {at_once} seeds at once"
        )
    })?;
    config.policy.fixed = fixed;
    // Of the other gates none asks for evidence: G1 that weights are there, G0 and G5 for room.
    config.seeds.gates.off.extend([Gate::Stability, Gate::Interface, Gate::SystemImpact]);
    config.policy.risk.off = RiskRule::ALL.to_vec();
    config.train.confirmation_fraction = 0.0;
    Ok(config)
}

/// Seeds in the order of their epochs, uniformly among all schedules within the limits; none where none was found.
fn schedule(random_seed: u64, pairs: &[Pair], num_seeds: usize, limits: Limits) -> Option<Vec<FixedGermination>> {
    if num_seeds > 0 && (pairs.is_empty() || limits.last == 0) {
        return None;
    }
    let mut hasher = blake3::Hasher::new();
    let mut dice = hasher.update(b"esper.study.random-equal").update(&random_seed.to_le_bytes()).finalize_xof();
    let draw = || {
        let mut drawn: Vec<(u64, usize)> = Vec::new();
        for _ in 0..num_seeds {
            let epoch = 1 + below(&mut dice, limits.last);
            drawn.push((epoch, usize::try_from(below(&mut dice, pairs.len() as u64)).unwrap_or_default()));
        }
        drawn.sort_unstable();
        drawn.into_iter().map(|(epoch, pair)| (epoch, &pairs[pair])).collect::<Vec<_>>()
    };
    let found = iter::repeat_with(draw).take(DRAWS).find(|drawn| limits.allow(drawn))?;
    let germination = |(epoch, pair): (u64, &Pair)| FixedGermination {
        epoch,
        slot: Some(pair.slot.clone()),
        blueprint: Some(pair.blueprint.clone()),
    };
    Some(found.into_iter().map(germination).collect())
}

impl Limits {
    /// Of seeds in the order of their epochs. One that becomes permanent still has its slot while the next is decided on.
    fn allow(self, drawn: &[(u64, &Pair)]) -> bool {
        let meet = |first: &(u64, &Pair), later: &(u64, &Pair)| later.0 - first.0 <= self.life;
        let has_slot = |(index, one): (usize, &(u64, &Pair))| {
            drawn[index + 1..].iter().all(|later| later.1.slot != one.1.slot || !meet(one, later))
        };
        let one_too_many = |(first, later)| meet(first, later);
        drawn.iter().map(|(_, pair)| pair.num_parameters).sum::<u64>() <= self.room
            && drawn.iter().enumerate().all(has_slot)
            && !drawn.iter().zip(drawn.iter().skip(self.at_once)).any(one_too_many)
    }
}

/// Uniform in `0..bound`, which is above 0.
fn below(dice: &mut OutputReader, bound: u64) -> u64 {
    loop {
        let mut bytes = [0; 8];
        dice.fill(&mut bytes);
        let drawn = u64::from_le_bytes(bytes);
        // Without what is left over above the last multiple.
        if drawn <= u64::MAX - (u64::MAX % bound + 1) % bound {
            return drawn % bound;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn pair(slot: &str, blueprint: &str, num_parameters: u64) -> Pair {
        Pair { slot: SlotId::new(slot).unwrap(), blueprint: BlueprintId::new(blueprint).unwrap(), num_parameters }
    }

    const LIMITS: Limits = Limits { life: 3, last: 10, room: 10, at_once: 2 };

    #[test]
    fn slot_blueprint_and_epoch_of_a_seed_are_drawn_evenly_among_what_has_room() {
        let pairs = [pair("a", "small", 1), pair("a", "large", 11), pair("b", "small", 10)];
        let mut found: BTreeMap<(u64, String), u32> = BTreeMap::new();
        for random_seed in 0..4000 {
            let drawn = schedule(random_seed, &pairs, 1, LIMITS).unwrap();
            assert_eq!(schedule(random_seed, &pairs, 1, LIMITS), Some(drawn.clone()), "the same dice");
            assert_eq!(drawn[0].blueprint, Some(BlueprintId::new("small").unwrap()));
            *found.entry((drawn[0].epoch, drawn[0].slot.clone().unwrap().to_string())).or_default() += 1;
        }
        // 200 of each of 20, and four and a half standard deviations.
        assert_eq!(found.len(), 20);
        assert!(found.values().all(|count| (136..=264).contains(count)), "{found:?}");
    }

    #[test]
    fn seeds_have_a_slot_each_while_they_live_and_keep_to_the_limits_together() {
        let pairs = [pair("a", "small", 1), pair("a", "other", 4), pair("b", "small", 6)];
        for random_seed in 0..200 {
            let drawn = schedule(random_seed, &pairs, 3, LIMITS).unwrap();
            let size = |one: &FixedGermination| {
                let is_of = |pair: &&Pair| {
                    Some(&pair.slot) == one.slot.as_ref() && Some(&pair.blueprint) == one.blueprint.as_ref()
                };
                pairs.iter().find(is_of).unwrap().num_parameters
            };
            assert!(drawn.iter().map(size).sum::<u64>() <= 10, "{drawn:?}");
            assert!(drawn.iter().all(|one| (1..=10).contains(&one.epoch)), "{drawn:?}");
            assert!(
                drawn[0].epoch <= drawn[1].epoch && drawn[2].epoch > drawn[0].epoch + 3,
                "three at once: {drawn:?}"
            );
            for (first, later) in [(0, 1), (1, 2)].map(|(first, later)| (&drawn[first], &drawn[later])) {
                assert!(first.slot != later.slot || later.epoch > first.epoch + 3, "{drawn:?}");
            }
        }
    }

    #[test]
    fn as_many_as_cannot_be_are_not_fewer_and_none_are_none() {
        let pairs = [pair("a", "small", 1)];
        for (num_seeds, limits, possible) in [
            (3, LIMITS, true),
            (4, LIMITS, false),
            (2, Limits { room: 1, ..LIMITS }, false),
            (1, Limits { last: 0, ..LIMITS }, false),
            (0, Limits { last: 0, room: 0, ..LIMITS }, true),
        ] {
            let found = schedule(0, &pairs, num_seeds, limits).map(|drawn| drawn.len());
            assert_eq!(found, possible.then_some(num_seeds), "{limits:?}");
        }
        assert_eq!(schedule(0, &[], 1, LIMITS), None);
    }
}
