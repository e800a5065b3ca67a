//! Orders that are refused change nothing, and what the telemetry says of those that are carried out.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;

use candle_core::Tensor;
use kasmina::blueprint::{Blueprint, Registry};
use kasmina::host::SlotShape;
use kasmina::weight::WeightSpec;
use leyline::command::Operation;
use leyline::error::{Error as _, ErrorKind};
use leyline::id::{BlueprintId, SeedId};
use leyline::region::Eager;
use leyline::seed::SeedStage;
use support::{Rig, config, mlp, slot};

#[test]
fn an_impossible_germination_is_refused_with_what_is_possible() {
    let mut rig = Rig::new(config(mlp()));
    for (slot_id, blueprint, message) in [
        ("nowhere", "mlp", "the host has no slot `nowhere`: expected one of input, hidden0, hidden1"),
        (
            "input",
            "nothing",
            "there is no blueprint `nothing`: expected one of attention, causal_attention, conv, mlp, noise, norm_mlp",
        ),
        ("input", "conv", "blueprint `conv` does not fit slot `input` of shape (12)"),
    ] {
        let before = rig.fingerprint();
        let blueprint = BlueprintId::new(blueprint).unwrap();
        let error = rig.send(Operation::germinate(slot(slot_id), blueprint)).unwrap_err();
        assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::Rejected, message));
        assert_eq!(rig.fingerprint(), before);
    }
    assert_eq!(rig.germinate("input", "mlp"), SeedId(1), "a refused germination uses up no seed id");
    assert_eq!(rig.recorder.events_named("operation_refused").len(), 3);
}

/// A blueprint without parameters.
#[derive(Debug)]
struct Bare;

impl Blueprint for Bare {
    fn name(&self) -> &'static str {
        "bare"
    }

    fn fits(&self, slot: SlotShape) -> bool {
        !matches!(slot, SlotShape::Around { .. })
    }

    fn weights(&self, _slot: SlotShape, _width: usize) -> Vec<WeightSpec> {
        Vec::new()
    }

    fn delta(&self, _weights: &[Tensor], h: &Tensor) -> candle_core::Result<Tensor> {
        h.affine(0.5, 0.0)
    }
}

#[test]
fn a_live_seed_without_parameters_counts_as_attached() {
    let mut registry = Registry::with_noise();
    registry.register(Arc::new(Bare)).unwrap();
    let mut rig = Rig::with_registry(config(mlp()), registry, Eager::acquire().unwrap());
    let attached = |rig: &Rig| rig.recorder.gauge_value("kasmina.seed.kernel_attached", &["seed-1"]);
    let seed = rig.germinate("hidden0", "bare");
    assert_eq!((attached(&rig), rig.state(seed).unwrap().num_parameters), (Some(1.0), 0));
    rig.send(Operation::Cull { seed }).unwrap();
    assert_eq!(attached(&rig), Some(0.0));
}

#[test]
fn the_life_of_a_seed_can_be_followed_in_the_telemetry() {
    let mut rig = Rig::new(config(mlp()));
    let gauge = |rig: &Rig, name: &str, labels: &[&str]| rig.recorder.gauge_value(name, labels);
    assert_eq!(gauge(&rig, "kasmina.seeds.active", &[]), Some(0.0));
    let seed = rig.germinate("hidden0", "mlp");
    rig.bring_to(seed, SeedStage::Training);
    assert_eq!(gauge(&rig, "kasmina.seeds.active", &[]), Some(1.0));
    assert_eq!(gauge(&rig, "kasmina.seed.stage", &["seed-1"]), Some(3.0));
    assert_eq!(gauge(&rig, "kasmina.seed.alpha_steps", &["seed-1"]), None, "no ramp runs");
    rig.send(Operation::StartBlending { seed, ramp: support::ramp(1.0, 4) }).unwrap();
    rig.end_step();
    assert_eq!(gauge(&rig, "kasmina.seed.alpha_steps", &["seed-1"]), Some(1.0));
    assert_eq!(gauge(&rig, "kasmina.seed.alpha", &["seed-1"]), Some(rig.state(seed).unwrap().alpha.get()));
    rig.send(Operation::Cull { seed }).unwrap();
    assert_eq!(gauge(&rig, "kasmina.seeds.active", &[]), Some(0.0));
    assert_eq!(gauge(&rig, "kasmina.seed.parameters", &["seed-1"]), Some(0.0));
    for _ in 0..5 {
        rig.end_epoch();
    }
    assert_eq!(gauge(&rig, "kasmina.seed.stage", &["seed-1"]), None, "its slot is free");
    let stages: Vec<String> =
        rig.recorder.events_named("seed_stage").into_iter().map(|event| event.attributes[2].1.clone()).collect();
    assert_eq!(stages, ["germinated", "training", "blending", "pruned", "embargoed", "resetting", "dormant"]);
    assert_eq!(rig.recorder.events_named("seed_operation").len(), 4);
}
