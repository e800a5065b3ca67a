//! The real seed manager behind the layer that verifies: every command gets exactly one answer, and is used up by it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use candle_core::{Device, Tensor};
use esper_signing::{CommandKey, Error, Verified};
use kasmina::blueprint::{Blueprint, Registry};
use kasmina::host::{HostConfig, SlotShape};
use kasmina::weight::WeightSpec;
use kasmina::{Kasmina, KasminaConfig};
use leyline::command::{AlphaCurve, AlphaRamp, Command, KeyId, Operation, Order, SignedCommand};
use leyline::error::{Error as _, ErrorKind};
use leyline::id::{RunId, SeedId};
use leyline::region::{Eager, declare_recording};
use leyline::seed::{Applied, SeedManager};
use leyline::unit::Alpha;
use leyline_testkit::clock::ManualClock;
use leyline_testkit::recording_recorder::RecordingRecorder;

const ANSWERS: [&str; 3] = ["seed_operation", "operation_refused", "command_rejected"];
const KEY: CommandKey = CommandKey::new([42; 32]);

/// A blueprint on which the device fails once it is registered.
#[derive(Debug, Default)]
struct Failing(Arc<AtomicBool>);

impl Blueprint for Failing {
    fn name(&self) -> &'static str {
        "failing"
    }
    fn fits(&self, slot: SlotShape) -> bool {
        !matches!(slot, SlotShape::Around { .. })
    }
    fn weights(&self, _slot: SlotShape, _width: usize) -> Vec<WeightSpec> {
        Vec::new()
    }
    fn delta(&self, _weights: &[Tensor], h: &Tensor) -> candle_core::Result<Tensor> {
        if !self.0.load(Ordering::Relaxed) {
            return Ok(h.clone());
        }
        Err(candle_core::Error::Msg("the device failed".into()))
    }
}

struct Rig {
    manager: Verified<Kasmina>,
    eager: Eager,
    recorder: Arc<RecordingRecorder>,
    sequence: u64,
}

impl Rig {
    fn new() -> Self {
        let (recorder, clock) = (Arc::new(RecordingRecorder::new()), Arc::new(ManualClock::default()));
        let (mut registry, fails) = (Registry::with_noise(), Arc::new(AtomicBool::new(false)));
        registry.register(Arc::new(Failing(Arc::clone(&fails)))).unwrap();
        fails.store(true, Ordering::Relaxed);
        let host = HostConfig::Mlp { inputs: 12, hidden: vec![4, 3], classes: 5 };
        let config = KasminaConfig { seed_width: 8, ..KasminaConfig::new(host) };
        let manager = Kasmina::with_registry(config, registry, &Device::Cpu, clock.clone(), recorder.clone()).unwrap();
        let manager = Verified::new(manager, run_id(), KEY, clock, recorder.clone());
        Self { manager, eager: Eager::acquire().unwrap(), recorder, sequence: 0 }
    }

    fn command(&mut self, operation: Operation) -> Command {
        self.sequence += 1;
        Command::new(run_id(), self.sequence, 1_700_000_000_000, operation, "test".to_owned())
    }

    fn apply(&mut self, signed: &SignedCommand) -> Result<Applied, Error<kasmina::Error>> {
        let order = Order { signed: Some(signed.clone()), ..Operation::Hold { seed: SeedId(77) }.into() };
        self.manager.apply(&mut self.eager, &order)
    }

    /// Applies a command; its only answer is `answer`.
    #[track_caller]
    fn check_answer(&mut self, signed: &SignedCommand, answer: Option<&str>) {
        let told = self.recorder.events().len();
        let outcome = self.apply(signed);
        let events = self.recorder.events();
        let names: Vec<&str> = events[told..].iter().map(|event| event.desc.name).collect();
        let answers: Vec<&str> = names.iter().copied().filter(|name| ANSWERS.contains(name)).collect();
        assert_eq!(answers, Vec::from_iter(answer), "{names:?} {outcome:?}");
        let expected = match &outcome {
            Ok(_) => Some("seed_operation"),
            Err(Error::Command(_)) => Some("command_rejected"),
            Err(error) if error.kind() == ErrorKind::Region => None,
            Err(_) => Some("operation_refused"),
        };
        assert_eq!(answer, expected, "{outcome:?}");
    }
}

fn run_id() -> RunId {
    RunId::new("run-1").unwrap()
}

fn sign(command: &Command) -> SignedCommand {
    KEY.sign(KeyId::default(), command)
}

fn germinate(slot: &str, blueprint: &str) -> Operation {
    Operation::germinate(slot.parse().unwrap(), blueprint.parse().unwrap())
}

fn blend(seed: SeedId, target: f64) -> Operation {
    let ramp = AlphaRamp { target: Alpha::new(target).unwrap(), steps: 9, curve: AlphaCurve::Cosine };
    Operation::StartBlending { seed, ramp }
}

#[test]
fn every_command_gets_exactly_one_answer() {
    let mut rig = Rig::new();
    let seed = SeedId(1);
    let (applied, refused) = ("seed_operation", "operation_refused");
    for (operation, answer) in [
        (Operation::Cull { seed }, refused),
        (germinate("hidden1", "failing"), refused),
        (germinate("nowhere", "mlp"), refused),
        (germinate("input", "nothing"), refused),
        (germinate("input", "mlp"), applied),
        (germinate("input", "mlp"), refused),
        (Operation::StartTraining { seed }, applied),
        (Operation::StartTraining { seed }, refused),
        (blend(seed, 0.0), refused),
        // Closed for lack of evidence: the gate adds its detail.
        (blend(seed, 1.0), refused),
        (Operation::Cull { seed }, applied),
    ] {
        let signed = sign(&rig.command(operation));
        rig.check_answer(&signed, Some(answer));
    }
    let details = rig.recorder.events_named("gate_failure");
    assert!(!details.is_empty(), "the detail is beside the answer, not instead of it");
    let second = &rig.recorder.events_named("operation_refused")[1];
    assert_eq!(
        second.attributes[1..3],
        [("sequence", "2".to_owned()), ("error", "a tensor operation failed".to_owned())]
    );

    let good = rig.command(germinate("input", "mlp"));
    let rejected = [
        SignedCommand { tag: [0; 32], ..sign(&good) },
        SignedCommand { key_id: KeyId(9), ..sign(&good) },
        sign(&Command { run_id: RunId::new("run-2").unwrap(), ..good.clone() }),
        sign(&Command { valid_for_ms: 0, ..good.clone() }),
        sign(&Command { issued_at_unix_ms: 0, ..good.clone() }),
        sign(&Command { issued_at_unix_ms: u64::MAX, ..good.clone() }),
        sign(&Command { sequence: 1, ..good.clone() }),
    ];
    for signed in &rejected {
        rig.check_answer(signed, Some("command_rejected"));
    }
    {
        let _recording = declare_recording();
        rig.check_answer(&sign(&good), None);
    }
    rig.check_answer(&sign(&good), Some(refused));
    rig.check_answer(&sign(&good), Some("command_rejected"));
}

#[test]
fn a_command_that_the_device_failed_on_is_used_up() {
    let mut rig = Rig::new();
    let signed = sign(&rig.command(germinate("input", "failing")));
    assert_eq!(rig.apply(&signed).unwrap_err().kind(), ErrorKind::Device);
    assert!(rig.manager.export_seed_states(&rig.eager).unwrap().is_empty());
    rig.check_answer(&signed, Some("command_rejected"));
}
