//! Seeds live through the real crates: every move is legal, useful seeds stay, and the harmful one never does.

use std::collections::BTreeMap;

use integration_tests::short_run::{Recorded, config, trainer};
use leyline::command::BlendMode;
use leyline::id::SeedId;
use leyline::region::Eager;
use leyline::seed::{AlphaMode, SeedStage, SeedState};

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

/// Nobody puts the layers together but the command: a run without them would leave no journal.
#[test]
fn what_was_carried_out_was_verified_and_stands_in_the_journal() {
    let dir = tempfile::tempdir().expect("a folder");
    let (mut recorded, mut eager) = (Recorded::default(), Eager::acquire().expect("one token per test thread"));
    trainer(&config(&[]), Some(dir.path())).run(&mut eager, &mut recorded).expect("a run that ends well");
    let journal = std::fs::metadata(dir.path().join("commands.journal")).expect("a journal");
    let num_orders = recorded.epochs.iter().flat_map(|epoch| &epoch.commands).count();
    assert!(num_orders >= 8 && journal.len() == 64 * (1 + num_orders as u64), "{num_orders} orders, {journal:?}");
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
fn a_pause_is_a_setting_of_the_schedule() {
    let recorded = run(&["policy.policy=fixed", "policy.fixed.pause.age_epochs=3", "policy.fixed.pause.epochs=2"]);
    let paused: Vec<bool> = recorded.epochs.iter().flat_map(|epoch| epoch.seeds.first()).map(|s| s.paused).collect();
    assert_eq!(paused.iter().filter(|paused| **paused).count(), 2, "{paused:?}");
    assert_eq!(paused.last(), Some(&false), "{paused:?}");
}

#[test]
fn a_gradual_removal_is_a_setting_of_the_heuristic() {
    let recorded = run(&[
        // Seeds do harm, which the policy does not see and the last gate does.
        "seeds.noise_blueprint=true",
        "seeds.blueprints=[\"noise\"]",
        "seeds.gates.require_gain=false",
        "policy.heuristic.evidence.confidence_z=10.0",
        "policy.heuristic.blending.fade_epochs=2",
        "policy.heuristic.closing_epochs=1",
    ]);
    let seeds: Vec<_> = recorded.epochs.iter().flat_map(|epoch| &epoch.seeds).collect();
    let fades = |s: &SeedState| s.stage == SeedStage::Blending && s.alpha_mode == AlphaMode::Down;
    let faded: Vec<SeedId> = seeds.iter().filter(|s| fades(s)).map(|s| s.seed_id).collect();
    let gone = |seed| seeds.iter().any(|s| s.seed_id == seed && s.stage == SeedStage::Embargoed);
    assert!(faded.iter().any(|seed| gone(*seed)), "{faded:?} faded");
    assert!(seeds.iter().all(|s| s.stage != SeedStage::Fossilized));
}

#[test]
fn a_blend_is_a_setting_of_the_policy_whichever_it_is() {
    let confidence = "policy.blend={ confidence = { steepness = 4.0, threshold = 0.2, low = 0.0, high = 1.0 } }";
    let channel = "policy.blend={ channel = [1.0, 0.5, 0.0, 1.0] }";
    let at_hidden = "policy.fixed.germinations=[{ epoch = 1, slot = \"hidden0\" }]";
    for (blend, mode) in [
        ("policy.blend=residual", BlendMode::Residual),
        ("policy.blend=convex", BlendMode::Convex),
        (channel, BlendMode::Channel),
        (confidence, BlendMode::Confidence),
        ("policy.blend=multiply", BlendMode::Multiply),
        ("policy.blend=gate", BlendMode::Gate),
    ] {
        let recorded = run(&[blend, "run.epochs=3", "policy.policy=fixed", at_hidden, "host.mlp.hidden=[4]"]);
        let seeds = &recorded.epochs.last().unwrap().seeds;
        assert!(seeds.len() == 1 && seeds[0].blend == mode, "{blend}: {seeds:?}");
    }
}

#[test]
fn without_a_policy_nothing_grows() {
    let recorded = run(&["policy.policy=off"]);
    assert!(recorded.epochs.iter().all(|epoch| epoch.seeds.is_empty() && epoch.commands.is_empty()));
}
