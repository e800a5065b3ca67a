//! A network that is built again from the saved state of its manager answers as it did, and holds what acts and nothing else.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::collections::BTreeMap;

use candle_core::{Device, Tensor};
use kasmina::KasminaConfig;
use kasmina::blueprint::Registry;
use kasmina::graft::NetworkSpec;
use kasmina::weight::ElementType;
use leyline::command::{Blend, BlendMode, ChannelWeights, Operation};
use leyline::durable::Durable;
use leyline::id::{BlueprintId, SeedId};
use leyline::model::{Pass, TrainableModel};
use leyline::region::Eager;
use leyline::seed::SeedStage;
use leyline::unit::Alpha;
use support::{Rig, batch_for, config, configurations, exact_bits, fitting, mlp, ramp, slot};

/// A blend of this mode for a slot of so many channels.
fn blend(mode: BlendMode, channels: usize) -> Blend {
    match mode {
        BlendMode::Convex => Blend::Convex,
        BlendMode::Residual => Blend::Residual,
        BlendMode::Channel => Blend::Channel(ChannelWeights::new(vec![0.3; channels]).unwrap()),
        BlendMode::Confidence => Blend::Confidence(<_>::default()),
        BlendMode::Multiply => Blend::Multiply,
        BlendMode::Gate => Blend::Gate,
    }
}

/// A permanent seed and one on its way in at one slot, both of this mode, one that learns and one that is paused at others.
fn grown(config: KasminaConfig, mode: BlendMode, eager: Eager) -> Rig {
    let mut rig = Rig::beside(config, eager);
    let mut slots: Vec<_> = rig.model().host().slots().to_vec();
    // Of a host that has some around its layers, those first.
    slots.sort_by_key(|slot| slot.sees.is_none());
    let germinate = |rig: &mut Rig, index: usize, blueprint: &str| {
        let (slot, channels) = (slots[index].id.clone(), slots[index].shape.channels());
        let blueprint = BlueprintId::new(fitting(slot.as_str(), blueprint)).unwrap();
        rig.send(Operation::Germinate { slot, blueprint, blend: blend(mode, channels) }).unwrap().seed
    };
    let permanent = germinate(&mut rig, 1, "mlp");
    rig.bring_to(permanent, SeedStage::Fossilized);
    let blending = germinate(&mut rig, 1, "norm_mlp");
    rig.bring_to(blending, SeedStage::Training);
    rig.send(Operation::StartBlending { seed: blending, ramp: ramp(0.8, 9) }).unwrap();
    let learner = germinate(&mut rig, 2, "norm_mlp");
    rig.bring_to(learner, SeedStage::Training);
    for variant in 0..4 {
        rig.descend(variant);
    }
    rig
}

#[test]
fn a_network_that_is_built_again_answers_bit_for_bit_as_it_did() {
    let mut eager = Some(Eager::acquire().unwrap());
    for config in configurations() {
        for mode in BlendMode::ALL {
            let rig = grown(config.clone(), mode, eager.take().unwrap());
            let saved = rig.manager.save(&rig.eager).unwrap();
            let (spec, tensors) = NetworkSpec::of_saved(&saved).unwrap();
            assert_eq!(spec.seeds.iter().map(|seed| seed.id.0).collect::<Vec<_>>(), [1, 2], "the learner does not act");
            assert!(spec.seeds[0].alpha.is_one() && !spec.seeds[1].alpha.is_one());
            // What is stored is text and tensors.
            let read: NetworkSpec = serde_json::from_str(&serde_json::to_string(&spec).unwrap()).unwrap();
            let again = read.build(tensors, &Registry::all(), &Device::Cpu).unwrap();
            for variant in 10..12 {
                let inputs = batch_for(&config.host, variant).inputs;
                let [before, after] = [rig.model(), &again]
                    .map(|model| model.forward(&inputs, Pass::Evaluate { overrides: &[] }).unwrap().logits);
                assert_eq!(exact_bits(&after), exact_bits(&before), "{mode} {:?}", config.dtype);
            }
            eager = Some(rig.eager);
        }
    }
}

#[test]
fn a_seed_that_is_paused_or_fades_acts_as_it_acted() {
    let mut rig = grown(config(mlp()), BlendMode::Residual, Eager::acquire().unwrap());
    let blending = SeedId(2);
    let ids = |rig: &Rig| {
        let (spec, _) = NetworkSpec::of_saved(&rig.manager.save(&rig.eager).unwrap()).unwrap();
        spec.seeds.iter().map(|seed| seed.id.0).collect::<Vec<_>>()
    };
    rig.send(Operation::CullGradually { seed: blending, steps: 9, curve: <_>::default() }).unwrap();
    rig.end_step();
    assert_eq!(ids(&rig), [1, 2], "it fades");
    rig.send(Operation::Pause { seed: blending }).unwrap();
    assert_eq!(ids(&rig), [1], "it is paused");
}

fn described() -> (NetworkSpec, BTreeMap<String, Tensor>) {
    let rig = grown(config(mlp()), BlendMode::Residual, Eager::acquire().unwrap());
    NetworkSpec::of_saved(&rig.manager.save(&rig.eager).unwrap()).unwrap()
}

#[test]
fn a_description_that_cannot_be_a_network_is_refused_with_what_is_accepted() {
    let (spec, _) = described();
    let check = |change: &dyn Fn(&mut NetworkSpec), expected: &str| {
        let mut changed = spec.clone();
        change(&mut changed);
        let error = changed.tensors(&Registry::all()).unwrap_err().to_string();
        assert!(error.contains(expected), "`{expected}` is missing in: {error}");
    };
    check(&|spec| spec.seeds.swap(0, 1), "`seeds.seed-1.id` is not above the one before");
    check(&|spec| spec.seeds[1].alpha = Alpha::ZERO, "`seeds.seed-2.alpha` is 0, expected a number above 0");
    check(&|spec| spec.seeds[1].alpha = Alpha::new(1e-60).unwrap(), "`seeds.seed-2.alpha`");
    check(
        &|spec| spec.seeds[0].alpha = Alpha::new(0.5).unwrap(),
        "`seeds.seed-2.slot` is hidden0, expected no seed behind",
    );
    check(&|spec| spec.seeds[0].width = 0, "`seeds.seed-1.width` is 0, expected 1 to 65536");
    check(&|spec| spec.seeds[0].slot = slot("hidden7"), "no slot `hidden7`: expected one of input, hidden0, hidden1");
    check(&|spec| spec.seeds[0].blueprint = BlueprintId::new("gru").unwrap(), "no blueprint `gru`: expected one of");
    check(&|spec| spec.seeds[0].blueprint = BlueprintId::new("conv").unwrap(), "`conv` does not fit slot `hidden0`");
    check(
        &|spec| spec.seeds[0].blend = blend(BlendMode::Channel, 3),
        "3 channel weights were given for a slot of shape (4): expected 4",
    );
    let huge = |inputs| kasmina::host::HostConfig::Mlp { inputs, hidden: vec![1 << 20], classes: 5 };
    check(&|spec| spec.host = huge(1 << 20), "parameters: expected at most 2147483648");
    check(&|spec| spec.host = huge(1 << 21), "`host.mlp.inputs` is 2097152: expected 1 to 1048576");
}

#[test]
fn tensors_that_are_not_those_of_the_network_are_refused_by_name() {
    let (spec, tensors) = described();
    let check = |change: &dyn Fn(&mut BTreeMap<String, Tensor>), expected: &str| {
        let mut changed = tensors.clone();
        change(&mut changed);
        let error = spec.build(changed, &Registry::all(), &Device::Cpu).unwrap_err().to_string();
        assert_eq!(error, expected);
    };
    let name = "seed.0001.up.bias";
    let with = |shape: usize, dtype: ElementType| Tensor::zeros(shape, dtype.dtype(), &Device::Cpu).unwrap();
    check(&|tensors| drop(tensors.remove(name)), "saved tensor `seed.0001.up.bias` is missing");
    check(
        &|tensors| drop(tensors.insert(name.to_owned(), with(5, ElementType::F32))),
        "saved tensor `seed.0001.up.bias` has shape [5], expected [4]",
    );
    check(
        &|tensors| drop(tensors.insert(name.to_owned(), with(4, ElementType::F64))),
        "saved tensor `seed.0001.up.bias` has elements of f64, expected f32",
    );
    let error = {
        let mut changed = tensors.clone();
        changed.insert("seed.0009.up.bias".to_owned(), with(4, ElementType::F32));
        spec.build(changed, &Registry::all(), &Device::Cpu).unwrap_err().to_string()
    };
    assert!(error.contains("seed.0009.up.bias"), "{error}");
}
