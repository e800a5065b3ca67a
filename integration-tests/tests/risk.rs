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
fn each_rule_fires_on_values_of_a_run_and_holds_growth_back() {
    use RiskRule::{ConservativeMode, GradientConflict, GradientVariance, LossSpike, LossVolatility, LossWarning};
    // As low as they go: what a run measures exceeds them.
    let (fast, usual) = ("train.schedule.learning_rate=0.1", "run.epochs=30");
    for (rules, limit, rate) in [
        (vec![LossSpike, ConservativeMode], "policy.risk.loss_spike.max_rise=0.0", fast),
        (vec![LossWarning], "policy.risk.loss_warning.max_rise=0.0", fast),
        (vec![LossVolatility], "policy.risk.loss_volatility.max=0.0", fast),
        (vec![GradientVariance], "policy.risk.gradient_variance.max=0.0", fast),
        (vec![GradientConflict], "policy.risk.gradient_conflict.max_ratio=0.0", usual),
    ] {
        let settings = [&*only(&rules), limit, "seeds.attribution=probe", rate];
        let epochs = epochs(&config(&settings));
        let names: BTreeSet<&str> = rules.iter().map(|rule| rule.name()).collect();
        assert_eq!(held_back(&epochs), names, "{limit}");
    }
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
