//! The rule of confirmations.

use leyline::error::ErrorKind;
use leyline::region::Eager;
use leyline::seed::{Confirmation, SeedManager};

use crate::rule::{must, refuse, succeed};
use crate::seed_manager::SeedManagerHarness;
use crate::seed_manager::driver::Driver;
use crate::seed_manager::rules::UNKNOWN;

/// What confirms any gain.
const GOOD: Confirmation = Confirmation { loss_gain: 0.5, p_value: 1e-9, worst: 2.0, num_samples: 4_096 };

/// Fails `rule` unless each call about confirmations refuses this token.
#[track_caller]
pub(super) fn refuse_every_call<M: SeedManager>(
    rule: &str,
    name: impl Fn(&str) -> String,
    manager: &mut M,
    eager: &Eager,
) {
    let kind = ErrorKind::Region;
    refuse(rule, &name("confirm_on"), manager.confirm_on(eager, 1), kind);
    refuse(rule, &name("confirming"), manager.confirming(eager), kind);
    refuse(rule, &name("wants_confirmation"), manager.wants_confirmation(eager), kind);
    refuse(rule, &name("record_confirmation"), manager.record_confirmation(eager, UNKNOWN, &GOOD), kind);
}

/// SM-15: the samples that confirm are read once for each seed; one that is unknown is refused.
pub fn sm_15_a_gain_is_confirmed_once<M: SeedManager>(make: &impl Fn() -> SeedManagerHarness<M>) {
    const RULE: &str = "SM-15";
    let mut driver = Driver::new(RULE, make());
    let bad = Confirmation { loss_gain: -0.5, p_value: 1.0, ..GOOD };
    let told = driver.harness.manager.confirm_on(&driver.eager, GOOD.num_samples);
    succeed(RULE, "confirm_on", told);
    let result = driver.harness.manager.record_confirmation(&driver.eager, UNKNOWN, &GOOD);
    refuse(RULE, "a confirmation of an unknown seed", result, ErrorKind::UnknownSeed);
    if !driver.harness.has_slots {
        return driver.must_have_no_seeds();
    }
    let (seed, _) = driver.train();
    succeed(RULE, "record_confirmation", driver.harness.manager.record_confirmation(&driver.eager, seed, &GOOD));
    let kept = |driver: &Driver<M>| driver.seeds().into_iter().find_map(|state| state.confirmation);
    let before = kept(&driver);
    must!(RULE, before.is_none_or(|kept| kept.measured == GOOD), "what was recorded is not what is exported");
    let wanted = succeed(RULE, "wants_confirmation", driver.harness.manager.wants_confirmation(&driver.eager));
    must!(RULE, before.is_none() || !wanted.contains(&seed), "a seed that has a confirmation wants another");
    succeed(RULE, "record_confirmation", driver.harness.manager.record_confirmation(&driver.eager, seed, &bad));
    must!(RULE, kept(&driver) == before, "the second confirmation of a seed took the place of the first");
}
