//! Attacks on the way of an order: forged, altered, cut, repeated, through restarts and restores.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use candle_core::Device;
use esper_signing::{CommandKey, Error, Journal, Verified};
use leyline::clock::Clock;
use leyline::command::{AlphaCurve, AlphaRamp, Blend, Command, KeyId, Operation, Order, SignedCommand};
use leyline::durable::{Durable, SavedState};
use leyline::error::{Error as _, ErrorKind};
use leyline::id::{BlueprintId, RunId, SeedId};
use leyline::region::{Eager, declare_recording};
use leyline::seed::{Applied, SeedManager};
use leyline::telemetry::{NullRecorder, Recorder};
use leyline::unit::Alpha;
use leyline_testkit::clock::ManualClock;
use leyline_testkit::fake_seed_manager::FakeSeedManager;
use leyline_testkit::recording_recorder::RecordingRecorder;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

type Manager = Verified<FakeSeedManager>;
type Refusal = Error<leyline_testkit::Error>;

const KEY: CommandKey = CommandKey::new([42; 32]);

fn run_id() -> RunId {
    RunId::new("run-1").unwrap()
}

fn blueprint() -> BlueprintId {
    BlueprintId::new("linear").unwrap()
}

fn germination() -> Operation {
    Operation::germinate("slot-0".parse().unwrap(), blueprint())
}

fn operations() -> Vec<Operation> {
    let seed = SeedId(1);
    let ramp = AlphaRamp { target: Alpha::new(0.5).unwrap(), steps: 9, curve: AlphaCurve::Cosine };
    vec![
        germination(),
        Operation::Germinate { slot: "slot-1".parse().unwrap(), blueprint: blueprint(), blend: Blend::Convex },
        Operation::StartTraining { seed },
        Operation::StartBlending { seed, ramp },
        Operation::Hold { seed },
        Operation::Fossilize { seed },
        Operation::Pause { seed },
        Operation::Resume { seed },
        Operation::CullGradually { seed, steps: 3, curve: AlphaCurve::Sigmoid },
        Operation::Cull { seed },
    ]
}

fn sign(command: &Command) -> SignedCommand {
    KEY.sign(KeyId::default(), command)
}

/// A verified manager with its token, its clock, and the number of the last command for it.
struct Rig {
    manager: Manager,
    eager: Eager,
    clock: Arc<ManualClock>,
    recorder: Arc<RecordingRecorder>,
    sequence: u64,
}

impl Rig {
    fn new() -> Self {
        let recorder = Arc::new(RecordingRecorder::new());
        let clock = Arc::new(ManualClock::new(Duration::from_secs(1_000_000)));
        let manager = manager(&clock, recorder.clone());
        Self { manager, eager: Eager::acquire().unwrap(), clock, recorder, sequence: 0 }
    }

    fn command(&mut self, operation: Operation) -> Command {
        self.sequence += 1;
        let issued_at_unix_ms = u64::try_from(self.clock.unix().as_millis()).unwrap();
        Command::new(run_id(), self.sequence, issued_at_unix_ms, operation, "test".to_owned())
    }

    fn apply(&mut self, signed: &SignedCommand) -> Result<Applied, Refusal> {
        // What an order says of itself counts for nothing.
        let order = Order { signed: Some(signed.clone()), ..Operation::Cull { seed: SeedId(77) }.into() };
        self.manager.apply(&mut self.eager, &order)
    }

    fn send(&mut self, operation: Operation) -> Result<Applied, Refusal> {
        let command = self.command(operation);
        self.apply(&sign(&command))
    }

    fn saved(&self) -> SavedState {
        self.manager.save(&self.eager).unwrap()
    }

    /// Everything that a refusal must leave alone.
    fn fingerprint(&self) -> String {
        let slots = self.manager.export_slot_states(&self.eager).unwrap();
        format!("{} {slots:?}", self.saved().json)
    }

    /// As a new process has it: another manager under the same key.
    fn restarted(self) -> Self {
        let Self { manager, eager, clock, recorder, sequence } = self;
        // What the old manager holds open is closed first.
        drop(manager);
        Self { manager: self::manager(&clock, recorder.clone()), eager, clock, recorder, sequence }
    }

    fn with_journal(self, path: &Path) -> Self {
        Self { manager: self.manager.with_journal(Journal::open(path).unwrap()), ..self }
    }
}

fn manager(clock: &Arc<ManualClock>, recorder: Arc<dyn Recorder>) -> Manager {
    let inner = FakeSeedManager::new(&Device::Cpu).unwrap();
    Verified::new(inner, run_id(), KEY, clock.clone(), recorder)
}

/// Takes the form that travels, as a receiver does. Whether it was let in: carried out, or refused for what it asks.
fn deliver(rig: &mut Rig, wire: &[u8]) -> bool {
    let Ok(signed) = SignedCommand::from_wire(wire) else { return false };
    !matches!(rig.apply(&signed), Err(Error::Command(_)))
}

/// Delivers what the attack makes of a genuine command of every kind; then the genuine one, which is let in.
#[track_caller]
fn check_attack(mut attack: impl FnMut(&[u8], &mut dyn FnMut(&[u8]))) {
    let mut rig = Rig::new();
    // With nobody counting: there are hundreds of thousands of rejections.
    rig.manager = manager(&rig.clock, Arc::new(NullRecorder));
    for operation in operations() {
        let what = operation.to_string();
        let wire = sign(&rig.command(operation)).to_wire();
        let before = rig.fingerprint();
        attack(&wire, &mut |forged| assert!(!deliver(&mut rig, forged), "{what} was let in as {forged:?}"));
        assert_eq!(rig.fingerprint(), before, "{what}");
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
    let mut rig = Rig::new();
    rig.manager = manager(&rig.clock, Arc::new(NullRecorder));
    let genuine = sign(&rig.command(germination()));
    let before = rig.fingerprint();
    let mut forged = genuine.clone();
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    for _ in 0..1_000_000 {
        rng.fill_bytes(&mut forged.tag);
        assert_ne!(forged.tag, genuine.tag, "this would be the tag");
        assert!(rig.apply(&forged).is_err());
    }
    assert_eq!(rig.fingerprint(), before);
    rig.apply(&genuine).unwrap();
}

/// It is refused for `reason`, changes nothing, is counted, and nothing of it is repeated.
#[track_caller]
fn check_rejected(rig: &mut Rig, signed: &SignedCommand, reason: &str) {
    let before = rig.fingerprint();
    let counted = || rig.recorder.counter_value("kasmina.command_verifier.rejections_total", &[reason]);
    let count = counted().unwrap();
    let error = rig.apply(signed).unwrap_err();
    assert!(matches!(&error, Error::Command(rejection) if rejection.reason() == reason), "{error:?}");
    assert_eq!(error.kind(), ErrorKind::Rejected);
    assert_eq!(rig.recorder.counter_value("kasmina.command_verifier.rejections_total", &[reason]), Some(count + 1));
    let event = rig.recorder.events_named("command_rejected").pop().unwrap();
    assert_eq!(event.attributes, [("reason", reason.to_owned())], "nothing of the command is repeated");
    assert_eq!(rig.fingerprint(), before);
}

#[track_caller]
fn check_replay(rig: &mut Rig, signed: &SignedCommand) {
    check_rejected(rig, signed, "sequence_replayed");
}

#[test]
fn a_command_is_rejected_for_each_reason_and_counted_under_it() {
    let mut rig = Rig::new();
    rig.sequence = 10;
    let good = rig.command(germination());
    let mut forged = sign(&good);
    forged.tag[0] ^= 1;
    check_rejected(&mut rig, &forged, "invalid_signature");
    check_rejected(&mut rig, &SignedCommand { key_id: KeyId(9), ..sign(&good) }, "unknown_key");
    check_rejected(&mut rig, &sign(&Command { run_id: RunId::new("run-2").unwrap(), ..good.clone() }), "foreign_run");
    check_rejected(&mut rig, &sign(&Command { valid_for_ms: 0, ..good.clone() }), "invalid_validity");
    let issued_at_unix_ms = good.issued_at_unix_ms - 60_001;
    check_rejected(&mut rig, &sign(&Command { issued_at_unix_ms, ..good.clone() }), "stale_command");
    let issued_at_unix_ms = good.issued_at_unix_ms + 5_001;
    check_rejected(&mut rig, &sign(&Command { issued_at_unix_ms, ..good.clone() }), "issued_in_future");
    // None of these used up the number.
    rig.apply(&sign(&good)).unwrap();
    assert_eq!(rig.recorder.counter_value("kasmina.command_verifier.accepted_total", &[]), Some(1));
    check_replay(&mut rig, &sign(&good));
    check_replay(&mut rig, &sign(&Command { sequence: 3, ..good }));
    let waiting = sign(&rig.command(Operation::StartTraining { seed: SeedId(1) }));
    rig.clock.advance(Duration::from_millis(60_001));
    check_rejected(&mut rig, &waiting, "stale_command");
}

#[test]
fn a_replay_is_refused_at_once_and_by_whoever_restores_the_state() {
    let mut rig = Rig::new();
    let first = sign(&rig.command(germination()));
    rig.apply(&first).unwrap();
    check_replay(&mut rig, &first);
    let saved = rig.saved();
    let mut fresh = rig.restarted();
    fresh.manager.restore(&mut fresh.eager, &saved).unwrap();
    check_replay(&mut fresh, &first);
    fresh.send(Operation::StartTraining { seed: SeedId(1) }).unwrap();
}

#[test]
fn a_replay_is_refused_after_a_restart_with_nothing_but_the_journal() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("commands.journal");
    let mut rig = Rig::new().with_journal(&path);
    let first = sign(&rig.command(germination()));
    let refused = sign(&rig.command(Operation::Hold { seed: SeedId(1) }));
    rig.apply(&first).unwrap();
    let error = rig.apply(&refused).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::IllegalTransition, "{error}");

    let mut forgetful = rig.restarted();
    forgetful.apply(&first).expect("without the journal, nothing is known of it");

    let mut rig = forgetful.restarted().with_journal(&path);
    check_replay(&mut rig, &first);
    check_replay(&mut rig, &refused);
    rig.send(germination()).unwrap();
}

#[test]
fn going_back_to_a_snapshot_lets_nothing_in_again() {
    let mut rig = Rig::new();
    let before = rig.saved();
    let first = sign(&rig.command(germination()));
    rig.apply(&first).unwrap();
    let between = rig.saved();
    let second = sign(&rig.command(Operation::StartTraining { seed: SeedId(1) }));
    rig.apply(&second).unwrap();

    for snapshot in [&between, &before] {
        rig.manager.restore(&mut rig.eager, snapshot).unwrap();
        check_replay(&mut rig, &first);
        check_replay(&mut rig, &second);
    }
    assert!(rig.manager.export_seed_states(&rig.eager).unwrap().is_empty());
    assert_eq!(rig.send(germination()).unwrap().seed, SeedId(1), "new commands are carried out");
    // What was learned after a snapshot is part of the next one.
    let saved = rig.saved();
    let mut fresh = rig.restarted();
    fresh.manager.restore(&mut fresh.eager, &saved).unwrap();
    check_replay(&mut fresh, &second);
}

#[test]
fn a_refused_restore_leaves_what_was_accepted() {
    let mut rig = Rig::new();
    let first = sign(&rig.command(germination()));
    rig.apply(&first).unwrap();
    let mut saved = rig.saved();
    for (from, to) in [("\"last_sequence\":1", "\"last_sequence\":-1"), ("\"life\"", "\"lief\"")] {
        let damaged = saved.json.replacen(from, to, 1);
        assert_ne!(damaged, saved.json);
        let whole = std::mem::replace(&mut saved.json, damaged);
        assert_eq!(rig.manager.restore(&mut rig.eager, &saved).unwrap_err().kind(), ErrorKind::Corrupt);
        saved.json = whole;
        check_replay(&mut rig, &first);
    }
}

#[test]
fn a_command_refused_under_a_capture_is_not_used_up() {
    let mut rig = Rig::new();
    let signed = sign(&rig.command(germination()));
    {
        let _recording = declare_recording();
        assert_eq!(rig.apply(&signed).unwrap_err().kind(), ErrorKind::Region);
    }
    rig.apply(&signed).unwrap();
}

#[test]
fn keys_are_replaced_and_what_was_accepted_under_the_old_ones_stays_used() {
    let mut rig = Rig::new();
    let first = rig.command(germination());
    rig.apply(&sign(&first)).unwrap();
    let next = CommandKey::new([43; 32]);
    rig.manager.set_keys(&mut rig.eager, esper_signing::KeyRing::single(KeyId(1), next.clone())).unwrap();
    check_rejected(&mut rig, &sign(&first), "unknown_key");
    rig.apply(
        &next.sign(KeyId(1), &Command { operation: Operation::StartTraining { seed: SeedId(1) }, ..first.clone() }),
    )
    .unwrap();
    rig.manager.set_keys(&mut rig.eager, KEY).unwrap();
    check_replay(&mut rig, &sign(&first));
}
