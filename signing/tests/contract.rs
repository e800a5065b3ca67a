//! The numbered rules of the contracts, run on the layers around the doubles.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use candle_core::Device;
use esper_signing::{CommandKey, KeyRing, Signed, Verified};
use leyline::batch::Batch;
use leyline::clock::Clock;
use leyline::command::{AlphaCurve, AlphaRamp, Command, KeyId, Operation, Order};
use leyline::durable::{Durable, SavedState};
use leyline::error::{Error as _, ErrorKind};
use leyline::id::{EpochIndex, RunId, SeedId, StepIndex};
use leyline::network::Buffer;
use leyline::policy::{Decision, Policy};
use leyline::region::Eager;
use leyline::seed::{Applied, Attribution, Evidence, SeedManager, SeedState, SlotState, Transition};
use leyline::state::SystemState;
use leyline::telemetry::NullRecorder;
use leyline::unit::Alpha;
use leyline_testkit::clock::ManualClock;
use leyline_testkit::durable::DurableHarness;
use leyline_testkit::fake_policy::FakePolicy;
use leyline_testkit::fake_seed_manager::FakeSeedManager;
use leyline_testkit::policy::PolicyHarness;
use leyline_testkit::recording_recorder::RecordingRecorder;
use leyline_testkit::seed_manager::SeedManagerHarness;
use leyline_testkit::toy::{ToyModel, blobs};
use leyline_testkit::world::{Measurements, Outcome, World};

const KEY: CommandKey = CommandKey::new([7; 32]);
const KEY_ID: KeyId = KeyId(77);
const NOW_MS: u64 = 1_700_000_000_000;

fn run_id() -> RunId {
    RunId::new("contract").unwrap()
}

fn sign(order: Order) -> Order {
    let Order { operation, reason, sequence, .. } = order.clone();
    let command = Command::new(run_id(), sequence.unwrap_or_default(), NOW_MS, operation, reason);
    Order { signed: Some(KEY.sign(KEY_ID, &command)), ..order }
}

fn verified() -> Verified<FakeSeedManager> {
    let keys = KeyRing::single(KEY_ID, KEY);
    let (clock, recorder) = (Arc::new(ManualClock::default()), Arc::new(NullRecorder));
    Verified::new(FakeSeedManager::new(&Device::Cpu).unwrap(), run_id(), keys, clock, recorder)
}

mod seed_manager {
    use super::*;

    leyline_testkit::seed_manager_conformance!(|| {
        SeedManagerHarness::new(verified(), blobs(8, 1, &Device::Cpu).unwrap()).signing(sign)
    });
}

/// What can be done with the first seed, in order.
fn life() -> [Operation; 4] {
    let seed = SeedId(1);
    let ramp = AlphaRamp { target: Alpha::ONE, steps: 2, curve: AlphaCurve::Cosine };
    [
        Operation::germinate("slot-0".parse().unwrap(), "linear".parse().unwrap()),
        Operation::StartTraining { seed },
        Operation::StartBlending { seed, ramp },
        Operation::Hold { seed },
    ]
}

mod seed_manager_state {
    use super::*;

    /// A number that was used stays used for a manager that goes back and for one that takes over its state.
    static SEQUENCE: AtomicU64 = AtomicU64::new(1);

    leyline_testkit::durable_conformance!(|| DurableHarness {
        component: verified(),
        advance: Box::new(|manager, n| {
            let mut eager = Eager::acquire().unwrap();
            if let Some(operation) = life().into_iter().nth(usize::try_from(n).unwrap()) {
                let sequence = Some(SEQUENCE.fetch_add(1, Ordering::SeqCst));
                manager.apply(&mut eager, &sign(Order { sequence, ..operation.into() })).unwrap();
            }
            manager.finish_step(&mut eager, StepIndex(n)).unwrap();
            manager.finish_epoch(&mut eager, EpochIndex(n)).unwrap();
        }),
        observe: Box::new(|manager| {
            format!("{:?}", manager.export_seed_states(&Eager::acquire().unwrap()).unwrap())
        }),
    });
}

/// Lets seeds germinate and train.
#[derive(Debug)]
struct Greedy;

impl leyline::error::ErrorType for Greedy {
    type Error = leyline_testkit::Error;
}

impl Durable for Greedy {
    fn save(&self, eager: &Eager) -> Result<SavedState, Self::Error> {
        Ok(eager.check().map(|()| SavedState::default())?)
    }

    fn restore(&mut self, eager: &mut Eager, _saved: &SavedState) -> Result<(), Self::Error> {
        Ok(eager.check()?)
    }
}

impl Policy for Greedy {
    fn name(&self) -> &'static str {
        "greedy"
    }

    fn decide(&mut self, state: &SystemState) -> Result<Decision, Self::Error> {
        let free = state.slots.iter().filter(|slot| slot.occupant.is_none());
        let germinations = free.map(|s| Operation::germinate(s.slot.clone(), s.offers[0].blueprint.clone()));
        let orders = germinations.map(|operation| Order::new(operation, "r".repeat(300)));
        Ok(Decision { orders: orders.collect(), waiting: Vec::new() })
    }
}

fn signed<P: Policy>(policy: P) -> Signed<P> {
    Signed::new(policy, run_id(), KEY_ID, KEY, Arc::new(ManualClock::default()))
}

mod policy {
    use super::*;

    leyline_testkit::__one_test_per_rule!(
        policy,
        || PolicyHarness::new(signed(Greedy), run_id()),
        po_1_equal_states_give_equal_operations,
        po_2_a_decision_names_only_what_it_was_shown,
        po_4_sequence_numbers_grow,
    );
}

mod policy_state {
    use super::*;

    leyline_testkit::durable_conformance!(|| DurableHarness {
        component: signed(FakePolicy::new((0..20).map(|_| life().to_vec()))),
        advance: Box::new(|policy, _| drop(policy.decide(&state()).unwrap())),
        // Numbers that were given out stay used, so they do not go back.
        observe: Box::new(|policy| format!("{:?}", policy.inner())),
    });
}

fn state() -> SystemState {
    World::new(run_id(), 9, Measurements::all(Outcome::Good)).state()
}

fn numbers(policy: &mut Signed<FakePolicy>) -> Vec<u64> {
    policy.decide(&state()).unwrap().orders.iter().filter_map(|order| order.sequence).collect()
}

#[test]
fn numbers_go_on_after_going_back_and_continue_in_a_new_process() {
    let fresh = || signed(FakePolicy::new((0..9).map(|_| life()[..2].to_vec())));
    let mut eager = Eager::acquire().unwrap();
    let mut policy = fresh();
    assert_eq!(numbers(&mut policy), [1, 2]);
    let saved = policy.save(&eager).unwrap();
    assert_eq!(numbers(&mut policy), [3, 4]);
    policy.restore(&mut eager, &saved).unwrap();
    assert_eq!(numbers(&mut policy), [5, 6], "3 and 4 were given out already");
    let mut other = fresh();
    other.restore(&mut eager, &saved).unwrap();
    assert_eq!(numbers(&mut other), [3, 4]);
}

#[test]
fn orders_are_dated_signed_under_the_name_of_the_key_and_as_long_as_can_travel() {
    let decision = signed(Greedy).decide(&state()).unwrap();
    assert_eq!(decision.orders.len(), 2);
    for (order, number) in decision.orders.iter().zip(1..) {
        let signed = order.signed.as_ref().unwrap();
        let command = Command::from_bytes(&signed.bytes).unwrap();
        assert_eq!((command.sequence, command.issued_at_unix_ms, command.run_id.clone()), (number, NOW_MS, run_id()));
        assert_eq!((&command.operation, &command.reason), (&order.operation, &"r".repeat(256)));
        assert_eq!(signed, &KEY.sign(KEY_ID, &command));
    }
}

#[test]
fn a_state_of_another_run_is_refused_and_changes_nothing() {
    let mut policy = signed(FakePolicy::new([life().to_vec()]));
    let foreign = SystemState { run_id: RunId::new("run-2").unwrap(), ..state() };
    let error = policy.decide(&foreign).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Rejected);
    assert_eq!(error.to_string(), "the state belongs to run run-2: expected run contract");
    assert_eq!(numbers(&mut policy), [1, 2, 3, 4]);
}

/// A manager that does nothing but note its calls, and save what it is given.
#[derive(Debug)]
struct Noting {
    model: ToyModel,
    calls: RefCell<Vec<&'static str>>,
    json: String,
}

impl Noting {
    fn verified(json: &str) -> Verified<Self> {
        let model = ToyModel::new(0, &Device::Cpu).unwrap();
        let noting = Self { model, calls: RefCell::default(), json: json.to_owned() };
        Verified::new(
            noting,
            run_id(),
            KeyRing::single(KEY_ID, KEY),
            Arc::new(Ticking::default()),
            Arc::new(NullRecorder),
        )
    }

    fn note<T: Default>(&self, call: &'static str) -> Result<T, leyline_testkit::Error> {
        self.calls.borrow_mut().push(call);
        Ok(T::default())
    }
}

impl leyline::error::ErrorType for Noting {
    type Error = leyline_testkit::Error;
}

impl Durable for Noting {
    fn save(&self, _: &Eager) -> Result<SavedState, Self::Error> {
        Ok(SavedState { json: self.json.clone(), ..SavedState::default() })
    }
    fn restore(&mut self, _: &mut Eager, _: &SavedState) -> Result<(), Self::Error> {
        self.note("restore")
    }
}

impl SeedManager for Noting {
    type Model = ToyModel;

    fn model(&self) -> &ToyModel {
        self.calls.borrow_mut().push("model");
        &self.model
    }
    fn apply(&mut self, _: &mut Eager, order: &Order) -> Result<Applied, Self::Error> {
        order.check_verified()?;
        self.note::<()>("apply")?;
        Ok(Applied { seed: SeedId(1), transitions: Vec::new(), topology_changed: false })
    }
    fn export_seed_states(&self, _: &Eager) -> Result<Vec<SeedState>, Self::Error> {
        self.note("export_seed_states")
    }
    fn export_slot_states(&self, _: &Eager) -> Result<Vec<SlotState>, Self::Error> {
        self.note("export_slot_states")
    }
    fn finish_step(&mut self, _: &mut Eager, _: StepIndex) -> Result<(), Self::Error> {
        self.note("finish_step")
    }
    fn finish_epoch(&mut self, _: &mut Eager, _: EpochIndex) -> Result<Vec<Transition>, Self::Error> {
        self.note("finish_epoch")
    }
    fn wants_batch(&self, _: &Eager) -> bool {
        self.calls.borrow_mut().push("wants_batch");
        true
    }
    fn inspect_batch(&mut self, _: &Eager, _: &Batch) -> Result<(), Self::Error> {
        self.note("inspect_batch")
    }
    fn record_evidence(&mut self, _: &Eager, _: &[Evidence]) -> Result<(), Self::Error> {
        self.note("record_evidence")
    }
    fn statistics(&self) -> &[Buffer] {
        self.calls.borrow_mut().push("statistics");
        &[]
    }
    fn attribute_batch(&mut self, _: &Eager, _: &Batch) -> Result<Attribution, Self::Error> {
        self.note::<()>("attribute_batch").map(|()| Attribution::host_only())
    }
}

/// A second passes at every look.
#[derive(Debug, Default)]
struct Ticking(ManualClock);

impl Clock for Ticking {
    fn now(&self) -> Duration {
        self.0.advance(Duration::from_secs(1));
        self.0.now()
    }
    fn unix(&self) -> Duration {
        ManualClock::default().unix()
    }
}

#[test]
fn every_method_reaches_the_manager_inside() {
    let (mut eager, batch) = (Eager::acquire().unwrap(), blobs(2, 1, &Device::Cpu).unwrap());
    let mut manager = Noting::verified("{}");
    manager.model();
    manager.apply(&mut eager, &sign(Order { sequence: Some(1), ..life()[0].clone().into() })).unwrap();
    manager.export_seed_states(&eager).unwrap();
    manager.export_slot_states(&eager).unwrap();
    manager.finish_step(&mut eager, StepIndex(1)).unwrap();
    manager.finish_epoch(&mut eager, EpochIndex(1)).unwrap();
    assert!(manager.wants_batch(&eager));
    manager.inspect_batch(&eager, &batch).unwrap();
    manager.record_evidence(&eager, &[]).unwrap();
    manager.attribute_batch(&eager, &batch).unwrap();
    assert!(manager.statistics().is_empty());
    let calls = manager.inner().calls.take();
    let expected = "model, export_seed_states, apply, export_seed_states, export_slot_states, finish_step, finish_epoch, \
                    wants_batch, inspect_batch, record_evidence, attribute_batch, statistics";
    assert_eq!(calls.join(", "), expected, "before an order the token is looked at");
}

#[test]
fn a_rejected_command_is_timed_as_every_other() {
    let (mut eager, recorder) = (Eager::acquire().unwrap(), Arc::new(RecordingRecorder::new()));
    let inner = FakeSeedManager::new(&Device::Cpu).unwrap();
    let mut manager = Verified::new(inner, run_id(), KEY, Arc::new(Ticking::default()), recorder.clone());
    manager.apply(&mut eager, &life()[0].clone().into()).unwrap_err();
    assert_eq!(recorder.gauge_value("kasmina.command_verifier.validation_latency_ms", &[]), Some(1e3));
}

#[test]
fn a_document_without_a_place_for_the_numbers_is_not_saved() {
    let eager = Eager::acquire().unwrap();
    for json in ["[1]", "7", r#"{"replay_window":{}}"#] {
        let error = Noting::verified(json).save(&eager).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().ends_with("expected an object without a field `replay_window`"), "{json}: {error}");
    }
}

#[test]
fn a_state_that_cannot_be_read_says_which_field() {
    let mut eager = Eager::acquire().unwrap();
    let saved = |json: &str| SavedState { json: json.to_owned(), ..SavedState::default() };
    let why = |error: &dyn std::error::Error| error.source().map(ToString::to_string).unwrap_or_default();
    let error = Noting::verified("{}").restore(&mut eager, &saved("{}")).unwrap_err();
    assert_eq!(why(&error), "missing field `replay_window`");
    for (json, message) in [
        (r#"{"policy":"{}"}"#, "missing field `sequence`"),
        (r#"{"sequence":1}"#, "missing field `policy`"),
        (r#"{"sequence":1,"policy":"{}","more":1}"#, "unknown field `more`"),
        (r#"{"progress":{}}"#, "missing field `sequence`"),
        (r#"{"progress":{"sequence":-1}}"#, "invalid value: integer `-1`, expected u64"),
    ] {
        let error = signed(Greedy).restore(&mut eager, &saved(json)).unwrap_err();
        assert!(why(&error).starts_with(message), "{json}: {}", why(&error));
    }
}

/// In earlier builds manager and policy kept the numbers themselves, in the documents that are theirs alone now.
#[test]
fn documents_of_earlier_builds_are_read() {
    let mut eager = Eager::acquire().unwrap();
    let mut manager = verified();
    let own = manager.inner().save(&eager).unwrap();
    let window = r#"{"replay_window":{"77":{"last_sequence":5,"nonces":[[[1,2],9]]}},"#;
    let earlier = SavedState { json: own.json.replacen('{', window, 1), ..own };
    manager.restore(&mut eager, &earlier).unwrap();
    let order = |sequence| sign(Order { sequence: Some(sequence), ..life()[0].clone().into() });
    assert_eq!(manager.apply(&mut eager, &order(5)).unwrap_err().kind(), ErrorKind::Rejected);
    manager.apply(&mut eager, &order(6)).unwrap();

    /// Takes every document.
    #[derive(Debug, Default)]
    struct Kept(String);
    impl leyline::error::ErrorType for Kept {
        type Error = leyline_testkit::Error;
    }
    impl Durable for Kept {
        fn save(&self, _: &Eager) -> Result<SavedState, Self::Error> {
            Ok(SavedState { json: self.0.clone(), ..SavedState::default() })
        }
        fn restore(&mut self, _: &mut Eager, saved: &SavedState) -> Result<(), Self::Error> {
            self.0.clone_from(&saved.json);
            Ok(())
        }
    }
    impl Policy for Kept {
        fn name(&self) -> &'static str {
            "kept"
        }
        fn decide(&mut self, _: &SystemState) -> Result<Decision, Self::Error> {
            Ok(Decision { orders: vec![life()[0].clone().into()], waiting: Vec::new() })
        }
    }
    let json = r#"{"format":2,"progress":{"sequence":5,"validation_loss":null},"memory":"off"}"#.to_owned();
    let mut policy = signed(Kept::default());
    policy.restore(&mut eager, &SavedState { json: json.clone(), ..SavedState::default() }).unwrap();
    assert_eq!(policy.inner().0, json, "the policy reads the whole document");
    assert_eq!(policy.decide(&state()).unwrap().orders[0].sequence, Some(6));
}
