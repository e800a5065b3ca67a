//! Attribution of a microbatch: who shares in it, how much, and what happens when nothing can be measured.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use candle_core::{Device, Tensor};
use kasmina::attribution::{AttributionScope, SampleAttribution};
use kasmina::{Error, KasminaConfig};
use leyline::batch::Batch;
use leyline::command::Operation;
use leyline::id::SeedId;
use leyline::seed::{Attribution, AttributionMode, SeedManager, SeedStage};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use support::{NUM_SAMPLES, Rig, batch, batch_for, config, configurations, mlp, ramp};

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
    rig.ripen(SeedId(2));
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

/// SM-4: what the network multiplies by zero cannot influence the loss, so such an alpha is refused and nothing acts.
#[test]
fn an_alpha_that_is_zero_in_the_type_of_the_network_is_refused_and_nobody_acts() {
    for mode in MODES {
        let mut rig = Rig::new(KasminaConfig { attribution: mode, ..config(mlp()) });
        let seed = rig.germinate("hidden0", "mlp");
        rig.bring_to(seed, SeedStage::Training);
        rig.fill(seed, 0.2);
        let refused = rig.send(Operation::StartBlending { seed, ramp: ramp(1e-60, 0) });
        assert!(matches!(refused, Err(Error::RampToNothing { .. })), "{refused:?}");
        assert_eq!(attribute(&mut rig), Attribution::host_only(), "{mode:?}");
        let samples = attribute_samples(&mut rig, &batch(1));
        assert_eq!(samples.seeds(), [], "{mode:?}");
        assert_eq!(rig.recorder.counter_value("kasmina.attribution.fallbacks_total", &[]), Some(0), "{mode:?}");
        rig.send(Operation::StartBlending { seed, ramp: ramp(1e-3, 0) }).unwrap();
        let expected: &[u32] = if mode == AttributionMode::HostOnly { &[] } else { &[1] };
        assert_eq!(ids(&attribute(&mut rig)), expected, "{mode:?}");
    }
}

fn attribute_samples(rig: &mut Rig, batch: &Batch) -> SampleAttribution {
    rig.manager.attribute_samples(&rig.eager, batch).unwrap()
}

#[track_caller]
fn assert_close(found: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len());
    let close = |(a, b): (&f64, &f64)| (a - b).abs() <= tolerance;
    assert!(found.iter().zip(expected).all(close), "{found:?} against {expected:?}");
}

fn weights_of(attribution: &Attribution) -> Vec<f64> {
    attribution.weights().iter().map(|(_, weight)| *weight).collect()
}

/// Rounding of the network, whose products may be summed in another order when a sample stands in another place.
const ROUNDING: f64 = 1e-4;

#[test]
fn with_one_sample_both_scopes_agree() {
    for mode in MODES {
        let mut rig = rig(mode);
        let whole = batch(1);
        let one = Batch {
            inputs: whole.inputs.narrow(0, 2, 1).unwrap().copy().unwrap(),
            targets: whole.targets.narrow(0, 2, 1).unwrap().copy().unwrap(),
        };
        let of_batch = rig.manager.attribute_batch(&rig.eager, &one).unwrap();
        let of_sample = attribute_samples(&mut rig, &one);
        assert_eq!(of_sample.used(), of_batch.used());
        assert_close(of_sample.weights(), &weights_of(&of_batch), 1e-6);
        // And a sample's row does not depend on the samples beside it.
        assert_close(attribute_samples(&mut rig, &whole).row(2).unwrap(), of_sample.weights(), ROUNDING);
    }
}

/// One seed in a host of one weight: h is the input, f(h) = c, logits (0, h + α·c), so every score has a closed form.
#[test]
fn scores_per_sample_follow_their_closed_form() {
    let (alpha, constant) = (0.5_f64, 3.0_f64);
    let inputs = [0.5_f32, -2.0, 4.0];
    let targets = [1_u32, 0, 1];
    let host = kasmina::host::HostConfig::Mlp { inputs: 1, hidden: vec![], classes: 2 };
    let samples = Batch {
        inputs: Tensor::from_slice(&inputs, (3, 1), &Device::Cpu).unwrap(),
        targets: Tensor::from_slice(&targets, 3, &Device::Cpu).unwrap(),
    };
    let nats = |logit: f64, target: u32| if target == 1 { (-logit).exp().ln_1p() } else { logit.exp().ln_1p() };
    let mut eager = None;
    for mode in [AttributionMode::Contribution, AttributionMode::Probe] {
        let config =
            KasminaConfig { attribution: mode, attribution_scope: AttributionScope::Sample, ..config(host.clone()) };
        let mut rig = match eager.take() {
            None => Rig::new(config),
            Some(eager) => Rig::beside(config, eager),
        };
        let seed = rig.germinate("input", "noise");
        rig.bring_to(seed, SeedStage::Training);
        rig.send(Operation::StartBlending { seed, ramp: ramp(alpha, 0) }).unwrap();
        rig.fill(seed, 3.0);
        for parameter in leyline::model::TrainableModel::parameters(rig.model()) {
            let value = match parameter.name.as_str() {
                "host.head.weight" => Tensor::from_slice(&[0.0_f32, 1.0], (1, 2), &Device::Cpu),
                "host.head.bias" => Tensor::from_slice(&[0.0_f32, 0.0], 2, &Device::Cpu),
                _ => continue,
            };
            parameter.var.set(&value.unwrap()).unwrap();
        }
        let expected: Vec<f64> = inputs
            .iter()
            .zip(targets)
            .map(|(&h, target)| {
                let h = f64::from(h);
                let (seed, host) = match mode {
                    AttributionMode::Contribution => (alpha * constant, h.abs()),
                    _ => {
                        let (on, off) = (nats(h + alpha * constant, target), nats(h, target));
                        ((off - on).abs(), on)
                    }
                };
                seed / (seed + host)
            })
            .collect();
        let found = attribute_samples(&mut rig, &samples);
        assert_eq!((found.used(), found.seeds()), (mode, [seed].as_slice()));
        assert_close(found.weights(), &expected, 1e-5);
        let mean = rig.manager.attribute_batch(&rig.eager, &samples).unwrap();
        assert_close(&weights_of(&mean), &[expected.iter().sum::<f64>() / 3.0], 1e-5);
        eager = Some(rig.eager);
    }
}

#[test]
fn a_sample_in_which_nothing_is_to_share_is_the_hosts() {
    let mut rig = rig(AttributionMode::Contribution);
    for seed in 1..=3 {
        rig.fill(SeedId(seed), 0.0);
    }
    // With weights and biases of the host at zero, h is zero at every slot behind the first layer.
    for parameter in leyline::model::TrainableModel::parameters(rig.model()) {
        if parameter.name.starts_with("host.") {
            parameter.var.set(&parameter.var.zeros_like().unwrap()).unwrap();
        }
    }
    let silent = attribute_samples(&mut rig, &batch(1));
    assert_eq!(silent.used(), AttributionMode::Alpha, "all are silent: nothing is measured");
    // Seed 1 without biases: it says something where h does, and nothing about a sample of zeros.
    rig.fill(SeedId(1), 0.2);
    for parameter in rig.manager.seed_parameters(SeedId(1)).unwrap() {
        if parameter.name.ends_with(".bias") {
            parameter.var.set(&parameter.var.zeros_like().unwrap()).unwrap();
        }
    }
    for parameter in leyline::model::TrainableModel::parameters(rig.model()) {
        if parameter.name == "host.layer0.weight" {
            parameter.var.set(&parameter.var.ones_like().unwrap()).unwrap();
        }
    }
    let silent_row = 3;
    let inputs: Vec<f32> = (0..NUM_SAMPLES).flat_map(|row| [if row == silent_row { 0.0 } else { 0.5 }; 12]).collect();
    let mixed =
        Batch { inputs: Tensor::from_vec(inputs, (NUM_SAMPLES, 12), &Device::Cpu).unwrap(), targets: batch(1).targets };
    let found = attribute_samples(&mut rig, &mixed);
    assert_eq!((found.used(), found.seeds()), (AttributionMode::Contribution, [1, 2, 3].map(SeedId).as_slice()));
    for row in 0..NUM_SAMPLES {
        let shares = found.row(row).unwrap();
        if row == silent_row {
            assert_eq!(shares, [0.0; 3], "nothing is to share: it is the host's");
        } else {
            assert!(shares[0] > 0.0 && shares[0] < 1.0, "row {row}: {shares:?}");
            assert_eq!(shares[1..], [0.0; 2], "row {row}");
        }
    }
}

#[test]
fn a_sample_that_is_not_finite_takes_the_whole_batch_to_alpha() {
    for mode in [AttributionMode::Contribution, AttributionMode::Probe] {
        let config = KasminaConfig { attribution: mode, attribution_scope: AttributionScope::Sample, ..config(mlp()) };
        let mut rig = Rig::new(config);
        let seed = rig.germinate("hidden0", "mlp");
        rig.bring_to(seed, SeedStage::Holding);
        let mut poisoned = batch(1);
        let infinite = Tensor::new(&[[f32::INFINITY]], &Device::Cpu).unwrap();
        poisoned.inputs = poisoned.inputs.slice_assign(&[3..4, 0..1], &infinite).unwrap();
        for _ in 0..2 {
            let attribution = rig.manager.attribute_batch(&rig.eager, &poisoned).unwrap();
            assert_eq!((attribution.used(), weights_of(&attribution)), (AttributionMode::Alpha, vec![0.5]));
        }
        let samples = attribute_samples(&mut rig, &poisoned);
        assert_eq!((samples.used(), samples.weights()), (AttributionMode::Alpha, [0.5; NUM_SAMPLES].as_slice()));
        assert_eq!(rig.recorder.counter_value("kasmina.attribution.fallbacks_total", &[]), Some(3));
        assert_eq!(rig.recorder.events_named("attribution_fallback").len(), 1);
    }
}

/// The same samples in another order: sample i of the result is sample `order[i]` of `batch`.
fn permuted(batch: &Batch, order: &[u32]) -> Batch {
    let order = Tensor::new(order, &Device::Cpu).unwrap();
    Batch {
        inputs: batch.inputs.index_select(&order, 0).unwrap(),
        targets: batch.targets.index_select(&order, 0).unwrap(),
    }
}

#[test]
fn shares_of_samples_obey_their_rules_whatever_the_network() {
    let configurations = configurations();
    let samples = 0..u32::try_from(NUM_SAMPLES).unwrap();
    let stages = prop_oneof![
        Just(None),
        Just(Some(SeedStage::Training)),
        Just(Some(SeedStage::Blending)),
        Just(Some(SeedStage::Holding)),
        Just(Some(SeedStage::Fossilized)),
    ];
    let strategy = (
        (0..configurations.len(), 0..MODES.len(), any::<u64>(), any::<u32>()),
        proptest::collection::vec((stages, 0.05_f64..=1.0, -0.5_f32..0.5), 8),
        Just(samples.collect::<Vec<u32>>()).prop_shuffle(),
    );
    let settings =
        ProptestConfig { rng_seed: RngSeed::Fixed(4), failure_persistence: None, ..ProptestConfig::with_cases(300) };
    proptest!(settings, |(((which, mode, init_seed, variant), occupants, order) in strategy)| {
        let mode = MODES[mode];
        let scope = AttributionScope::Sample;
        let base = configurations[which].clone();
        let mut rig = Rig::new(KasminaConfig { attribution: mode, attribution_scope: scope, init_seed, ..base });
        let (mut acting, mut silent) = (Vec::new(), Vec::new());
        let slots = rig.manager.export_slot_states(&rig.eager).unwrap();
        for (slot, (stage, alpha, weight)) in slots.iter().zip(occupants) {
            let Some(stage) = stage else { continue };
            let seed = rig.germinate(slot.slot.as_str(), "mlp");
            let first = if stage == SeedStage::Blending { SeedStage::Training } else { stage };
            rig.bring_to(seed, first);
            if stage == SeedStage::Blending {
                rig.send(Operation::StartBlending { seed, ramp: ramp(alpha, 0) }).unwrap();
            }
            let weight = if weight < -0.3 { 0.0 } else { weight };
            rig.fill(seed, weight);
            if stage != SeedStage::Training {
                acting.push(seed);
                if weight == 0.0 {
                    silent.push(seed);
                }
            }
        }
        let batch = batch_for(&rig.manager.config().host.clone(), variant);
        let rows = attribute_samples(&mut rig, &batch);
        let expected: &[SeedId] = if mode == AttributionMode::HostOnly { &[] } else { &acting };
        prop_assert_eq!(rows.seeds(), expected, "only seeds that act");
        prop_assert_eq!((rows.num_samples(), rows.weights().len()), (NUM_SAMPLES, NUM_SAMPLES * expected.len()));
        for sample in 0..NUM_SAMPLES {
            let row = rows.row(sample).unwrap();
            prop_assert!(row.iter().all(|weight| weight.is_finite() && (0.0..=1.0).contains(weight)), "{:?}", row);
            prop_assert!(row.iter().sum::<f64>() <= 1.0 + 1e-9, "{:?}", row);
            let measured = [AttributionMode::Contribution, AttributionMode::Probe].contains(&rows.used());
            for (seed, weight) in rows.seeds().iter().zip(row).filter(|_| measured) {
                prop_assert!(!silent.contains(seed) || *weight <= 0.0, "{} has no effect and {}", seed, weight);
            }
        }

        let of_batch = rig.manager.attribute_batch(&rig.eager, &batch).unwrap();
        prop_assert_eq!(of_batch.used(), rows.used());
        for (index, weight) in weights_of(&of_batch).into_iter().enumerate() {
            let column: f64 = (0..NUM_SAMPLES).map(|sample| rows.row(sample).unwrap()[index]).sum();
            #[allow(clippy::cast_precision_loss, reason = "a handful of samples")]
            let mean = column / NUM_SAMPLES as f64;
            prop_assert!((weight - mean).abs() < 1e-12);
        }

        let moved = attribute_samples(&mut rig, &permuted(&batch, &order));
        for (to, &from) in order.iter().enumerate() {
            assert_close(moved.row(to).unwrap(), rows.row(from as usize).unwrap(), ROUNDING);
        }
    });
}
