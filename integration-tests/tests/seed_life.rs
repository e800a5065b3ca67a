//! Seeds live through the real crates: every move is legal, useful seeds stay, and the harmful one never does.

use std::collections::BTreeMap;

use integration_tests::short_run::{Recorded, config, trainer};
use leyline::id::SeedId;
use leyline::region::Eager;
use leyline::seed::SeedStage;

fn run(more: &[&str]) -> Recorded {
    let mut recorded = Recorded::default();
    let mut eager = Eager::acquire().expect("one token per test thread");
    trainer(&config(more), None).run(&mut eager, &mut recorded).expect("a run that ends well");
    recorded
}

#[test]
fn every_seed_moves_through_the_table_and_some_stay() {
    let recorded = run(&[]);
    let mut stages: BTreeMap<SeedId, SeedStage> = BTreeMap::new();
    for transition in recorded.epochs.iter().flat_map(|epoch| &epoch.transitions) {
        let before = stages.insert(transition.seed, transition.to).unwrap_or(SeedStage::Dormant);
        assert_eq!(transition.from, before, "{transition:?}");
        assert!(transition.from.may_become(transition.to), "{transition:?}");
    }
    assert!(stages.values().any(|stage| *stage == SeedStage::Fossilized), "no seed stayed: {stages:?}");
    let exported = &recorded.epochs.last().unwrap().seeds;
    for seed in exported {
        assert_eq!(seed.stage, stages[&seed.seed_id], "{}", seed.seed_id);
        assert!(!seed.stage.is_live(), "{} is half-grown at the end of the run", seed.seed_id);
    }
}

#[test]
fn sequence_numbers_grow_from_command_to_command() {
    let recorded = run(&[]);
    let numbers: Vec<u64> = recorded.epochs.iter().flat_map(|e| &e.commands).filter_map(|c| c.sequence).collect();
    assert!(numbers.len() >= 8 && numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
}

#[test]
fn a_harmful_seed_never_stays() {
    for seed in 0..5 {
        let seed = format!("run.seed={seed}");
        let recorded =
            run(&[&seed, "seeds.noise_blueprint=true", "policy.heuristic.germination.blueprints=[\"noise\"]"]);
        let moves: Vec<_> = recorded.epochs.iter().flat_map(|epoch| &epoch.transitions).collect();
        let reached = |stage| moves.iter().any(|m| m.to == stage);
        assert!(reached(SeedStage::Training) && reached(SeedStage::Pruned), "{seed}: {moves:?}");
        assert!(!reached(SeedStage::Fossilized), "{seed}: a harmful seed was kept");
    }
}

#[test]
fn without_a_policy_nothing_grows() {
    let recorded = run(&["policy.policy=off"]);
    assert!(recorded.epochs.iter().all(|epoch| epoch.seeds.is_empty() && epoch.commands.is_empty()));
}
