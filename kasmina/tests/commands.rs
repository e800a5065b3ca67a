//! Commands from outside: what fails a security check changes nothing, is counted, and repeats nothing.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use candle_core::{Device, Tensor};
use kasmina::blueprint::{Blueprint, Registry};
use kasmina::host::SlotShape;
use kasmina::weight::WeightSpec;
use kasmina::{CommandKey, Kasmina};
use leyline::clock::Clock;
use leyline::command::{Command, Operation, SignedCommand};
use leyline::error::{Error as _, ErrorKind};
use leyline::id::{BlueprintId, RunId, SeedId};
use leyline::region::Eager;
use leyline::seed::{SeedManager, SeedStage};
use support::{KEY, Rig, config, mlp, run_id, sign, slot};

fn germination() -> Operation {
    Operation::germinate(slot("input"), BlueprintId::new("mlp").unwrap())
}

#[track_caller]
fn check_rejected(rig: &mut Rig, signed: &SignedCommand, reason: &str) {
    let before = rig.fingerprint();
    let counted = || rig.recorder.counter_value("kasmina.command_verifier.rejections_total", &[reason]);
    let count = counted().unwrap();
    let error = rig.manager.apply(&mut rig.eager, signed).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Rejected);
    assert_eq!(rig.recorder.counter_value("kasmina.command_verifier.rejections_total", &[reason]), Some(count + 1));
    let event = rig.recorder.events_named("command_rejected").pop().unwrap();
    assert_eq!(event.attributes, [("reason", reason.to_owned())], "nothing of the command is repeated");
    assert_eq!(rig.fingerprint(), before);
}

#[test]
fn a_command_is_rejected_for_each_reason_and_counted_under_it() {
    let mut rig = Rig::new(config(mlp()));
    rig.sequence = 10;
    let good = rig.command(germination());
    let mut forged = sign(&good);
    forged.tag[0] ^= 1;
    check_rejected(&mut rig, &forged, "invalid_signature");
    check_rejected(&mut rig, &sign(&Command { run_id: RunId::new("run-2").unwrap(), ..good.clone() }), "foreign_run");
    let issued_at_unix_ms = good.issued_at_unix_ms - 60_001;
    check_rejected(&mut rig, &sign(&Command { issued_at_unix_ms, ..good.clone() }), "stale_command");
    let issued_at_unix_ms = good.issued_at_unix_ms + 5_001;
    check_rejected(&mut rig, &sign(&Command { issued_at_unix_ms, ..good.clone() }), "issued_in_future");
    // None of these used up the number.
    rig.manager.apply(&mut rig.eager, &sign(&good)).unwrap();
    assert_eq!(rig.recorder.counter_value("kasmina.command_verifier.accepted_total", &[]), Some(1));
    check_rejected(&mut rig, &sign(&good), "sequence_replayed");
    check_rejected(&mut rig, &sign(&Command { sequence: 3, ..good }), "sequence_replayed");
}

#[test]
fn a_command_that_waited_too_long_is_stale() {
    let mut rig = Rig::new(config(mlp()));
    let waiting = sign(&rig.command(germination()));
    rig.clock.advance(Duration::from_millis(60_001));
    check_rejected(&mut rig, &waiting, "stale_command");
}

#[test]
fn every_altered_byte_of_a_command_is_refused_by_the_manager() {
    let mut rig = Rig::new(config(mlp()));
    let good = sign(&rig.command(germination()));
    for position in 0..good.bytes.len() {
        let mut altered = good.clone();
        altered.bytes[position] ^= 1;
        assert_eq!(rig.manager.apply(&mut rig.eager, &altered).unwrap_err().kind(), ErrorKind::Rejected);
    }
    assert!(rig.states().is_empty());
    rig.manager.apply(&mut rig.eager, &good).unwrap();
}

#[test]
fn an_impossible_germination_is_refused_with_what_is_possible() {
    let mut rig = Rig::new(config(mlp()));
    for (slot_id, blueprint, message) in [
        ("nowhere", "mlp", "the host has no slot `nowhere`: expected one of input, hidden0, hidden1"),
        ("input", "nothing", "there is no blueprint `nothing`: expected one of attention, conv, mlp, noise, norm_mlp"),
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

    fn fits(&self, _slot: SlotShape) -> bool {
        true
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
fn the_gauge_of_nonces_follows_refusals_and_the_ends_of_epochs() {
    let mut rig = Rig::new(config(mlp()));
    let size = |rig: &Rig| rig.recorder.gauge_value("kasmina.nonce_ledger.size", &[]);
    let seed = rig.germinate("hidden0", "mlp");
    assert_eq!(size(&rig), Some(1.0));
    rig.send(Operation::Hold { seed }).unwrap_err();
    assert_eq!(size(&rig), Some(2.0), "a refused command is used up too");
    rig.clock.advance(Duration::from_millis(60_001));
    rig.end_epoch();
    assert_eq!(size(&rig), Some(0.0));
    assert_eq!(rig.recorder.counter_value("kasmina.nonce_ledger.evictions_total", &[]), Some(2));
}

/// Every look at it takes a millisecond.
#[derive(Debug)]
struct Ticking(AtomicU64);

impl Clock for Ticking {
    fn now(&self) -> Duration {
        Duration::from_millis(self.0.fetch_add(1, Ordering::Relaxed))
    }

    fn unix(&self) -> Duration {
        Duration::from_secs(1_000_000)
    }
}

#[test]
fn a_rejected_command_is_timed_as_every_other() {
    let mut rig = Rig::new(config(mlp()));
    let clock = Arc::new(Ticking(AtomicU64::new(0)));
    let (key, recorder) = (CommandKey::new(KEY), rig.recorder.clone());
    rig.manager = Kasmina::new(config(mlp()), &Device::Cpu, run_id(), key, clock, recorder).unwrap();
    let signed = sign(&rig.command(germination()));
    rig.manager.apply(&mut rig.eager, &SignedCommand { tag: [0; 32], ..signed }).unwrap_err();
    assert!(rig.recorder.gauge_value("kasmina.apply_ms", &[]).is_some_and(|took| took >= 2.0));
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
