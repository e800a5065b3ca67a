//! each rule of risk fires on what a real run measures, holds growth back there, and none fires where nothing is wrong.
#![expect(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::collections::BTreeSet;
use std::sync::Arc;

use esper::config::EsperConfig;
use integration_tests::short_run::{Recorded, config, trainer};
use leyline::clock::SystemClock;
use leyline::policy::{Decision, Policy as _};
use leyline::region::Eager;
use leyline::seed::SeedStage;
use leyline::state::SystemState;
use leyline::telemetry::NullRecorder;
use tamiyo::Tamiyo;
use tamiyo::risk::RiskRule;
use tolaria::trainer::report::EpochReport;

fn epochs(config: &EsperConfig) -> Vec<EpochReport> {
    let mut recorded = Recorded::default();
    trainer(config, None).run(&mut Eager::acquire().unwrap(), &mut recorded).unwrap();
    recorded.epochs
}

/// The rules that held growth back in a run, in whose epochs nothing grows.
#[track_caller]
fn held_back(epochs: &[EpochReport]) -> BTreeSet<&'static str> {
    let rules = |epoch: &EpochReport| -> BTreeSet<&'static str> {
        let fired = |rule: &&str| epoch.waiting.iter().any(|told| told.rule == *rule);
        RiskRule::ALL.iter().map(|rule| rule.name()).filter(fired).collect()
    };
    for epoch in epochs.iter().filter(|epoch| !rules(epoch).is_empty()) {
        let grows = |operation: &&str| {
            ["germinate", "start_blending", "fossilize"].iter().any(|one| operation.starts_with(one))
        };
        let grown: Vec<&str> = epoch.commands.iter().map(|command| command.operation.as_str()).filter(grows).collect();
        assert_eq!(grown, [""; 0], "epoch {}", epoch.epoch);
    }
    epochs.iter().flat_map(rules).collect()
}

/// Turns off all rules but these.
fn only(rules: &[RiskRule]) -> String {
    let off = RiskRule::ALL.iter().filter(|rule| !rules.contains(rule)).map(|rule| format!("\"{}\"", rule.name()));
    format!("policy.risk.off=[{}]", off.collect::<Vec<_>>().join(","))
}

#[test]
fn rules_fire_at_their_limits_in_runs_that_go_wrong() {
    // A rate that rises until the loss does; and one that is too high from the first step on, whose gradients are large in the first epoch alone.
    for (settings, names) in [
        (
            &["train.schedule.learning_rate=3.0", "train.schedule.warmup_steps=168"][..],
            &["conservative_mode", "loss_spike", "loss_volatility", "loss_warning"][..],
        ),
        (&["train.schedule.learning_rate=2.0"][..], &["gradient_variance"][..]),
    ] {
        let expected: BTreeSet<&str> = names.iter().copied().collect();
        assert_eq!(held_back(&epochs(&config(settings))), expected, "{settings:?}");
    }
}

/// Half of all pairs do not conflict where owners' gradients are made of the same microbatches (decision 10).
#[test]
fn conflicts_of_a_run_hold_growth_back_where_none_are_allowed() {
    let rule = RiskRule::GradientConflict;
    let settings =
        [&*only(&[rule]), "policy.risk.gradient_conflict.max_ratio=0.0", "seeds.attribution=probe", "run.epochs=30"];
    assert_eq!(held_back(&epochs(&config(&settings))), BTreeSet::from([rule.name()]));
}

#[test]
fn no_rule_fires_in_the_same_run_with_its_limit_as_it_is() {
    let with = epochs(&config(&[]));
    assert_eq!(held_back(&with), BTreeSet::new());
    let without = epochs(&config(&[&only(&[])]));
    assert!(with == without, "rules that do not fire change nothing");
    assert!(with.iter().flat_map(|epoch| &epoch.transitions).any(|change| change.to == SeedStage::Fossilized));
}

/// No blueprint can leak and no trainer goes on without a loss: that is planted in states of a run.
#[test]
fn what_no_run_measures_holds_growth_back_when_it_is_planted() {
    let config = config(&[]);
    let epochs = epochs(&config);
    let states: Vec<&SystemState> = epochs.iter().filter_map(|epoch| epoch.asked.as_ref()).collect();
    let decided = |change: &dyn Fn(SystemState) -> SystemState| -> Vec<Decision> {
        let mut policy =
            Tamiyo::new(config.policy.clone(), Arc::new(SystemClock::new()), Arc::new(NullRecorder)).unwrap();
        states.iter().map(|state| policy.decide(&change((*state).clone())).unwrap()).collect()
    };
    let told = |decisions: &[Decision], rule: &str| {
        decisions.iter().flat_map(|one| &one.waiting).any(|told| told.rule == rule)
    };
    let leaky = decided(&|mut state| {
        state.seeds.iter_mut().for_each(|seed| seed.isolation_violations = 1);
        state
    });
    assert!(told(&leaky, "isolation_violation"));
    let blind = decided(&|state| SystemState { validation: None, ..state });
    assert!(told(&blind, "loss_unmeasured"));
    let as_it_was = decided(&|state| state);
    assert!(!told(&as_it_was, "isolation_violation") && !told(&as_it_was, "loss_unmeasured"));
}
