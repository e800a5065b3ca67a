//! The grafted network: identity at alpha 0, permanence, removal, parameters and their layout.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use kasmina::host::HostConfig;
use leyline::command::Operation;
use leyline::error::{Error as _, ErrorKind};
use leyline::id::SeedId;
use leyline::layout::Owner;
use leyline::model::{AlphaOverride, Pass, TrainableModel};
use leyline::seed::{SeedManager, SeedStage};
use support::{Rig, alpha, batch, cnn, config, cross_entropy, hosts, mlp, ramp};

fn at(seed: SeedId, value: f64) -> AlphaOverride {
    AlphaOverride { seed, alpha: alpha(value) }
}

/// A seed that has learned something, at the second slot, in this stage.
fn grown(rig: &mut Rig, stage: SeedStage) -> SeedId {
    let slot = rig.model().host().slots()[1].id.to_string();
    let seed = rig.germinate(&slot, "mlp");
    rig.bring_to(seed, stage);
    rig.fill(seed, 0.25);
    seed
}

#[test]
fn alpha_zero_is_the_exact_host_even_with_a_seed_of_nan() {
    for host in hosts() {
        let mut rig = Rig::new(config(host));
        let bare = (rig.evaluate(&[]), rig.train_logits());
        let seed = grown(&mut rig, SeedStage::Training);
        rig.fill(seed, f32::NAN);
        assert_eq!((rig.evaluate(&[]), rig.train_logits()), bare, "in training");
        rig.send(Operation::StartBlending { seed, ramp: ramp(0.5, 0) }).unwrap();
        assert_ne!(rig.evaluate(&[]), bare.0, "the seed acts now");
        assert_eq!(rig.evaluate(&[at(seed, 0.0)]), bare.0, "evaluated at 0");
        rig.send(Operation::Pause { seed }).unwrap();
        assert_eq!((rig.evaluate(&[]), rig.train_logits()), bare, "paused");
    }
}

#[test]
fn becoming_permanent_keeps_the_function() {
    for host in hosts() {
        let mut rig = Rig::new(config(host));
        let seed = grown(&mut rig, SeedStage::Holding);
        let holding = (rig.evaluate(&[]), rig.train_logits());
        assert_ne!(holding.0, rig.evaluate(&[at(seed, 0.0)]));
        rig.good_evidence(seed);
        assert!(rig.send(Operation::Fossilize { seed }).unwrap().topology_changed);
        assert_eq!((rig.evaluate(&[]), rig.train_logits()), holding);
    }
}

#[test]
fn removal_brings_the_host_back_and_frees_the_parameters_at_once() {
    for host in hosts() {
        for stage in [SeedStage::Germinated, SeedStage::Training, SeedStage::Blending, SeedStage::Holding] {
            let mut rig = Rig::new(config(host.clone()));
            let bare = (rig.evaluate(&[]), rig.train_logits());
            let parameters = rig.parameter_bits();
            let seed = grown(&mut rig, stage);
            let changed = rig.send(Operation::Cull { seed }).unwrap().topology_changed;
            assert_eq!(changed, stage != SeedStage::Germinated, "a germinated seed took no part");
            assert_eq!((rig.evaluate(&[]), rig.train_logits()), bare);
            assert_eq!(rig.parameter_bits(), parameters);
            assert_eq!(rig.state(seed).unwrap().num_parameters, 0);
            assert!(rig.manager.seed_parameters(seed).is_none());
            let error = rig.model().forward(&batch(1).inputs, Pass::Evaluate { overrides: &[at(seed, 1.0)] });
            assert_eq!(error.unwrap_err().kind(), ErrorKind::UnknownSeed);
        }
    }
}

#[test]
fn an_evaluation_at_another_alpha_agrees_with_being_there() {
    let mut rig = Rig::new(config(cnn()));
    let seed = grown(&mut rig, SeedStage::Training);
    let full = rig.evaluate(&[at(seed, 1.0)]);
    let part = rig.evaluate(&[at(seed, 0.375)]);
    let shadow = rig.model().forward(&batch(1).inputs, Pass::Train).unwrap().shadows.remove(0);
    assert_eq!((shadow.seed, support::bits(&shadow.logits)), (seed, full.clone()), "shadow training sees it in full");
    rig.send(Operation::StartBlending { seed, ramp: ramp(0.375, 0) }).unwrap();
    assert_eq!(rig.evaluate(&[]), part);
    rig.send(Operation::StartBlending { seed, ramp: ramp(1.0, 0) }).unwrap();
    assert_eq!(rig.evaluate(&[]), full);
}

#[test]
fn seeds_act_in_network_order_and_permanent_ones_before_the_live_one() {
    let mut rig = Rig::new(config(mlp()));
    let first = grown(&mut rig, SeedStage::Fossilized);
    let second = grown(&mut rig, SeedStage::Holding);
    let third = rig.germinate("input", "mlp");
    rig.bring_to(third, SeedStage::Holding);
    rig.fill(third, -0.5);
    // Switching a seed off must change the answer, whatever its place.
    let all = rig.evaluate(&[]);
    for seed in [first, second, third] {
        assert_ne!(rig.evaluate(&[at(seed, 0.0)]), all, "{seed}");
    }
    let bare = Rig::beside(config(mlp()), rig.eager);
    let none = [at(first, 0.0), at(second, 0.0), at(third, 0.0)];
    let off = rig.manager.model().forward(&batch(1).inputs, Pass::Evaluate { overrides: &none }).unwrap();
    assert_eq!(support::bits(&off.logits), bare.evaluate(&[]));
}

/// Owners and isolation in the layout, per stage; TM-1 holds throughout.
#[test]
fn the_layout_names_owners_and_isolates_exactly_shadow_training() {
    for (stage, listed, isolated) in [
        (SeedStage::Germinated, false, false),
        (SeedStage::Training, true, true),
        (SeedStage::Blending, true, false),
        (SeedStage::Holding, true, false),
        (SeedStage::Fossilized, true, false),
        (SeedStage::Pruned, false, false),
    ] {
        let mut rig = Rig::new(config(mlp()));
        let seed = rig.germinate("hidden0", "mlp");
        rig.bring_to(seed, stage);
        let (layout, parameters) = (rig.model().layout(), rig.model().parameters());
        let names: Vec<_> = layout.segments().iter().map(|segment| segment.spec.name.as_str()).collect();
        assert_eq!(names, parameters.iter().map(|parameter| parameter.name.as_str()).collect::<Vec<_>>());
        assert!(names.is_sorted());
        for (segment, parameter) in layout.segments().iter().zip(parameters) {
            assert_eq!(segment.spec.shape, parameter.var.dims());
        }
        let own: Vec<_> = layout.segments().iter().filter(|s| s.spec.owner == Owner::Seed(seed)).collect();
        assert_eq!(own.len(), if listed { 4 } else { 0 }, "{stage}");
        assert!(own.iter().all(|s| s.spec.isolated == isolated && s.spec.name.starts_with("seed.0001.")), "{stage}");
        let host: usize = (12 * 4 + 4) + (4 * 3 + 3) + (3 * 5 + 5);
        assert_eq!(layout.num_elements_of(Owner::Host), host);
        let state = rig.state(seed).unwrap();
        let elements = layout.num_elements_of(Owner::Seed(seed)) as u64;
        assert_eq!(elements, if listed { state.num_parameters } else { 0 });
    }
}

#[test]
fn every_trainable_parameter_has_a_gradient_in_every_stage() {
    for host in hosts() {
        for stage in [SeedStage::Training, SeedStage::Blending, SeedStage::Holding, SeedStage::Fossilized] {
            let mut rig = Rig::new(config(host.clone()));
            let seed = grown(&mut rig, stage);
            let (inputs, targets) = (batch(1).inputs, batch(1).targets);
            let outputs = rig.model().forward(&inputs, Pass::Train).unwrap();
            let main = cross_entropy(&outputs.logits, &targets).unwrap().backward().unwrap();
            for (parameter, segment) in rig.model().parameters().iter().zip(rig.model().layout().segments()) {
                let reached = main.get(&parameter.var).is_some();
                assert_eq!(reached, !segment.spec.isolated, "{} while {seed} is {stage}", parameter.name);
            }
        }
    }
}

#[test]
#[allow(clippy::disallowed_methods, reason = "tests look at values")]
fn training_makes_a_useful_seed_better_and_a_noise_seed_worse() {
    for (blueprint, improves) in [("mlp", true), ("norm_mlp", true), ("noise", false)] {
        let mut rig = Rig::new(config(HostConfig::Mlp { inputs: 12, hidden: vec![8], classes: 5 }));
        let seed = rig.germinate("input", blueprint);
        rig.bring_to(seed, SeedStage::Training);
        let side_loss = |rig: &Rig| {
            let shadow = rig.model().forward(&batch(0).inputs, Pass::Train).unwrap().shadows.remove(0);
            let loss = cross_entropy(&shadow.logits, &batch(0).targets).unwrap();
            loss.to_scalar::<f32>().unwrap()
        };
        // The host stands still: what changes is the seed.
        let host: Vec<_> = rig.model().host().weights().flat_map(|set| set.parameters().to_vec()).collect();
        let initial: Vec<_> = host.iter().map(|parameter| parameter.var.as_detached_tensor().copy().unwrap()).collect();
        let before = side_loss(&rig);
        for _ in 0..60 {
            rig.descend(0);
            for (parameter, initial) in host.iter().zip(&initial) {
                parameter.var.set(initial).unwrap();
            }
        }
        let after = side_loss(&rig);
        let change = after - before;
        assert!(if improves { change < -1e-3 } else { change > 1e-3 }, "{blueprint}: {before} to {after}");
    }
}

/// Central differences of the main loss against the backward pass, over every parameter of host and seed.
#[test]
#[allow(clippy::disallowed_methods, reason = "tests look at values")]
fn gradients_agree_with_finite_differences() {
    use candle_core::{Device, Tensor};
    const STEP: f32 = 1e-2;
    for (host, blueprint) in [(mlp(), "norm_mlp"), (cnn(), "conv"), (cnn(), "norm_mlp"), (cnn(), "mlp")] {
        let mut rig = Rig::new(config(host));
        let slot = rig.model().host().slots()[1].id.to_string();
        let seed = rig.germinate(&slot, blueprint);
        rig.bring_to(seed, SeedStage::Blending);
        rig.send(Operation::StartBlending { seed, ramp: ramp(0.5, 0) }).unwrap();
        for variant in 0..3 {
            rig.descend(variant);
        }
        let data = batch(1);
        let loss = || {
            let logits = rig.model().forward(&data.inputs, Pass::Train).unwrap().logits;
            cross_entropy(&logits, &data.targets).unwrap()
        };
        let gradients = loss().backward().unwrap();
        for parameter in rig.model().parameters() {
            let var = &parameter.var;
            let values = var.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            let found = gradients.get(var).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
            for index in 0..values.len() {
                let at = |offset: f32| {
                    let mut moved = values.clone();
                    moved[index] += offset;
                    var.set(&Tensor::from_vec(moved, var.shape(), &Device::Cpu).unwrap()).unwrap();
                    loss().to_scalar::<f32>().unwrap()
                };
                let expected = (at(STEP) - at(-STEP)) / (2.0 * STEP);
                at(0.0);
                // Second-order terms and f32 rounding stay below this; a kink of relu may lie within the step.
                let close = (found[index] - expected).abs() < 5e-3;
                assert!(close, "{blueprint} {}[{index}]: {} against {expected}", parameter.name, found[index]);
            }
        }
    }
}
