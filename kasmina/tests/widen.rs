//! Seeds around a hidden layer: they change nothing at birth, and one that is permanent is more units of the layer.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::collections::BTreeMap;

use candle_core::{Device, Tensor};
use esper_layers::operations::counted;
use kasmina::blueprint::Registry;
use kasmina::graft::{NetworkSpec, SeedSpec};
use kasmina::host::HostConfig;
use kasmina::init::InitMode;
use kasmina::weight::ElementType;
use kasmina::{GraftedModel, KasminaConfig};
use leyline::command::{Blend, Operation};
use leyline::durable::Durable;
use leyline::id::{BlueprintId, SeedId};
use leyline::model::{AlphaOverride, Pass, TrainableModel};
use leyline::region::Eager;
use leyline::seed::{SeedManager, SeedStage};
use leyline::unit::Alpha;
use support::{Rig, alpha, around, batch, config, cross_entropy, mlp, ramp, slot};

const AROUND: [&str; 2] = ["around0", "around1"];

fn at(seed: SeedId, value: f64) -> AlphaOverride {
    AlphaOverride { seed, alpha: alpha(value) }
}

/// A seed that has learned something.
fn grown(rig: &mut Rig, slot: &str, stage: SeedStage) -> SeedId {
    let seed = rig.germinate(slot, "widen");
    rig.bring_to(seed, stage);
    rig.fill(seed, 0.25);
    seed
}

#[test]
fn slots_around_layers_are_there_where_the_blueprint_is_named_and_change_no_bit() {
    let slots = |rig: &Rig| {
        let states = rig.manager.export_slot_states(&rig.eager).unwrap();
        let of = |slot: &leyline::seed::SlotState| {
            let offers = slot.offers.iter().map(|offer| offer.blueprint.to_string());
            (slot.slot.to_string(), offers.collect::<Vec<_>>().join(" "))
        };
        states.iter().map(of).collect::<Vec<_>>()
    };
    let plain = Rig::new(config(mlp()));
    let expected = ["input", "hidden0", "hidden1"].map(|id| (id.to_owned(), "mlp noise norm_mlp".to_owned()));
    assert_eq!(slots(&plain), expected);
    let before = (plain.evaluate(&[]), plain.train_logits(), plain.parameter_bits());
    let rig = Rig::beside(around(), plain.eager);
    let [input, hidden0, hidden1] = expected;
    let [around0, around1] = AROUND.map(|id| (id.to_owned(), "noise widen".to_owned()));
    assert_eq!(slots(&rig), [input, hidden0, around0, hidden1, around1]);
    assert_eq!((rig.evaluate(&[]), rig.train_logits(), rig.parameter_bits()), before);
}

#[test]
fn a_seed_is_born_without_effect_and_leaves_the_host_as_it_was_at_alpha_zero() {
    for slot in AROUND {
        for seed_init in [InitMode::Zero, InitMode::GradMax] {
            let mut rig = Rig::new(KasminaConfig { seed_init, ..around() });
            rig.manager.keep_batch(&rig.eager, &batch(7)).unwrap();
            let bare = (rig.evaluate(&[]), rig.train_logits());
            let seed = rig.germinate(slot, "widen");
            rig.bring_to(seed, SeedStage::Training);
            assert_eq!(rig.evaluate(&[at(seed, 1.0)]), bare.0, "newborn, in full");
            rig.fill(seed, f32::NAN);
            assert_eq!((rig.evaluate(&[]), rig.train_logits()), bare, "in training");
            rig.send(Operation::StartBlending { seed, ramp: ramp(0.5, 0) }).unwrap();
            assert_ne!(rig.evaluate(&[]), bare.0, "the seed acts now");
            assert_eq!(rig.evaluate(&[at(seed, 0.0)]), bare.0, "evaluated at 0");
            rig.send(Operation::Cull { seed }).unwrap();
            assert_eq!((rig.evaluate(&[]), rig.train_logits()), bare, "gone");
        }
    }
}

/// The network with these numbers for its tensors, by their names.
fn built(spec: &NetworkSpec, value: impl Fn(&str, usize) -> f64) -> GraftedModel {
    let tensors = spec.tensors(&Registry::all()).unwrap().into_iter().map(|(name, shape)| {
        let values: Vec<f64> = (0..shape.iter().product()).map(|index| value(&name, index)).collect();
        (name, Tensor::from_vec(values, shape, &Device::Cpu).unwrap())
    });
    spec.build(tensors.collect(), &Registry::all(), &Device::Cpu).unwrap()
}

/// Logits, and the gradient of every tensor.
#[allow(clippy::disallowed_methods, reason = "tests look at values")]
fn learning(model: &GraftedModel) -> (Vec<f64>, BTreeMap<String, Vec<Vec<f64>>>) {
    let batch = batch(3);
    let logits = model.forward(&batch.inputs, Pass::Train).unwrap().logits;
    let gradients = cross_entropy(&logits, &batch.targets).unwrap().backward().unwrap();
    let rows = |tensor: &Tensor| match tensor.rank() {
        1 => vec![tensor.to_vec1().unwrap()],
        _ => tensor.to_vec2().unwrap(),
    };
    let of = |p: &leyline::model::Parameter| (p.name.clone(), rows(gradients.get(&p.var).unwrap()));
    (logits.flatten_all().unwrap().to_vec1().unwrap(), model.parameters().iter().map(of).collect())
}

#[track_caller]
fn close(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() < 1e-12, "{found} against {expected}");
    }
}

/// 12 → 4 + 3 units → 3 + 2 units → 5.
#[test]
fn permanent_seeds_around_layers_compute_and_learn_what_the_wider_network_does() {
    let host = HostConfig::Mlp { inputs: 12, hidden: vec![4, 3], classes: 5 };
    let seed = |id: u32, width| SeedSpec {
        id: SeedId(id),
        slot: slot(AROUND[id as usize - 1]),
        blueprint: BlueprintId::new("widen").unwrap(),
        width,
        blend: Blend::Residual,
        alpha: Alpha::ONE,
    };
    // The second layer of the wider network has rows of new units that lead to new ones: 0, as between seeds there is nothing.
    let grown = NetworkSpec { host, dtype: ElementType::F64, seeds: vec![seed(1, 3), seed(2, 2)] };
    let number = |name: &str, index: usize| {
        let salt = name.bytes().fold(7.0, |sum, byte| sum * 1.1 % 31.0 + f64::from(byte));
        (salt + index as f64 * 0.83).sin() * 0.7
    };
    let model = built(&grown, number);
    let host = HostConfig::Mlp { inputs: 12, hidden: vec![7, 5], classes: 5 };
    let wide = NetworkSpec { host, dtype: ElementType::F64, seeds: Vec::new() };
    // What stands at (row, column) of a matrix of which each part has so many rows and columns.
    let within = |index: usize, [top, left, right]: [usize; 3], parts: [&str; 4]| {
        let (row, column) = (index / (left + right), index % (left + right));
        let (below, beside) = (row >= top, column >= left);
        let (row, column) = (if below { row - top } else { row }, if beside { column - left } else { column });
        let part = parts[2 * usize::from(below) + usize::from(beside)];
        if part.is_empty() { 0.0 } else { number(part, row * if beside { right } else { left } + column) }
    };
    let wider = built(&wide, |name, index| match name {
        "host.layer0.weight" => within(index, [12, 4, 3], ["host.layer0.weight", "seed.0001.down.weight", "", ""]),
        "host.layer0.bias" => within(index, [1, 4, 3], ["host.layer0.bias", "seed.0001.down.bias", "", ""]),
        "host.layer1.weight" => {
            within(index, [4, 3, 2], ["host.layer1.weight", "seed.0002.down.weight", "seed.0001.up.weight", ""])
        }
        "host.layer1.bias" => within(index, [1, 3, 2], ["host.layer1.bias", "seed.0002.down.bias", "", ""]),
        "host.head.weight" => within(index, [3, 5, 0], ["host.head.weight", "", "seed.0002.up.weight", ""]),
        _ => number(name, index),
    });
    let ((logits, found), (expected, of_wider)) = (learning(&model), learning(&wider));
    close(&logits, &expected);
    let columns = |name: &str, range: std::ops::Range<usize>| -> Vec<f64> {
        of_wider[name].iter().flat_map(|row| row[range.clone()].to_vec()).collect()
    };
    let all = |name: &str| found[name].concat();
    close(&all("host.layer0.weight"), &columns("host.layer0.weight", 0..4));
    close(&all("seed.0001.down.weight"), &columns("host.layer0.weight", 4..7));
    close(&all("seed.0001.down.bias"), &columns("host.layer0.bias", 4..7));
    close(&all("seed.0001.up.weight"), &columns("host.layer1.weight", 0..3)[12..]);
    close(&all("seed.0002.down.weight"), &columns("host.layer1.weight", 3..5)[..8]);
    close(&all("seed.0002.up.weight"), &columns("host.head.weight", 0..5)[15..]);
    close(&all("host.head.weight"), &columns("host.head.weight", 0..5)[..15]);
}

#[test]
fn a_restored_network_goes_on_bit_for_bit() {
    let go_on = |rig: &mut Rig| {
        for variant in 20..24 {
            rig.descend(variant);
        }
        let seed = rig.germinate("around1", "widen");
        rig.bring_to(seed, SeedStage::Training);
        rig.descend(30);
        (rig.fingerprint().3, rig.parameter_bits())
    };
    let mut rig = Rig::new(around());
    grown(&mut rig, "around0", SeedStage::Fossilized);
    let blending = grown(&mut rig, "around0", SeedStage::Training);
    rig.send(Operation::StartBlending { seed: blending, ramp: ramp(0.8, 9) }).unwrap();
    for variant in 0..3 {
        rig.descend(variant);
    }
    let saved = rig.manager.save(&rig.eager).unwrap();
    let expected = go_on(&mut rig);
    let mut other = Rig::beside(KasminaConfig { init_seed: 5, ..around() }, rig.eager);
    other.manager.restore(&mut other.eager, &saved).unwrap();
    assert_eq!(go_on(&mut other), expected);
    let mut plain = Rig::beside(config(mlp()), other.eager);
    let error = plain.manager.restore(&mut plain.eager, &saved).unwrap_err();
    assert_eq!(error.to_string(), "the host has no slot `around0`: expected one of input, hidden0, hidden1");
}

/// 12 → 4 → 3 → 5, with 8 more units of one of the two layers.
#[test]
fn a_seed_costs_its_own_products_and_those_behind_it() {
    let mut eager = Eager::acquire().unwrap();
    // From the slot on: the new units, then what follows; the backward pass to the seed takes as much again for each product on the way, and
    // as much for each of its weights.
    let second = [12.0 * 8.0 + 8.0 * 3.0, 3.0 * 5.0, 8.0 * 3.0];
    let third = [4.0 * 8.0 + 8.0 * 5.0, 0.0, 8.0 * 5.0];
    for (slot, [own, behind, up]) in AROUND.into_iter().zip([second, third]) {
        let mut rig = Rig::beside(around(), eager);
        let costs = rig.manager.costs(&rig.eager, 6).unwrap().unwrap();
        let of = |offer: &&(leyline::id::SlotId, BlueprintId, leyline::seed::Cost)| {
            offer.0.as_str() == slot && offer.1.as_str() == "widen"
        };
        let offered = costs.offers.iter().find(of).unwrap().2;
        // 2 for a product; W₁ and W₂ each once, h·W₂ once more, and what is behind once more.
        close(&[offered.training], &[2.0 * (own + behind + own + up + behind)]);
        let seed = rig.germinate(slot, "widen");
        rig.bring_to(seed, SeedStage::Training);
        let (_, counted) = counted(|| {
            let outputs = rig.model().forward(&batch(1).inputs, Pass::Train).unwrap();
            cross_entropy(&outputs.shadows[0].logits, &batch(1).targets).unwrap().backward().unwrap()
        });
        close(&[counted.looking as f64], &[6.0 * offered.training]);
        eager = rig.eager;
    }
}
