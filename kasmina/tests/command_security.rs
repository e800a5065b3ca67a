//! Attacks on the way of a command: forged, altered, cut, repeated. And that every command gets exactly one answer.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use candle_core::{Device, Tensor};
use hmac::{Hmac, KeyInit, Mac};
use kasmina::blueprint::{Blueprint, Registry};
use kasmina::command::NonceLedger;
use kasmina::host::SlotShape;
use kasmina::weight::WeightSpec;
use kasmina::{CommandKey, Error, Journal, Kasmina, KasminaConfig};
use leyline::clock::Clock;
use leyline::command::{AlphaCurve, Blend, Command, KeyId, Nonce, Operation, SignedCommand};
use leyline::durable::Durable;
use leyline::error::{Error as _, ErrorKind};
use leyline::id::{BlueprintId, RunId, SeedId};
use leyline::region::declare_recording;
use leyline::seed::SeedManager;
use leyline::telemetry::NullRecorder;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use sha2::Sha256;
use support::{KEY, Rig, config, mlp, ramp, run_id, sign, slot};

const ANSWERS: [&str; 3] = ["seed_operation", "operation_refused", "command_rejected"];

fn germination() -> Operation {
    Operation::germinate(slot("input"), BlueprintId::new("mlp").unwrap())
}

fn operations() -> Vec<Operation> {
    let seed = SeedId(1);
    vec![
        germination(),
        Operation::Germinate {
            slot: slot("hidden0"),
            blueprint: BlueprintId::new("norm_mlp").unwrap(),
            blend: Blend::Convex,
        },
        Operation::StartTraining { seed },
        Operation::StartBlending { seed, ramp: ramp(0.5, 9) },
        Operation::Hold { seed },
        Operation::Fossilize { seed },
        Operation::Pause { seed },
        Operation::Resume { seed },
        Operation::CullGradually { seed, steps: 3, curve: AlphaCurve::Sigmoid },
        Operation::Cull { seed },
    ]
}

/// Signs whatever the bytes are.
fn sign_bytes(bytes: Vec<u8>) -> SignedCommand {
    let key_id = KeyId::default();
    let mut mac = Hmac::<Sha256>::new_from_slice(&KEY).unwrap();
    mac.update(&SignedCommand::signed_message(key_id, &bytes));
    SignedCommand { key_id, tag: mac.finalize().into_bytes().into(), bytes }
}

/// Takes the form that travels, as a receiver does. Whether it was let in: carried out, or refused for what it asks.
fn deliver(rig: &mut Rig, wire: &[u8]) -> bool {
    let Ok(signed) = SignedCommand::from_wire(wire) else { return false };
    match rig.manager.apply(&mut rig.eager, &signed) {
        Err(Error::Command(_)) => false,
        Ok(_) | Err(_) => true,
    }
}

/// Delivers what the attack makes of a genuine command of every kind; then the genuine one, which is let in.
#[track_caller]
fn check_attack(mut attack: impl FnMut(&[u8], &mut dyn FnMut(&[u8]))) {
    let mut rig = Rig::new(config(mlp()));
    // With nobody counting: there are hundreds of thousands of rejections.
    let recorder = Arc::new(NullRecorder);
    let key = CommandKey::new(KEY);
    rig.manager = Kasmina::new(config(mlp()), &Device::Cpu, run_id(), key, rig.clock.clone(), recorder).unwrap();
    for operation in operations() {
        let what = operation.to_string();
        let wire = sign(&rig.command(operation)).to_wire();
        let (before, saved) = (rig.fingerprint(), rig.manager.save(&rig.eager).unwrap().json);
        attack(&wire, &mut |forged| assert!(!deliver(&mut rig, forged), "{what} was let in as {forged:?}"));
        assert_eq!((rig.fingerprint(), rig.manager.save(&rig.eager).unwrap().json), (before, saved), "{what}");
        assert!(deliver(&mut rig, &wire), "{what}");
    }
}

#[test]
fn no_byte_can_be_altered() {
    check_attack(|wire, deliver| {
        let mut forged = wire.to_vec();
        for position in 0..wire.len() {
            for flip in 1..=255 {
                forged[position] = wire[position] ^ flip;
                deliver(&forged);
            }
            forged[position] = wire[position];
        }
    });
}

#[test]
fn nothing_can_be_cut_off_added_or_moved() {
    check_attack(|wire, deliver| {
        for len in 0..wire.len() {
            deliver(&wire[..len]);
            deliver(&wire[wire.len() - len..]);
            let mut without_one = wire.to_vec();
            without_one.remove(len);
            deliver(&without_one);
        }
        for byte in 0..=255 {
            deliver(&[wire, &[byte]].concat());
            deliver(&[&[byte], wire].concat());
        }
        deliver(&[wire, wire].concat());
        deliver(&vec![0; SignedCommand::MAX_WIRE_BYTES]);
        deliver(&[wire, &vec![0; SignedCommand::MAX_WIRE_BYTES]].concat());
    });
}

#[test]
fn a_million_random_tags_are_refused() {
    let mut rig = Rig::new(config(mlp()));
    let key = CommandKey::new(KEY);
    let (clock, recorder) = (rig.clock.clone(), Arc::new(NullRecorder));
    rig.manager = Kasmina::new(config(mlp()), &Device::Cpu, run_id(), key, clock, recorder).unwrap();
    let genuine = sign(&rig.command(germination()));
    let (before, saved) = (rig.fingerprint(), rig.manager.save(&rig.eager).unwrap().json);
    let mut forged = genuine.clone();
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    for _ in 0..1_000_000 {
        rng.fill_bytes(&mut forged.tag);
        assert_ne!(forged.tag, genuine.tag, "this would be the tag");
        assert!(rig.manager.apply(&mut rig.eager, &forged).is_err());
    }
    assert_eq!((rig.fingerprint(), rig.manager.save(&rig.eager).unwrap().json), (before, saved));
    rig.manager.apply(&mut rig.eager, &genuine).unwrap();
}

#[track_caller]
fn check_replay(rig: &mut Rig, signed: &SignedCommand) {
    let (before, saved) = (rig.fingerprint(), rig.manager.save(&rig.eager).unwrap().json);
    let error = rig.manager.apply(&mut rig.eager, signed).unwrap_err();
    assert!(matches!(&error, Error::Command(rejection) if rejection.reason() == "sequence_replayed"), "{error:?}");
    assert_eq!((rig.fingerprint(), rig.manager.save(&rig.eager).unwrap().json), (before, saved));
}

/// As a new process has it: another manager under the same key.
fn restarted(rig: Rig) -> Rig {
    let (sequence, clock) = (rig.sequence, rig.clock);
    // What the old manager holds open is closed first.
    drop(rig.manager);
    let mut rig = Rig { sequence, ..Rig::beside(config(mlp()), rig.eager) };
    let (key, recorder) = (CommandKey::new(KEY), rig.recorder.clone());
    rig.manager = Kasmina::new(config(mlp()), &Device::Cpu, run_id(), key, clock.clone(), recorder).unwrap();
    rig.clock = clock;
    rig
}

fn with_journal(rig: Rig, path: &Path) -> Rig {
    let journal = Journal::open(path, rig.clock.unix()).unwrap();
    let manager = rig.manager.with_journal(journal);
    Rig { manager, ..rig }
}

#[test]
fn a_replay_is_refused_at_once_and_by_whoever_restores_the_state() {
    let mut rig = Rig::new(config(mlp()));
    let first = sign(&rig.command(germination()));
    rig.manager.apply(&mut rig.eager, &first).unwrap();
    check_replay(&mut rig, &first);
    let saved = rig.manager.save(&rig.eager).unwrap();
    let mut fresh = restarted(rig);
    fresh.manager.restore(&mut fresh.eager, &saved).unwrap();
    check_replay(&mut fresh, &first);
    // The nonce alone, too.
    let reused =
        Command { nonce: Nonce::from_counter(1), ..fresh.command(Operation::StartTraining { seed: SeedId(1) }) };
    let error = fresh.manager.apply(&mut fresh.eager, &sign(&reused)).unwrap_err();
    assert!(matches!(&error, Error::Command(rejection) if rejection.reason() == "nonce_replayed"), "{error:?}");
    fresh.send(Operation::StartTraining { seed: SeedId(1) }).unwrap();
}

#[test]
fn a_replay_is_refused_after_a_restart_with_nothing_but_the_journal() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("commands.journal");
    let mut rig = with_journal(Rig::new(config(mlp())), &path);
    let first = sign(&rig.command(germination()));
    let refused = sign(&rig.command(Operation::Hold { seed: SeedId(1) }));
    rig.manager.apply(&mut rig.eager, &first).unwrap();
    let error = rig.manager.apply(&mut rig.eager, &refused).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::IllegalTransition, "{error}");

    let mut forgetful = restarted(rig);
    forgetful.manager.apply(&mut forgetful.eager, &first).expect("without the journal, nothing is known of it");

    let mut rig = with_journal(restarted(forgetful), &path);
    check_replay(&mut rig, &first);
    check_replay(&mut rig, &refused);
    rig.germinate("input", "mlp");
}

#[test]
fn going_back_to_a_snapshot_lets_nothing_in_again() {
    let mut rig = Rig::new(config(mlp()));
    let before = rig.manager.save(&rig.eager).unwrap();
    let first = sign(&rig.command(germination()));
    rig.manager.apply(&mut rig.eager, &first).unwrap();
    let between = rig.manager.save(&rig.eager).unwrap();
    let second = sign(&rig.command(Operation::StartTraining { seed: SeedId(1) }));
    rig.manager.apply(&mut rig.eager, &second).unwrap();

    for snapshot in [&between, &before] {
        rig.manager.restore(&mut rig.eager, snapshot).unwrap();
        check_replay(&mut rig, &first);
        check_replay(&mut rig, &second);
    }
    assert!(rig.states().is_empty());
    assert_eq!(rig.germinate("input", "mlp"), SeedId(1), "new commands are carried out");
    // What was learned after a snapshot is part of the next one.
    let saved = rig.manager.save(&rig.eager).unwrap();
    let mut fresh = restarted(rig);
    fresh.manager.restore(&mut fresh.eager, &saved).unwrap();
    check_replay(&mut fresh, &second);
}

#[test]
fn a_refused_restore_leaves_what_was_accepted() {
    let mut rig = Rig::new(config(mlp()));
    let first = sign(&rig.command(germination()));
    rig.manager.apply(&mut rig.eager, &first).unwrap();
    let mut saved = rig.manager.save(&rig.eager).unwrap();
    for (from, to) in [("\"last_sequence\":1", "\"last_sequence\":-1"), ("\"init_seed\"", "\"init_sead\"")] {
        let damaged = saved.json.replacen(from, to, 1);
        assert_ne!(damaged, saved.json);
        let whole = std::mem::replace(&mut saved.json, damaged);
        assert_eq!(rig.manager.restore(&mut rig.eager, &saved).unwrap_err().kind(), ErrorKind::Corrupt);
        saved.json = whole;
        check_replay(&mut rig, &first);
    }
}

/// A blueprint on which the device fails once it is registered.
#[derive(Debug, Default)]
struct Failing(Arc<AtomicBool>);

impl Blueprint for Failing {
    fn name(&self) -> &'static str {
        "failing"
    }
    fn fits(&self, _slot: SlotShape) -> bool {
        true
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

/// Applies a command; its only answer is `answer`.
#[track_caller]
fn check_answer(rig: &mut Rig, signed: &SignedCommand, answer: Option<&str>) {
    let told = rig.recorder.events().len();
    let outcome = rig.manager.apply(&mut rig.eager, signed);
    let events = rig.recorder.events();
    let names: Vec<&str> = events[told..].iter().map(|event| event.desc.name).collect();
    let answers: Vec<&str> = names.iter().copied().filter(|name| ANSWERS.contains(name)).collect();
    assert_eq!(answers, Vec::from_iter(answer), "{names:?} {outcome:?}");
    let expected = match &outcome {
        Ok(_) => Some("seed_operation"),
        Err(Error::Region(_)) => None,
        Err(Error::Command(_)) => Some("command_rejected"),
        Err(_) => Some("operation_refused"),
    };
    assert_eq!(answer, expected, "{outcome:?}");
}

#[test]
fn every_command_gets_exactly_one_answer() {
    let mut rig = Rig::new(config(mlp()));
    let mut registry = Registry::with_noise();
    let fails = Arc::new(AtomicBool::new(false));
    registry.register(Arc::new(Failing(Arc::clone(&fails)))).unwrap();
    fails.store(true, Ordering::Relaxed);
    let (key, clock, recorder) = (CommandKey::new(KEY), rig.clock.clone(), rig.recorder.clone());
    let config = config(mlp());
    rig.manager = Kasmina::with_registry(config, registry, &Device::Cpu, run_id(), key, clock, recorder).unwrap();
    let seed = SeedId(1);
    let (applied, refused) = ("seed_operation", "operation_refused");
    let failing = Operation::germinate(slot("hidden1"), BlueprintId::new("failing").unwrap());
    for (operation, answer) in [
        (Operation::Cull { seed }, refused),
        (failing, refused),
        (Operation::germinate(slot("nowhere"), BlueprintId::new("mlp").unwrap()), refused),
        (Operation::germinate(slot("input"), BlueprintId::new("nothing").unwrap()), refused),
        (germination(), applied),
        (germination(), refused),
        (Operation::StartTraining { seed }, applied),
        (Operation::StartTraining { seed }, refused),
        (Operation::StartBlending { seed, ramp: ramp(0.0, 9) }, refused),
        // Closed for lack of evidence: the gate adds its detail.
        (Operation::StartBlending { seed, ramp: ramp(1.0, 9) }, refused),
        (Operation::Cull { seed }, applied),
    ] {
        let signed = sign(&rig.command(operation));
        check_answer(&mut rig, &signed, Some(answer));
    }
    let details = rig.recorder.events_named("gate_failure");
    assert!(!details.is_empty(), "the detail is beside the answer, not instead of it");
    assert_eq!(rig.recorder.events_named("operation_refused")[1].attributes[2].1, "a tensor operation failed");

    let good = rig.command(germination());
    let run_id = RunId::new("run-2").unwrap();
    let mut retired = rig.command(Operation::Cull { seed: SeedId(9) }).to_bytes();
    let at = retired.iter().rposition(|&byte| byte == 8).unwrap();
    retired[at] = 5;
    let rejected = [
        SignedCommand { tag: [0; 32], ..sign(&good) },
        SignedCommand { key_id: KeyId(9), ..sign(&good) },
        sign_bytes(b"nonsense".to_vec()),
        sign_bytes(retired),
        sign(&Command { run_id, ..good.clone() }),
        sign(&Command { valid_for_ms: 0, ..good.clone() }),
        sign(&Command { issued_at_unix_ms: 0, ..good.clone() }),
        sign(&Command { issued_at_unix_ms: u64::MAX, ..good.clone() }),
        sign(&Command { sequence: 1, ..good.clone() }),
        sign(&Command { nonce: Nonce::from_counter(1), ..good.clone() }),
    ];
    for signed in &rejected {
        check_answer(&mut rig, signed, Some("command_rejected"));
    }
    {
        let _recording = declare_recording();
        check_answer(&mut rig, &sign(&good), None);
    }
    check_answer(&mut rig, &sign(&good), Some(refused));
    check_answer(&mut rig, &sign(&good), Some("command_rejected"));
}

#[test]
fn more_commands_than_can_be_remembered_are_refused_until_some_expire() {
    let mut rig = Rig::new(KasminaConfig { nonce_capacity: 2, ..config(mlp()) });
    let seed = rig.germinate("input", "mlp");
    rig.send(Operation::StartTraining { seed }).unwrap();
    let third = rig.command(Operation::Cull { seed });
    let error = rig.manager.apply(&mut rig.eager, &sign(&third)).unwrap_err();
    assert!(matches!(&error, Error::Command(rejection) if rejection.reason() == "ledger_full"), "{error:?}");
    assert_eq!(rig.manager.nonce_ledger(), NonceLedger { size: 2, num_forgotten: 0 });
    rig.clock.advance(Duration::from_millis(60_001));
    rig.send(Operation::Cull { seed }).unwrap();
    assert_eq!(rig.manager.nonce_ledger(), NonceLedger { size: 1, num_forgotten: 2 });
}

#[test]
fn a_command_that_the_device_failed_on_is_used_up() {
    let mut registry = Registry::standard();
    let fails = Arc::new(AtomicBool::new(false));
    registry.register(Arc::new(Failing(Arc::clone(&fails)))).unwrap();
    fails.store(true, Ordering::Relaxed);
    let mut rig = Rig::new(config(mlp()));
    let (key, clock, recorder) = (CommandKey::new(KEY), rig.clock.clone(), rig.recorder.clone());
    rig.manager =
        Kasmina::with_registry(config(mlp()), registry, &Device::Cpu, run_id(), key, clock, recorder).unwrap();
    let signed = sign(&rig.command(Operation::germinate(slot("input"), BlueprintId::new("failing").unwrap())));
    let before = rig.fingerprint();
    assert_eq!(rig.manager.apply(&mut rig.eager, &signed).unwrap_err().kind(), ErrorKind::Device);
    assert_eq!(rig.fingerprint(), before);
    check_replay(&mut rig, &signed);
}

#[test]
fn a_command_refused_under_a_capture_is_not_used_up() {
    let mut rig = Rig::new(config(mlp()));
    let signed = sign(&rig.command(germination()));
    {
        let _recording = declare_recording();
        let error = rig.manager.apply(&mut rig.eager, &signed).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Region);
    }
    rig.manager.apply(&mut rig.eager, &signed).unwrap();
}
