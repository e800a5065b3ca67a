//! What gates tell, and how a latency is taken.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use candle_core::Device;
use kasmina::lifecycle::GateConfig;
use kasmina::{Kasmina, KasminaConfig};
use leyline::clock::Clock;
use leyline::command::Operation;
use leyline::durable::Durable;
use leyline::id::BlueprintId;
use leyline::seed::{Gate, SeedStage};
use leyline::telemetry::Event;
use support::{Rig, config, mlp, ramp, slot};

/// The events of gates after the first `from` events.
fn told(rig: &Rig, from: usize) -> Vec<String> {
    let events = rig.recorder.events().into_iter().skip(from);
    let gates = events.filter(|event| ["gate_event", "gate_failure"].contains(&event.desc.name));
    let of = |event: &Event, name| {
        event.attributes.iter().find(|(key, _)| *key == name).map_or("-", |(_, value)| value).to_owned()
    };
    gates
        .map(|event| {
            format!("{} {} {} {}", event.desc.name, of(&event, "seed_id"), of(&event, "gate"), of(&event, "target"))
        })
        .collect()
}

#[test]
fn a_gate_that_lets_a_seed_pass_is_told_once_over_a_whole_life() {
    let mut rig = Rig::new(config(mlp()));
    let seed = rig.germinate("hidden0", "mlp");
    rig.bring_to(seed, SeedStage::Fossilized);
    rig.end_epoch();
    let expected = [
        "gate_event seed-1 G0 germinated",
        "gate_event seed-1 G1 training",
        "gate_event seed-1 G2 blending",
        "gate_event seed-1 G3 holding",
        "gate_event seed-1 G4 fossilized",
    ];
    assert_eq!(told(&rig, 0), expected);

    // Announced at the end of an epoch, a gate is not told again on the command; back in blending, G3 is passed again.
    let from = rig.recorder.events().len();
    let seed = rig.germinate("hidden0", "mlp");
    rig.end_epoch();
    rig.end_epoch();
    rig.bring_to(seed, SeedStage::Holding);
    rig.send(Operation::StartBlending { seed, ramp: ramp(1.0, 0) }).unwrap();
    rig.send(Operation::Pause { seed }).unwrap();
    rig.send(Operation::Resume { seed }).unwrap();
    rig.send(Operation::Hold { seed }).unwrap();
    rig.send(Operation::Cull { seed }).unwrap();
    for _ in 0..9 {
        rig.end_epoch();
    }
    let expected = [
        "gate_event seed-2 G0 germinated",
        "gate_event seed-2 G1 training",
        "gate_event seed-2 G2 blending",
        "gate_event seed-2 G3 holding",
        "gate_event seed-2 G4 fossilized",
        "gate_event seed-2 G1 blending",
        "gate_event seed-2 G3 holding",
        "gate_event seed-2 G5 dormant",
    ];
    assert_eq!(told(&rig, from), expected);
}

#[test]
fn a_refused_germination_is_told_as_a_failure_of_its_gate() {
    let gates = GateConfig { max_seed_parameters: Some(75), ..GateConfig::default() };
    let mut rig = Rig::new(KasminaConfig { gates, ..config(mlp()) });
    rig.send(Operation::germinate(slot("hidden0"), BlueprintId::new("mlp").unwrap())).unwrap_err();
    assert_eq!(told(&rig, 0), ["gate_failure - G0 germinated"]);
}

#[test]
fn with_all_gates_off_a_seed_that_acts_in_part_is_still_not_held() {
    let gates = GateConfig { off: Gate::ALL.to_vec(), ..GateConfig::default() };
    let mut rig = Rig::new(KasminaConfig { gates, ..config(mlp()) });
    let seed = rig.germinate("hidden0", "mlp");
    rig.send(Operation::StartTraining { seed }).unwrap();
    rig.send(Operation::StartBlending { seed, ramp: ramp(0.5, 0) }).unwrap();
    let refused = rig.send(Operation::Hold { seed }).unwrap_err().to_string();
    assert!(refused.contains("alpha target 0.5"), "{refused}");
    rig.send(Operation::StartBlending { seed, ramp: ramp(1.0, 2) }).unwrap();
    let refused = rig.send(Operation::Hold { seed }).unwrap_err().to_string();
    assert!(refused.contains("alpha ramp Up"), "{refused}");
    rig.end_step();
    rig.end_step();
    rig.send(Operation::Hold { seed }).unwrap();
    rig.send(Operation::Fossilize { seed }).unwrap();
    let saved = rig.manager.save(&rig.eager).unwrap();
    rig.manager.restore(&mut rig.eager, &saved).unwrap();
}

/// One tick a millisecond, but for one that takes a second.
#[derive(Debug)]
struct Spiky {
    now: AtomicU64,
    ticks: AtomicU64,
    spike: u64,
}

impl Clock for Spiky {
    fn now(&self) -> Duration {
        let tick = self.ticks.fetch_add(1, Ordering::Relaxed);
        let took = if tick == self.spike { 1_000 } else { 1 };
        Duration::from_millis(self.now.fetch_add(took, Ordering::Relaxed) + took)
    }

    fn unix(&self) -> Duration {
        Duration::from_secs(1_000_000)
    }
}

#[test]
fn one_slow_pass_does_not_decide_on_a_latency() {
    let mut rig = Rig::new(config(mlp()));
    let gates = GateConfig { latency_budget_ms: Some(2.0), ..GateConfig::default() };
    for spike in 0..20 {
        let clock = Arc::new(Spiky { now: AtomicU64::new(0), ticks: AtomicU64::new(0), spike });
        let recorder = rig.recorder.clone();
        let config = KasminaConfig { gates: gates.clone(), ..config(mlp()) };
        rig.manager = Kasmina::new(config, &Device::Cpu, clock, recorder).unwrap();
        rig.germinate("hidden0", "mlp");
        assert!(rig.manager.save(&rig.eager).unwrap().json.contains("\"prewarm_ms\":1.0"), "a spike at tick {spike}");
    }
}

#[test]
fn a_seed_that_was_never_timed_is_timed_when_it_is_restored_under_a_budget() {
    let mut rig = Rig::new(config(mlp()));
    let seed = rig.germinate("hidden0", "mlp");
    rig.bring_to(seed, SeedStage::Training);
    let saved = rig.manager.save(&rig.eager).unwrap();
    let gates = GateConfig { latency_budget_ms: Some(1.0), ..GateConfig::default() };
    let mut timed = Rig::beside(KasminaConfig { gates, ..config(mlp()) }, rig.eager);
    timed.manager.restore(&mut timed.eager, &saved).unwrap();
    timed.send(Operation::StartBlending { seed, ramp: ramp(1.0, 3) }).unwrap();
    let met = timed.state(seed).unwrap().last_gate.unwrap().met.join("; ");
    assert!(met.contains("latency 0.000 ms"), "{met}");
    let again = timed.manager.save(&timed.eager).unwrap();
    timed.manager.restore(&mut timed.eager, &again).unwrap();
    assert_eq!(timed.manager.save(&timed.eager).unwrap().json.matches("\"prewarm_ms\":0.0").count(), 1);
}
