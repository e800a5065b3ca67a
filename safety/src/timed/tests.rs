//! A policy that does what it should not, at every call.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};

use leyline::command::{Operation, Order};
use leyline::id::{RunId, SeedId};
use leyline::policy::Rationale;
use leyline_testkit::clock::ManualClock;
use leyline_testkit::durable::DurableHarness;
use leyline_testkit::world::{Measurements, Outcome, World};

use super::*;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    /// One order about the seed whose number is the number of decisions so far.
    Order,
    /// The same, once the gate is opened.
    WaitAndOrder,
    Fail,
    Panic,
    Flood,
    FloodOfText,
}

#[derive(Debug, thiserror::Error)]
enum ScriptError {
    #[error("it was told to")]
    Told,
    #[error("not a number")]
    NotANumber,
    #[error(transparent)]
    Region(#[from] RegionError),
}

impl Error for ScriptError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Other
    }
}

/// Follows a script that others may go on with; remembers how often it decided.
#[derive(Debug)]
struct Script {
    acts: Arc<Mutex<VecDeque<Act>>>,
    gate: Receiver<()>,
    decisions: u32,
}

impl ErrorType for Script {
    type Error = ScriptError;
}

impl Durable for Script {
    fn save(&self, eager: &Eager) -> Result<SavedState, ScriptError> {
        eager.check()?;
        Ok(SavedState { json: format!("<{}>", self.decisions), ..SavedState::default() })
    }

    fn restore(&mut self, eager: &mut Eager, saved: &SavedState) -> Result<(), ScriptError> {
        eager.check()?;
        let number = saved.json.strip_prefix('<').and_then(|rest| rest.strip_suffix('>'));
        self.decisions = number.and_then(|number| number.parse().ok()).ok_or(ScriptError::NotANumber)?;
        Ok(())
    }
}

impl Policy for Script {
    fn name(&self) -> &'static str {
        "script"
    }

    fn decide(&mut self, _state: &SystemState) -> Result<Decision, ScriptError> {
        let act = self.acts.lock().unwrap().pop_front().unwrap_or(Act::Order);
        self.decisions += 1;
        let order = Order::new(Operation::Cull { seed: SeedId(self.decisions) }, "script");
        match act {
            Act::Order => {}
            Act::WaitAndOrder => self.gate.recv().unwrap_or(()),
            Act::Fail => return Err(ScriptError::Told),
            Act::Panic => panic!("as the script says"),
            Act::Flood => return Ok(Decision { orders: vec![order; MAX_ORDERS + 1], waiting: Vec::new() }),
            Act::FloodOfText => {
                let why = Rationale { rule: "flood".to_owned(), detail: "x".repeat(MAX_TEXT_BYTES) };
                return Ok(Decision { orders: Vec::new(), waiting: vec![why] });
            }
        }
        Ok(Decision { orders: vec![order], waiting: Vec::new() })
    }
}

struct Rig {
    policy: Timed<Script>,
    acts: Arc<Mutex<VecDeque<Act>>>,
    gate: Sender<()>,
    clock: Arc<ManualClock>,
}

const SOON: Duration = Duration::from_millis(300);
const NEVER: Duration = Duration::from_secs(60);
const FAILURES: u32 = 3;

fn rig(acts: &[Act], deadline: Duration) -> Rig {
    let acts = Arc::new(Mutex::new(acts.iter().copied().collect::<VecDeque<_>>()));
    let (gate, opened) = channel();
    let script = Script { acts: Arc::clone(&acts), gate: opened, decisions: 0 };
    let clock = Arc::new(ManualClock::default());
    let breaker = BreakerConfig { failures: FAILURES, open_ms: 1000, max_open_ms: 4000, successes: 2 };
    let policy = Timed::on_a_thread(script, Limits { deadline, breaker }, clock.clone()).unwrap();
    Rig { policy, acts, gate, clock }
}

impl Rig {
    /// What came of one call: the seed that is ordered about, or the start of the error.
    fn decide(&mut self) -> String {
        let state = World::new(RunId::new("run").unwrap(), 9, Measurements::all(Outcome::Good)).state();
        match self.policy.decide(&state) {
            Ok(decision) => format!("{:?}", decision.orders[0].operation.seed().unwrap().0),
            Err(error) => format!("{error:?}").split([' ', '(']).next().unwrap().to_owned(),
        }
    }

    fn saved(&self) -> String {
        self.policy.save(&Eager::acquire().unwrap()).unwrap().json.replace(['<', '>'], "")
    }

    fn restore(&mut self, json: &str) -> Result<(), CallError<ScriptError>> {
        let saved = SavedState { json: format!("<{json}>"), ..SavedState::default() };
        self.policy.restore(&mut Eager::acquire().unwrap(), &saved)
    }

    /// Lets the late answer come, and waits until it was dropped.
    fn let_it_come(&self) {
        let before = self.policy.num_late();
        self.gate.send(()).unwrap();
        while self.policy.num_late() == before {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Until the policy can be asked again.
    fn decide_when_it_is_back(&mut self) -> String {
        loop {
            match self.decide() {
                busy if busy == "Busy" => thread::sleep(Duration::from_millis(1)),
                answered => return answered,
            }
        }
    }
}

#[test]
fn answers_in_time_are_those_of_the_policy_itself() {
    let mut rig = rig(&[], NEVER);
    assert_eq!([rig.decide(), rig.decide(), rig.decide()], ["1", "2", "3"]);
    assert_eq!((rig.saved().as_str(), rig.policy.num_late()), ("3", 0));
    rig.restore("7").unwrap();
    assert_eq!((rig.saved().as_str(), rig.decide().as_str()), ("7", "8"));
    assert_eq!(rig.policy.name(), "script");
}

#[test]
fn a_late_answer_is_dropped_and_the_policy_forgets_it() {
    let mut rig = rig(&[Act::Order, Act::WaitAndOrder], SOON);
    assert_eq!([rig.decide(), rig.decide(), rig.decide(), rig.decide()], ["1", "Late", "Busy", "Busy"]);
    assert_eq!(rig.saved(), "1", "what is saved does not wait for it");
    rig.let_it_come();
    // The answer that was dropped was the second; this one is the second again.
    assert_eq!((rig.decide_when_it_is_back().as_str(), rig.policy.num_late()), ("2", 1));
}

#[test]
fn a_policy_that_panics_is_as_before_and_goes_on() {
    let mut rig = rig(&[Act::Order, Act::Panic, Act::Order], NEVER);
    assert_eq!([rig.decide(), rig.decide(), rig.decide()], ["1", "Panicked", "2"]);
}

#[test]
fn a_flood_of_orders_or_text_is_refused_whole_here_and_on_a_thread() {
    for act in [Act::Flood, Act::FloodOfText] {
        let mut rig = rig(&[act, Act::Order], NEVER);
        assert_eq!([rig.decide(), rig.decide()], ["Flood", "1"]);
        let (_gate, opened) = channel();
        let script = Script { acts: Arc::new(Mutex::new([act].into())), gate: opened, decisions: 0 };
        rig.policy = Timed::here(script);
        assert_eq!(rig.decide(), "Flood");
        assert!(rig.policy.breaker().is_none());
    }
}

#[test]
fn a_state_that_is_restored_while_the_policy_is_late_is_taken_up_before_its_next_call() {
    let mut late = rig(&[Act::WaitAndOrder], SOON);
    assert_eq!(late.decide(), "Late");
    late.restore("40").unwrap();
    assert_eq!(late.saved(), "40");
    late.let_it_come();
    assert_eq!(late.decide_when_it_is_back(), "41");
    // One that it refuses is refused at each call: it never decides from another state than the run's.
    let mut refuses = rig(&[Act::WaitAndOrder], SOON);
    assert_eq!(refuses.decide(), "Late");
    refuses.restore("forty").unwrap();
    refuses.let_it_come();
    assert_eq!([refuses.decide_when_it_is_back(), refuses.decide(), refuses.decide()], ["Inner", "Inner", "Blocked"]);
    refuses.clock.advance(Duration::from_secs(1));
    assert_eq!(refuses.decide(), "Inner");
    // Where it is not late, it refuses at once and keeps what it has.
    let mut prompt = rig(&[], NEVER);
    prompt.decide();
    assert!(prompt.restore("forty").is_err());
    assert_eq!((prompt.saved().as_str(), prompt.decide().as_str()), ("1", "2"));
}

#[test]
fn failures_in_a_row_open_the_breaker_and_time_without_calls_is_no_failure() {
    let mut rig = rig(&[Act::Fail, Act::Panic, Act::Flood, Act::Order, Act::Fail, Act::Order, Act::Order], NEVER);
    let state = |rig: &Rig| rig.policy.breaker().unwrap().0;
    assert_eq!([rig.decide(), rig.decide(), rig.decide()], ["Inner", "Panicked", "Flood"]);
    assert_eq!(state(&rig), BreakerState::Open);
    for _ in 0..100 {
        assert_eq!(rig.decide(), "Blocked");
    }
    rig.clock.advance(Duration::from_millis(1000));
    // One that failed remembers that it was asked, one that panicked or flooded does not.
    assert_eq!((rig.decide().as_str(), state(&rig)), ("2", BreakerState::HalfOpen));
    assert_eq!((rig.decide().as_str(), state(&rig)), ("Inner", BreakerState::Open));
    rig.clock.advance(Duration::from_millis(1999));
    assert_eq!(rig.decide(), "Blocked", "it stays open twice as long");
    rig.clock.advance(Duration::from_millis(1));
    assert_eq!([rig.decide(), rig.decide()], ["4", "5"]);
    assert_eq!(state(&rig), BreakerState::Closed);
    assert!(rig.acts.lock().unwrap().is_empty());
}

#[test]
fn nobody_waits_for_a_late_policy_when_it_is_let_go() {
    let Rig { mut policy, gate, .. } = rig(&[Act::WaitAndOrder], Duration::from_millis(5));
    let state = World::new(RunId::new("run").unwrap(), 9, Measurements::all(Outcome::Good)).state();
    assert!(policy.decide(&state).is_err());
    // The gate is closed until after this.
    drop(policy);
    drop(gate);
}

leyline_testkit::durable_conformance!(|| DurableHarness {
    component: rig(&[], NEVER).policy,
    advance: Box::new(|policy, n| {
        let state = World::new(RunId::new("run").unwrap(), 9, Measurements::all(Outcome::Good)).state();
        (0..=n).for_each(|_| drop(policy.decide(&state).unwrap()));
    }),
    observe: Box::new(|policy| policy.save(&Eager::acquire().unwrap()).unwrap().json),
});
