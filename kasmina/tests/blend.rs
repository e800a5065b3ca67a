//! Blends in a network: nothing at α = 0, one revision per ramp, the same function when permanent, gates that train.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use kasmina::host::HostConfig;
use kasmina::{Kasmina, KasminaConfig};
use leyline::command::{AlphaCurve, Blend, ChannelWeights, ConfidenceGate, Operation};
use leyline::durable::Durable;
use leyline::error::{Error as _, ErrorKind};
use leyline::id::{BlueprintId, SeedId};
use leyline::model::{AlphaOverride, Pass, TrainableModel};
use leyline::region::Eager;
use leyline::seed::{AlphaMode, AttributionMode, SeedManager, SeedStage};
use support::{Rig, alpha, batch, bits, config, cross_entropy, hosts, mlp, ramp};

/// Every mode at a slot of so many channels.
fn blends(channels: usize) -> [Blend; 6] {
    let weights = [0.25, 1.0, 0.5, 0.75].into_iter().cycle().take(channels).collect();
    [
        Blend::Residual,
        Blend::Convex,
        Blend::Channel(ChannelWeights::new(weights).unwrap()),
        Blend::Confidence(ConfidenceGate::new(4.0, 0.2, 0.25, 1.0).unwrap()),
        Blend::Multiply,
        Blend::Gate,
    ]
}

fn germinate(rig: &mut Rig, slot_index: usize, blueprint: &str, blend: Blend) -> SeedId {
    let slot = rig.model().host().slots()[slot_index].id.clone();
    let blueprint = BlueprintId::new(blueprint).unwrap();
    rig.send(Operation::Germinate { slot, blueprint, blend }).unwrap().seed
}

/// Runs `f` with a fresh rig for each host and each mode at its second slot.
fn for_every_blend(mut f: impl FnMut(&mut Rig, Blend)) {
    let mut eager = Some(Eager::acquire().unwrap());
    for host in hosts() {
        for index in 0..6 {
            let mut rig = Rig::beside(config(host.clone()), eager.take().unwrap());
            let blend = blends(rig.model().host().slots()[1].shape.channels())[index].clone();
            f(&mut rig, blend);
            eager = Some(rig.eager);
        }
    }
}

/// Logits of an evaluation, of a training pass, and the gradient of every parameter of the host.
fn function(rig: &Rig, overrides: &[AlphaOverride]) -> (Vec<u32>, Vec<u32>, Vec<Vec<u32>>) {
    let batch = batch(1);
    let logits = rig.model().forward(&batch.inputs, Pass::Train).unwrap().logits;
    let gradients = cross_entropy(&logits, &batch.targets).unwrap().backward().unwrap();
    let host = rig.model().host().weights().flat_map(|set| set.parameters());
    let gradients = host.map(|parameter| bits(gradients.get(&parameter.var).unwrap())).collect();
    (rig.evaluate(overrides), bits(&logits), gradients)
}

/// A seed of this blend that has learned something, on its way to act.
fn learned(rig: &mut Rig, blend: Blend) -> SeedId {
    let seed = germinate(rig, 1, "mlp", blend);
    rig.bring_to(seed, SeedStage::Training);
    for variant in 0..4 {
        rig.descend(variant);
    }
    seed
}

#[test]
fn at_alpha_zero_every_blend_is_the_exact_host_even_with_a_seed_of_nan() {
    for_every_blend(|rig, blend| {
        let bare = function(rig, &[]);
        let seed = germinate(rig, 1, "mlp", blend.clone());
        rig.bring_to(seed, SeedStage::Training);
        rig.fill(seed, f32::NAN);
        assert_eq!(function(rig, &[]), bare, "{blend:?} in the shadow");
        rig.send(Operation::StartBlending { seed, ramp: ramp(0.5, 0) }).unwrap();
        // Zero in f32 is zero, though the number is not.
        for tiny in [0.0, 1e-60] {
            let zero = AlphaOverride { seed, alpha: alpha(tiny) };
            assert_eq!(rig.evaluate(&[zero]), bare.0, "{blend:?} evaluated at {tiny}");
            assert_ne!(rig.evaluate(&[]), bare.0, "{blend:?} acts");
        }
        rig.send(Operation::CullGradually { seed, steps: 1, curve: AlphaCurve::Linear }).unwrap();
        rig.end_step();
        assert_eq!(function(rig, &[]), bare, "{blend:?} culled gradually");
    });
}

#[test]
fn becoming_permanent_keeps_the_function_and_its_gradients() {
    for_every_blend(|rig, blend| {
        let seed = learned(rig, blend.clone());
        rig.send(Operation::StartBlending { seed, ramp: ramp(1.0, 0) }).unwrap();
        let acting = function(rig, &[]);
        let overridden = [AlphaOverride { seed, alpha: alpha(1.0) }];
        assert_eq!(rig.evaluate(&overridden), acting.0);
        rig.ripen(seed);
        rig.send(Operation::Hold { seed }).unwrap();
        rig.ripen(seed);
        rig.send(Operation::Fossilize { seed }).unwrap();
        assert_eq!(function(rig, &[]), acting, "{blend:?}");
        assert_eq!(rig.evaluate(&overridden), acting.0);
        let without = rig.evaluate(&[AlphaOverride { seed, alpha: alpha(0.0) }]);
        assert_ne!(without, acting.0, "{blend:?} did something");
    });
}

#[test]
fn an_evaluation_at_another_alpha_agrees_with_being_there() {
    for_every_blend(|rig, blend| {
        let seed = learned(rig, blend.clone());
        let at = |rig: &Rig, value| rig.evaluate(&[AlphaOverride { seed, alpha: alpha(value) }]);
        let (part, full) = (at(rig, 0.3), at(rig, 1.0));
        let shadow = rig.model().forward(&batch(1).inputs, Pass::Train).unwrap().shadows.remove(0);
        assert_eq!(bits(&shadow.logits), full, "{blend:?}: shadow training sees it in full");
        rig.send(Operation::StartBlending { seed, ramp: ramp(0.3, 0) }).unwrap();
        assert_eq!(rig.evaluate(&[]), part, "{blend:?}");
    });
}

/// α and revision for each step of a ramp, and after the last; a gradual cull leads to 0.
fn steps_of(rig: &mut Rig, seed: SeedId, target: f64) -> Vec<(f64, u64)> {
    let cull = Operation::CullGradually { seed, steps: 20, curve: AlphaCurve::Cosine };
    let blend = || Operation::StartBlending { seed, ramp: ramp(target, 20) };
    rig.send(if target > 0.0 { blend() } else { cull }).unwrap();
    let now = |rig: &Rig| (rig.state(seed).unwrap().alpha.get(), rig.model().layout().revision().0);
    let mut seen = vec![now(rig)];
    while rig.state(seed).unwrap().alpha_mode != AlphaMode::Hold {
        rig.end_step();
        seen.push(now(rig));
    }
    assert!(seen.len() >= 20, "{seen:?}");
    seen
}

/// What is recorded belongs to a revision of the layout: one for all steps with α above 0, and none of them at α = 0.
#[test]
fn a_ramp_costs_one_revision_and_none_is_shared_between_zero_and_more() {
    for_every_blend(|rig, blend| {
        let seed = learned(rig, blend.clone());
        let before = rig.model().layout().revision().0;
        // Down to 0.25 and back up, then away.
        for target in [1.0, 0.25, 0.75, 0.0] {
            let from = rig.state(seed).unwrap().alpha.get();
            let old = rig.model().layout().revision().0;
            let steps = steps_of(rig, seed, target);
            let (last, ramping) = steps.split_last().unwrap();
            // It begins to act, or its parameters are frozen.
            let acting = if from > 0.0 && target > 0.0 { old } else { old + 1 };
            let inside = |&(alpha, revision): &(f64, u64)| alpha > 0.0 && revision == acting;
            assert!(ramping.iter().all(inside), "{blend:?} to {target}: {steps:?}");
            let up = if target > from { 1.0 } else { -1.0 };
            assert!(steps.is_sorted_by(|a, b| up * a.0 < up * b.0), "{blend:?} to {target}: {steps:?}");
            let expected = (target, if target > 0.0 { acting } else { acting + 1 });
            assert_eq!((last.0.to_bits(), last.1), (expected.0.to_bits(), expected.1), "{blend:?} to {target}");
        }
        assert_eq!(rig.model().layout().revision().0, before + 3, "acts, is frozen, goes");
    });
}

/// A seed that ignores its input and takes the host's place leaves nothing of the host: its gradient is 0, not absent.
#[test]
fn every_parameter_that_trains_has_a_gradient_in_every_stage() {
    for blueprint in ["mlp", "noise"] {
        for stage in [SeedStage::Training, SeedStage::Blending, SeedStage::Fossilized] {
            for_every_blend(|rig, blend| {
                let seed = germinate(rig, 1, blueprint, blend.clone());
                rig.bring_to(seed, stage);
                let outputs = rig.model().forward(&batch(1).inputs, Pass::Train).unwrap();
                let of = |logits| cross_entropy(logits, &batch(1).targets).unwrap().backward().unwrap();
                let (main, side) = (of(&outputs.logits), outputs.shadows.first().map(|shadow| of(&shadow.logits)));
                for (parameter, segment) in rig.model().parameters().iter().zip(rig.model().layout().segments()) {
                    let what = format!("{} of {blueprint} with {blend:?}, {stage}", parameter.name);
                    assert_eq!(main.get(&parameter.var).is_some(), !segment.spec.isolated, "{what}");
                    let reached = side.as_ref().is_some_and(|side| side.get(&parameter.var).is_some());
                    assert_eq!(reached, segment.spec.isolated, "{what}, side loss");
                }
            });
        }
    }
}

#[test]
fn shadow_training_reaches_every_tensor_of_the_seed_and_nothing_else() {
    for_every_blend(|rig, blend| {
        // Before the last layer no unit of the host is dead, whatever a seed puts there; a multiple of a dead unit is 0.
        let slot_index = if blend == Blend::Multiply { 0 } else { 2 };
        let blend = match blend {
            Blend::Channel(_) => blends(rig.model().host().slots()[slot_index].shape.channels())[2].clone(),
            other => other,
        };
        let seed = germinate(rig, slot_index, "mlp", blend.clone());
        rig.bring_to(seed, SeedStage::Training);
        for variant in 0..4 {
            rig.descend(variant);
            assert_eq!(rig.manager.audit_isolation(&rig.eager, &batch(variant)).unwrap(), [], "{blend:?}");
        }
        let names: Vec<String> = rig.manager.seed_parameters(seed).unwrap().into_iter().map(|p| p.name).collect();
        let gates = names.iter().filter(|name| name.starts_with("seed.0001.gate.")).count();
        assert_eq!(gates, if blend == Blend::Gate { 4 } else { 0 });
        let elements: usize = rig.seed_vars(seed).iter().map(|var| var.elem_count()).sum();
        assert_eq!(rig.state(seed).unwrap().num_parameters, elements as u64);
        let outputs = rig.model().forward(&batch(9).inputs, Pass::Train).unwrap();
        let gradients = cross_entropy(&outputs.shadows[0].logits, &batch(9).targets).unwrap().backward().unwrap();
        for (name, var) in names.iter().zip(rig.seed_vars(seed)) {
            let gradient = bits(gradients.get(&var).unwrap());
            assert!(gradient.iter().any(|bits| bits << 1 != 0), "{name} with {blend:?} is stuck");
        }
    });
}

#[test]
fn a_gate_is_saved_and_brought_back_bit_for_bit() {
    for host in hosts() {
        let mut rig = Rig::new(config(host.clone()));
        let seed = learned(&mut rig, Blend::Gate);
        rig.send(Operation::StartBlending { seed, ramp: ramp(0.8, 3) }).unwrap();
        for variant in 0..5 {
            rig.descend(variant);
        }
        let (saved, found) = (rig.manager.save(&rig.eager).unwrap(), (function(&rig, &[]), rig.parameter_bits()));
        assert!(saved.tensors.contains_key("seed.0001.gate.up.weight"));
        let mut other = Rig::beside(KasminaConfig { init_seed: 5, ..config(host) }, rig.eager);
        other.manager.restore(&mut other.eager, &saved).unwrap();
        assert_eq!((function(&other, &[]), other.parameter_bits()), found);

        let mut damaged = saved.clone();
        damaged.tensors.remove("seed.0001.gate.down.bias");
        let error = other.manager.restore(&mut other.eager, &damaged).unwrap_err();
        assert_eq!(error.to_string(), "saved tensor `seed.0001.gate.down.bias` is missing");
        assert_eq!((function(&other, &[]), other.parameter_bits()), found, "a failed restore changes nothing");
    }
}

#[test]
fn a_blend_that_does_not_fit_its_slot_is_refused_and_changes_nothing() {
    let weights = Blend::Channel(ChannelWeights::new(vec![0.5; 5]).unwrap());
    let sure = Blend::Confidence(ConfidenceGate::default());
    let narrow = HostConfig::Mlp { inputs: 12, hidden: vec![1], classes: 5 };
    let mut eager = Some(Eager::acquire().unwrap());
    for (host, blend, expected) in [
        (mlp(), weights, "5 channel weights were given for a slot of shape (4): expected 4"),
        (
            narrow,
            sure,
            "a slot of shape (1) has one channel and no margin between two: expected another blend than confidence",
        ),
    ] {
        let mut rig = Rig::beside(config(host), eager.take().unwrap());
        let before = rig.fingerprint();
        let slot = rig.model().host().slots()[1].id.clone();
        let operation = Operation::Germinate { slot, blueprint: BlueprintId::new("mlp").unwrap(), blend };
        let error = rig.send(operation).unwrap_err();
        assert_eq!((error.to_string().as_str(), error.kind()), (expected, ErrorKind::Rejected));
        assert_eq!(rig.fingerprint(), before);
        assert_eq!(germinate(&mut rig, 1, "mlp", Blend::Residual), SeedId(1), "no id was used up");
        eager = Some(rig.eager);
    }
}

#[test]
fn a_budget_counts_the_tensors_of_the_blend_too() {
    let elements = |blend: Blend, eager| {
        let mut rig = Rig::beside(config(mlp()), eager);
        let seed = germinate(&mut rig, 1, "mlp", blend);
        (rig.state(seed).unwrap().num_parameters, rig.eager)
    };
    let (bare, eager) = elements(Blend::Residual, Eager::acquire().unwrap());
    let (gated, mut eager) = elements(Blend::Gate, eager);
    assert!(gated > bare);
    for (offered_blend, expected) in [(Blend::Residual, bare), (Blend::Multiply, bare), (Blend::Gate, gated)] {
        let slots = Kasmina::preview(&KasminaConfig { offered_blend, ..config(mlp()) }).unwrap();
        let offer = slots[1].offers.iter().find(|offer| offer.blueprint.as_str() == "mlp").unwrap();
        assert_eq!(offer.num_parameters, expected, "what is on offer is what a seed will have");
    }
    for (budget, blend, refused) in [
        (bare, Blend::Residual, None),
        (bare - 1, Blend::Residual, Some(bare)),
        (gated, Blend::Gate, None),
        (gated - 1, Blend::Gate, Some(gated)),
        (bare, Blend::Gate, Some(gated)),
    ] {
        let blueprint_budgets = [("mlp".to_owned(), budget)].into();
        let mut rig = Rig::beside(KasminaConfig { blueprint_budgets, ..config(mlp()) }, eager);
        let before = rig.fingerprint();
        let slot = rig.model().host().slots()[1].id.clone();
        let found =
            rig.send(Operation::Germinate { slot, blueprint: BlueprintId::new("mlp").unwrap(), blend: blend.clone() });
        if let Some(needed) = refused {
            let error = found.unwrap_err();
            let expected = format!("blueprint `mlp` needs {needed} parameters: its budget is {budget}");
            assert_eq!((error.to_string(), error.kind()), (expected, ErrorKind::Rejected), "{blend:?}");
            assert_eq!(rig.fingerprint(), before, "{blend:?}");
        } else {
            found.unwrap();
        }
        eager = rig.eager;
    }
}

/// A gate over so many channels has 2^38 elements: it is refused before they are drawn.
#[test]
fn a_seed_that_is_too_large_with_its_blend_is_refused_before_it_is_made() {
    let host = HostConfig::Mlp { inputs: 1 << 20, hidden: vec![1], classes: 2 };
    let mut rig = Rig::new(KasminaConfig { seed_width: 1, ..config(host) });
    let operation = |blend| {
        let slot = support::slot("input");
        Operation::Germinate { slot, blueprint: BlueprintId::new("mlp").unwrap(), blend }
    };
    let error = rig.send(operation(Blend::Gate)).unwrap_err();
    let (module, gate) = ((3 << 20) + 1_u64, (1 << 38) + (2 << 18) + 1_u64);
    let needed = module + gate;
    let expected =
        format!("a seed of blueprint `mlp` needs {needed} parameters at shape (1048576): expected at most 2147483648");
    assert_eq!((error.to_string(), error.kind()), (expected, ErrorKind::Rejected));
    assert_eq!(rig.states(), []);
    assert_eq!(rig.send(operation(Blend::Residual)).unwrap().seed, SeedId(1), "no id was used up");
}

/// What counts is what the seed changed: the output less the host's value.
#[test]
fn a_contribution_is_measured_as_the_difference_that_a_seed_makes() {
    let mut eager = Some(Eager::acquire().unwrap());
    // Newborn, f = 0: the host is gone, its value was taken away. Filled with 50, tanh f = 1: the host is doubled.
    for (blend, fill, expected) in
        [(Blend::Convex, None, 0.5), (Blend::Multiply, Some(50.0), 0.5), (Blend::Gate, None, 0.0)]
    {
        let config = KasminaConfig { attribution: AttributionMode::Contribution, ..config(mlp()) };
        let mut rig = Rig::beside(config, eager.take().unwrap());
        let seed = germinate(&mut rig, 1, "mlp", blend.clone());
        rig.bring_to(seed, SeedStage::Blending);
        if let Some(value) = fill {
            rig.fill(seed, value);
        }
        let attribution = rig.manager.attribute_batch(&rig.eager, &batch(1)).unwrap();
        assert_eq!(attribution.used(), AttributionMode::Contribution);
        assert!((attribution.weights()[0].1 - expected).abs() < 1e-6, "{blend:?}: {attribution:?}");
        eager = Some(rig.eager);
    }
}
