//! Lives and events of made-up runs.

use leyline::seed::Gate;
use leyline::unit::Alpha;
use tolaria::trainer::report::TransitionRecord;

use super::*;
use crate::report::testing::epoch;

const STAGES: [Option<SeedStage>; 6] = [
    None,
    Some(SeedStage::Germinated),
    Some(SeedStage::Training),
    Some(SeedStage::Training),
    Some(SeedStage::Pruned),
    None,
];

fn state(stage: SeedStage) -> SeedState {
    SeedState {
        stage,
        alpha_target: Alpha::ZERO,
        num_parameters: if stage.is_live() { 10 } else { 0 },
        ..SeedState::germinated(SeedId(1), "hidden".parse().unwrap(), "mlp".parse().unwrap(), 10)
    }
}

/// A run in which one seed has these stages at the ends of epochs 1, 2, …
fn run(stages: &[Option<SeedStage>]) -> Vec<EpochReport> {
    let report = |(index, stage): (usize, &Option<SeedStage>)| EpochReport {
        seeds: stage.iter().map(|stage| state(*stage)).collect(),
        ..epoch(index as u64 + 1)
    };
    stages.iter().enumerate().map(report).collect()
}

#[test]
fn a_life_is_told_in_bands_without_gaps() {
    let epochs = run(&STAGES);
    let lives = seed_lives(&epochs);
    let band = |stage, from, to| Band { stage, from, to };
    assert_eq!(
        lives[0].bands,
        [band(SeedStage::Germinated, 2, 3), band(SeedStage::Training, 3, 5), band(SeedStage::Pruned, 5, 6)]
    );
    assert_eq!((lives.len(), lives[0].germinated, lives[0].num_parameters), (1, 2, 10));
}

#[test]
fn alpha_ends_with_the_parameters() {
    let epochs = run(&STAGES);
    let told: Vec<u64> = seed_lives(&epochs)[0].alpha.iter().map(|point| point.0).collect();
    assert_eq!(told, [2, 3, 4]);
}

#[test]
fn a_seed_that_is_no_longer_listed_was_pruned() {
    let fate = |stages: &[Option<SeedStage>]| seed_lives(&run(stages))[0].fate();
    assert_eq!(fate(&[Some(SeedStage::Resetting), None]), SeedStage::Pruned);
    assert_eq!(fate(&[Some(SeedStage::Training)]), SeedStage::Training);
    assert_eq!(fate(&[Some(SeedStage::Holding), Some(SeedStage::Fossilized)]), SeedStage::Fossilized);
}

#[test]
fn a_measurement_keeps_the_epoch_in_which_it_was_made() {
    let mut epochs = run(&[Some(SeedStage::Training); 4]);
    let measured =
        |loss_gain| Counterfactual { loss_gain, std_error: 0.01, accuracy_gain_pp: Some(0.0), num_samples: 9 };
    epochs[1].seeds[0].counterfactual = Some(measured(0.5));
    epochs[2].seeds[0].counterfactual = Some(measured(0.5));
    let effect = seed_lives(&epochs)[0].effect.expect("it was measured");
    assert_eq!(effect, Measured { epoch: 2, stage: SeedStage::Training, value: measured(0.5) });
    epochs[3].seeds[0].counterfactual = Some(measured(0.75));
    assert_eq!(seed_lives(&epochs)[0].effect.map(|effect| effect.epoch), Some(4));
}

#[test]
fn a_verdict_is_told_once_until_it_changes() {
    let mut epochs = run(&[Some(SeedStage::Training); 4]);
    let gate = |passed| GateReport {
        gate: Gate::Stability,
        target: SeedStage::Blending,
        passed,
        score: if passed { 1.0 } else { 0.5 },
        met: Vec::new(),
        failed: Vec::new(),
    };
    for (index, passed) in [(0, false), (1, false), (2, true), (3, false)] {
        epochs[index].seeds[0].last_gate = Some(gate(passed));
    }
    let lives = seed_lives(&epochs);
    let told: Vec<(u64, bool)> = lives[0].verdicts.iter().map(|(epoch, gate)| (*epoch, gate.passed)).collect();
    assert_eq!(told, [(1, false), (3, true), (4, false)]);
}

#[test]
fn turning_points_are_events_and_other_changes_are_not() {
    let mut epochs = run(&STAGES);
    let change = |from, to| TransitionRecord { seed: SeedId(1), from, to, reason: String::new() };
    epochs[1].transitions.push(change(SeedStage::Dormant, SeedStage::Germinated));
    epochs[2].transitions.push(change(SeedStage::Germinated, SeedStage::Training));
    epochs[4].transitions.push(change(SeedStage::Training, SeedStage::Pruned));
    let told: Vec<(u64, EventKind)> = seed_events(&epochs).iter().map(|event| (event.epoch, event.kind)).collect();
    assert_eq!(told, [(2, EventKind::Germination), (5, EventKind::Prune)]);
}
