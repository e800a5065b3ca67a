//! Attribution of a microbatch: who shares in it, how much, and what happens when nothing can be measured.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use kasmina::KasminaConfig;
use leyline::command::Operation;
use leyline::id::SeedId;
use leyline::seed::{Attribution, AttributionMode, SeedManager, SeedStage};
use support::{Rig, batch, config, mlp, ramp};

const MODES: [AttributionMode; 5] = [
    AttributionMode::HostOnly,
    AttributionMode::Stage,
    AttributionMode::Alpha,
    AttributionMode::Contribution,
    AttributionMode::Probe,
];

/// Seed 1 is permanent and seed 2 blends at ½ in one slot, seed 3 holds in another, seed 4 trains.
fn rig(mode: AttributionMode) -> Rig {
    let mut rig = Rig::new(KasminaConfig { attribution: mode, ..config(mlp()) });
    for (slot, stage) in [
        ("hidden0", SeedStage::Fossilized),
        ("hidden0", SeedStage::Training),
        ("hidden1", SeedStage::Holding),
        ("input", SeedStage::Training),
    ] {
        let seed = rig.germinate(slot, "mlp");
        rig.bring_to(seed, stage);
        rig.fill(seed, 0.2);
    }
    rig.send(Operation::StartBlending { seed: SeedId(2), ramp: ramp(0.5, 0) }).unwrap();
    rig
}

fn attribute(rig: &mut Rig) -> Attribution {
    rig.manager.attribute_batch(&rig.eager, &batch(1)).unwrap()
}

fn ids(attribution: &Attribution) -> Vec<u32> {
    attribution.weights().iter().map(|(seed, _)| seed.0).collect()
}

#[test]
fn every_mode_names_the_seeds_that_act_and_leaves_a_host_share() {
    for mode in MODES {
        let mut rig = rig(mode);
        let attribution = attribute(&mut rig);
        assert_eq!(attribution.used(), mode);
        let expected: &[u32] = if mode == AttributionMode::HostOnly { &[] } else { &[1, 2, 3] };
        assert_eq!(ids(&attribution), expected, "{mode:?}");
        assert!(attribution.host_share() > 0.0 && attribution.weights().iter().all(|(_, weight)| *weight > 0.0));
        assert_eq!(rig.recorder.counter_value("kasmina.attribution.fallbacks_total", &[]), Some(0));
    }
}

#[track_caller]
fn check(mode: AttributionMode, scores: [f64; 3]) {
    let weights: Vec<f64> = attribute(&mut rig(mode)).weights().iter().map(|(_, weight)| *weight).collect();
    let sum: f64 = 1.0 + scores.iter().sum::<f64>();
    for (weight, score) in weights.iter().zip(scores) {
        assert!((weight - score / sum).abs() < 1e-12, "{mode:?}: {weights:?}");
    }
}

#[test]
fn stage_and_alpha_share_with_a_host_of_one() {
    check(AttributionMode::Stage, [1.0, 0.5, 1.0]);
    check(AttributionMode::Alpha, [1.0, 0.5, 1.0]);
}

#[test]
fn a_larger_share_of_the_slot_weighs_more_and_a_silent_seed_nothing() {
    let mut rig = rig(AttributionMode::Contribution);
    let before = attribute(&mut rig);
    rig.fill(SeedId(3), 0.6);
    let after = attribute(&mut rig);
    assert!(after.weights()[2].1 > before.weights()[2].1);
    rig.fill(SeedId(3), 0.0);
    assert_eq!(attribute(&mut rig).weights()[2], (SeedId(3), 0.0));
    // α·f(h) is measured, so half the alpha is half the norm; what it is divided by differs.
    let norms = |attribution: &Attribution| attribution.weights()[1].1 / attribution.weights()[0].1;
    let at_half = norms(&attribute(&mut rig));
    rig.send(Operation::StartBlending { seed: SeedId(2), ramp: ramp(1.0, 0) }).unwrap();
    let in_full = norms(&attribute(&mut rig));
    assert!((in_full / at_half - 2.0).abs() < 1e-5, "{at_half} {in_full}");
}

#[test]
fn a_seed_that_does_not_change_the_loss_has_no_share_by_probe() {
    let mut rig = rig(AttributionMode::Probe);
    rig.fill(SeedId(1), 0.0);
    let attribution = attribute(&mut rig);
    assert_eq!(attribution.weights()[0], (SeedId(1), 0.0));
    assert!(attribution.weights()[2].1 > 0.0);
}

#[test]
fn what_cannot_be_measured_falls_back_to_alpha_and_says_so_once() {
    for mode in [AttributionMode::Contribution, AttributionMode::Probe] {
        let mut rig = rig(mode);
        rig.fill(SeedId(3), f32::NAN);
        for _ in 0..3 {
            assert_eq!(attribute(&mut rig).used(), AttributionMode::Alpha);
        }
        assert_eq!(rig.recorder.counter_value("kasmina.attribution.fallbacks_total", &[]), Some(3));
        assert_eq!(rig.recorder.events_named("attribution_fallback").len(), 1);
    }
}

#[test]
fn without_acting_seeds_everything_is_the_hosts() {
    for mode in MODES {
        let mut rig = Rig::new(KasminaConfig { attribution: mode, ..config(mlp()) });
        let seed = rig.germinate("input", "mlp");
        rig.bring_to(seed, SeedStage::Training);
        assert_eq!(attribute(&mut rig), Attribution::host_only());
        assert_eq!(rig.recorder.counter_value("kasmina.attribution.fallbacks_total", &[]), Some(0));
    }
}
