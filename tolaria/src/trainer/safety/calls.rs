//! Calls of policy and seed manager at the end of an epoch: how long they took, and whether the run is conservative.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use esper_safety::CallError;
use esper_safety::breaker::{Breaker, BreakerState, Permit, Verdict};
use leyline::command::Operation;
use leyline::policy::{Decision, Policy, Rationale};
use leyline::seed::SeedManager;
use leyline::state::SystemState;
use leyline::telemetry::{Counter, Event, Gauge, Recorder};

use crate::error;
use crate::telemetry as desc;
use crate::trainer::instruments::ms;
use crate::trainer::run::Trainer;
use crate::trainer::safety::SafetyConfig;

const POLICY: &str = "policy";
const SEEDS: &str = "seed_manager";

/// What is remembered from boundary to boundary.
#[derive(Debug)]
pub(super) struct Calls {
    policy: Watched,
    seeds: Watched,
    /// Before the seed manager; that before the policy is its own.
    breaker: Breaker,
    /// Leave to call the seed manager at this boundary; absent also where its calls have no deadline.
    permit: Option<Permit>,
    /// The longest of its calls at this boundary.
    longest: Duration,
    late_answers: Counter,
    num_late_answers: u64,
    /// Whether the emergency level asks for it.
    is_emergency: bool,
    is_conservative: bool,
    conservative: Gauge,
    conservative_total: Counter,
    refused_total: Counter,
    recorder: Arc<dyn Recorder>,
}

/// Policy or seed manager, as telemetry shows it.
#[derive(Debug)]
struct Watched {
    name: &'static str,
    state: BreakerState,
    /// Whether its last call failed, was late or was not made.
    is_in_trouble: bool,
    timeouts: Counter,
    last_ms: Gauge,
    breaker_state: Gauge,
    breaker_failures: Gauge,
    breaker_opened: Counter,
}

impl Watched {
    fn new(name: &'static str, timeouts: Counter, last_ms: Gauge, recorder: &Arc<dyn Recorder>) -> Self {
        let watched = Self {
            name,
            state: BreakerState::Closed,
            is_in_trouble: false,
            timeouts,
            last_ms,
            breaker_state: recorder.gauge(&desc::BREAKER_STATE, &[name]),
            breaker_failures: recorder.gauge(&desc::BREAKER_FAILURES, &[name]),
            breaker_opened: recorder.counter(&desc::BREAKER_OPENED_TOTAL, &[name]),
        };
        watched.last_ms.set(0.0);
        watched.breaker_state.set(f64::from(BreakerState::Closed.number()));
        watched.breaker_failures.set(0.0);
        watched
    }

    /// Takes over what its breaker says, and tells of a change.
    fn look(&mut self, state: BreakerState, failures: u32, recorder: &dyn Recorder) {
        self.breaker_state.set(f64::from(state.number()));
        self.breaker_failures.set(f64::from(failures));
        let before = mem::replace(&mut self.state, state);
        match state {
            BreakerState::Open if before != state => {
                self.breaker_opened.add(1);
                recorder.event(Event::new(&desc::BREAKER_OPENED).with("call", self.name).with("failures", failures));
            }
            BreakerState::Closed if before != state => {
                recorder.event(Event::new(&desc::BREAKER_CLOSED).with("call", self.name));
            }
            _ => {}
        }
    }

    fn is_trusted(&self) -> bool {
        !self.is_in_trouble && self.state == BreakerState::Closed
    }
}

impl Calls {
    pub(super) fn new(config: &SafetyConfig, recorder: &Arc<dyn Recorder>) -> Self {
        let counter = |desc| recorder.counter(desc, &[]);
        let (policy, seeds) = (counter(&desc::POLICY_TIMEOUTS_TOTAL), counter(&desc::SEEDS_TIMEOUTS_TOTAL));
        let calls = Self {
            policy: Watched::new(POLICY, policy, recorder.gauge(&desc::POLICY_LAST, &[]), recorder),
            seeds: Watched::new(SEEDS, seeds, recorder.gauge(&desc::SEEDS_LAST, &[]), recorder),
            breaker: Breaker::new(config.breaker),
            permit: None,
            longest: Duration::ZERO,
            late_answers: counter(&desc::LATE_ANSWERS_TOTAL),
            num_late_answers: 0,
            is_emergency: false,
            is_conservative: false,
            conservative: recorder.gauge(&desc::CONSERVATIVE, &[]),
            conservative_total: counter(&desc::CONSERVATIVE_TOTAL),
            refused_total: counter(&desc::CONSERVATIVE_REFUSED_TOTAL),
            recorder: Arc::clone(recorder),
        };
        calls.conservative.set(0.0);
        calls
    }

    /// Whether the emergency level asks for conservative mode.
    pub(super) fn set_emergency(&mut self, is_emergency: bool) {
        self.is_emergency = is_emergency;
        self.settle_mode();
    }

    /// Who is not trusted; absent where all are.
    fn trouble(&self) -> Option<String> {
        let names = [&self.policy, &self.seeds].into_iter().filter(|watched| !watched.is_trusted());
        let names: Vec<&str> = names.map(|watched| watched.name).collect();
        (!names.is_empty()).then(|| names.join(", "))
    }

    /// Enters or leaves conservative mode, and tells of it once.
    fn settle_mode(&mut self) {
        let emergency = self.is_emergency.then(|| "emergency".to_owned());
        let reason = self.trouble().into_iter().chain(emergency).collect::<Vec<_>>().join(", ");
        if mem::replace(&mut self.is_conservative, !reason.is_empty()) == self.is_conservative {
            return;
        }
        self.conservative.set(f64::from(u8::from(self.is_conservative)));
        if self.is_conservative {
            self.conservative_total.add(1);
            tracing::warn!(%reason, "conservative mode: nothing grows");
            self.recorder.event(Event::new(&desc::CONSERVATIVE_ENTERED).with("reason", reason));
        } else {
            tracing::info!("conservative mode is left");
            self.recorder.event(Event::new(&desc::CONSERVATIVE_CLEARED));
        }
    }

    /// Whether the seed manager is left alone.
    fn leaves_alone(&self, has_deadline: bool) -> bool {
        has_deadline && self.permit.is_none()
    }

    /// Why an order is not carried out; absent where it may be.
    fn refusal(&mut self, operation: &Operation, has_deadline: bool) -> Option<String> {
        let reason = if self.leaves_alone(has_deadline) {
            "the seed manager was late, and is left alone"
        } else if self.is_conservative && grows(operation) {
            "conservative mode: nothing grows"
        } else {
            return None;
        };
        self.refused_total.add(1);
        Some(reason.to_owned())
    }
}

/// Whether an operation gives a seed a place, parameters or influence.
const fn grows(operation: &Operation) -> bool {
    match operation {
        Operation::Germinate { .. }
        | Operation::StartTraining { .. }
        | Operation::StartBlending { .. }
        | Operation::Fossilize { .. }
        | Operation::Resume { .. } => true,
        Operation::Hold { .. } | Operation::Cull { .. } | Operation::CullGradually { .. } | Operation::Pause { .. } => {
            false
        }
    }
}

impl<S: SeedManager, P: Policy> Trainer<S, P> {
    /// The end of an epoch begins: whether the seed manager may be given orders.
    pub(in crate::trainer) fn begin_calls(&mut self) {
        let (calls, now) = (&mut self.safety.calls, self.parts.clock.now());
        calls.longest = Duration::ZERO;
        // Of a boundary that broke off.
        if let Some(permit) = calls.permit.take() {
            calls.breaker.record(permit, Verdict::Neither, now);
        }
        if self.config.safety.seeds_ms.is_some() {
            calls.permit = calls.breaker.allow(now).ok();
        }
    }

    /// Calls the seed manager, and keeps how long that took.
    pub(in crate::trainer) fn call_seeds<T>(&mut self, call: impl FnOnce(&mut S) -> T) -> T {
        let started = self.parts.clock.now();
        let result = call(&mut self.parts.seeds);
        let took = self.parts.clock.now().saturating_sub(started);
        self.safety.calls.longest = self.safety.calls.longest.max(took);
        result
    }

    /// Asks the policy. Without an answer there are no orders, and the reason says why.
    pub(in crate::trainer) fn ask_policy(&mut self, state: &SystemState) -> Decision {
        let started = self.parts.clock.now();
        let asked = self.parts.policy.decide(state);
        let took = self.parts.clock.now().saturating_sub(started);
        let calls = &mut self.safety.calls;
        calls.policy.is_in_trouble = asked.is_err();
        calls.policy.last_ms.set(ms(took));
        let num_late = self.parts.policy.num_late();
        calls.late_answers.add(num_late - mem::replace(&mut calls.num_late_answers, num_late));
        let decision = asked.unwrap_or_else(|failed| {
            let told = error::chain(&failed);
            let rule = match failed {
                CallError::Late { .. } => {
                    calls.policy.timeouts.add(1);
                    calls.recorder.event(Event::new(&desc::POLICY_TIMEOUT).with("error", &told));
                    "policy_late"
                }
                // Told when it began.
                CallError::Busy => "policy_busy",
                CallError::Blocked { .. } => "policy_blocked",
                _ => {
                    calls.recorder.event(Event::new(&desc::POLICY_ERROR).with("error", &told));
                    "policy_error"
                }
            };
            let waiting = vec![Rationale { rule: rule.to_owned(), detail: told }];
            Decision { waiting, ..Decision::default() }
        });
        if let Some((state, failures)) = self.parts.policy.breaker() {
            calls.policy.look(state, failures, &*calls.recorder);
        }
        calls.settle_mode();
        decision
    }

    /// Whether no seed can be germinated now: then nothing is on offer, so that a policy puts a germination off and does not lose it.
    pub(in crate::trainer) fn nothing_grows(&self) -> bool {
        let calls = &self.safety.calls;
        // Where its last answer alone is the reason, a good one ends that before it is carried out.
        let is_policy_trusted = calls.policy.state == BreakerState::Closed;
        calls.is_emergency
            || !is_policy_trusted
            || !calls.seeds.is_trusted()
            || calls.leaves_alone(self.config.safety.seeds_ms.is_some())
    }

    /// Why an order is not carried out; absent where it may be.
    pub(in crate::trainer) fn refusal(&mut self, operation: &Operation) -> Option<String> {
        self.safety.calls.refusal(operation, self.config.safety.seeds_ms.is_some())
    }

    /// The calls of this boundary were made: judges those of the seed manager.
    pub(in crate::trainer) fn end_calls(&mut self) {
        let (calls, deadline) = (&mut self.safety.calls, self.config.safety.seeds_ms);
        let longest = mem::take(&mut calls.longest);
        let deadline = deadline.map(|deadline| Duration::from_millis(deadline.get()));
        let is_late = deadline.is_some_and(|deadline| longest > deadline);
        calls.seeds.last_ms.set(ms(longest));
        let was_late = mem::replace(&mut calls.seeds.is_in_trouble, is_late);
        if is_late {
            calls.seeds.timeouts.add(1);
            if !was_late {
                let took_ms = format!("{:.3}", ms(longest));
                calls.recorder.event(Event::new(&desc::SEEDS_TIMEOUT).with("took_ms", took_ms));
            }
        }
        if let Some(permit) = calls.permit.take() {
            let verdict = if is_late { Verdict::Failure } else { Verdict::Success };
            calls.breaker.record(permit, verdict, self.parts.clock.now());
        }
        calls.seeds.look(calls.breaker.state(), calls.breaker.failures(), &*calls.recorder);
        calls.settle_mode();
        let is_left_alone = [&calls.policy, &calls.seeds].iter().any(|watched| watched.state != BreakerState::Closed);
        let trouble = calls.trouble();
        self.judge_epoch(trouble, is_left_alone);
    }
}
