//! A policy whose answers have a deadline. It is a policy itself, around any other.
//!
//! # What happens when
//! | the policy | the caller | the breaker | the policy's memory |
//! |---|---|---|---|
//! | answers in time | has its answer | success | as it is |
//! | answers with an error in time | has that error | failure | as it is |
//! | panics, or answers more than [`MAX_ORDERS`] orders or [`MAX_TEXT_BYTES`] of text | [`CallError::Panicked`], [`CallError::Flood`] | failure | as before the call |
//! | answers late | had [`CallError::Late`] at the deadline; the answer is dropped by its generation | failure | as before the call |
//! | is asked while it is late | [`CallError::Busy`], at once | neither | |
//! | is asked while the breaker is open | [`CallError::Blocked`], at once | neither | |
//!
//! An answer that is dropped never happened: the policy is put back to its state before the call, so that what it remembers is
//! what was done. A thread cannot be interrupted: one that never comes back keeps the policy, and none is started beside it.
//!
//! # Saving and restoring
//! What is saved is the state after the last answer that was taken, so nobody waits for a late policy. A state that is
//! restored while the policy is late is taken up before its next call; where it then refuses it, so do all calls.
//!
//! Without [`Limits`] the policy runs where it is called, as if there were nothing around it.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use leyline::clock::Clock;
use leyline::durable::{Durable, SavedState};
use leyline::error::{Error, ErrorKind, ErrorType};
use leyline::policy::{Decision, Policy};
use leyline::region::{Eager, RegionError};
use leyline::state::SystemState;

use crate::breaker::{Breaker, BreakerConfig, BreakerState, Verdict};
use crate::exchange::Exchange;

/// Most orders, and most reasons to wait, of one decision (count): a network has no more seeds.
pub const MAX_ORDERS: usize = 1024;
/// Most bytes in the reasons, rules and signatures of one decision.
pub const MAX_TEXT_BYTES: usize = 1 << 20;

/// Longest wait for the first state of a policy.
const START: Duration = Duration::from_secs(60);

/// How long a policy may take, and what follows when it fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Time from a call to its answer.
    pub deadline: Duration,
    /// When a policy that fails is not asked for a while.
    pub breaker: BreakerConfig,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum CallError<E> {
    /// It did not come in time.
    #[error("the policy did not answer within {deadline_ms} ms; its answer will be dropped")]
    Late {
        /// Milliseconds that it had.
        deadline_ms: u128,
    },
    /// An earlier call has not come back.
    #[error("the policy is still at an earlier call")]
    Busy,
    /// The breaker is open.
    #[error("the policy failed, and is asked again in {retry_in_ms} ms")]
    Blocked {
        /// Milliseconds until a trial.
        retry_in_ms: u128,
    },
    /// It panicked, with this message.
    #[error("the policy panicked: {0}")]
    Panicked(String),
    /// It panicked or was late, and its state before the call could not be brought back.
    #[error("the policy failed, and the state that it had before could not be restored: it is not asked any more")]
    Lost,
    /// The answer is larger than any that can be meant.
    #[error(
        "the policy gave {orders} orders and {bytes} bytes of text; expected at most {MAX_ORDERS} and {MAX_TEXT_BYTES}"
    )]
    Flood {
        /// Orders, or reasons to wait, whichever are more (count).
        orders: usize,
        /// Bytes of reasons, rules and signatures.
        bytes: usize,
    },
    /// There is no thread for it.
    #[error("no thread for the policy can be started")]
    Thread(#[source] std::io::Error),
    /// A region is open.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The policy says so itself.
    #[error(transparent)]
    Inner(E),
}

impl<E: Error> Error for CallError<E> {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Late { .. } | Self::Busy | Self::Blocked { .. } => ErrorKind::DeadlineExceeded,
            Self::Panicked(_) | Self::Lost | Self::Thread(_) => ErrorKind::Other,
            Self::Flood { .. } => ErrorKind::Rejected,
            Self::Region(_) => ErrorKind::Region,
            Self::Inner(error) => error.kind(),
        }
    }
}

/// A policy, or the caller of one on a thread of its own.
///
/// ```
/// use std::{sync::Arc, time::Duration};
///
/// use esper_safety::{BreakerConfig, Limits, Timed};
/// use leyline::{clock::SystemClock, id::RunId, policy::Policy};
/// use leyline_testkit::{fake_policy::FakePolicy, world::{Measurements, Outcome, World}};
///
/// let limits = Limits { deadline: Duration::from_secs(5), breaker: BreakerConfig::default() };
/// let mut policy = Timed::on_a_thread(FakePolicy::new([]), limits, Arc::new(SystemClock::new()))?;
/// let state = World::new(RunId::new("run")?, 9, Measurements::all(Outcome::Good)).state();
/// assert!(policy.decide(&state)?.orders.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Timed<P: Policy>(How<P>);

#[derive(Debug)]
enum How<P: Policy> {
    Here(P),
    Thread(Box<Caller<P::Error>>),
}

impl<P: Policy> Timed<P> {
    /// The policy, called where it is asked, for as long as it takes.
    pub const fn here(policy: P) -> Self {
        Self(How::Here(policy))
    }

    /// The policy on a thread of its own. Deadlines are real time; how long the breaker is open goes by `clock`.
    ///
    /// # Errors
    /// [`CallError::Thread`]; when the policy cannot be saved.
    pub fn on_a_thread(policy: P, limits: Limits, clock: Arc<dyn Clock>) -> Result<Self, CallError<P::Error>>
    where
        P: 'static,
    {
        let (name, exchange) = (policy.name(), Exchange::new());
        let mut caller = Caller {
            name,
            exchange: exchange.clone(),
            thread: None,
            known: SavedState::default(),
            must_restore: false,
            limits,
            breaker: Breaker::new(limits.breaker),
            clock,
        };
        let serve = move || Server { policy, known: SavedState::default(), is_lost: false }.serve(&exchange);
        caller.thread = Some(thread::Builder::new().name("policy".to_owned()).spawn(serve).map_err(CallError::Thread)?);
        (_, caller.known) = caller.call(Request { from: None, state: None }, START)??;
        Ok(Self(How::Thread(Box::new(caller))))
    }

    /// The policy's breaker and its failures in a row; one without a deadline has none.
    pub fn breaker(&self) -> Option<(BreakerState, u32)> {
        match &self.0 {
            How::Here(_) => None,
            How::Thread(caller) => Some((caller.breaker.state(), caller.breaker.failures())),
        }
    }

    /// Answers that came late and were dropped.
    pub fn num_late(&self) -> u64 {
        match &self.0 {
            How::Here(_) => 0,
            How::Thread(caller) => caller.exchange.num_late(),
        }
    }
}

impl<P: Policy> ErrorType for Timed<P> {
    type Error = CallError<P::Error>;
}

impl<P: Policy> Policy for Timed<P> {
    fn name(&self) -> &'static str {
        match &self.0 {
            How::Here(policy) => policy.name(),
            How::Thread(caller) => caller.name,
        }
    }

    fn decide(&mut self, state: &SystemState) -> Result<Decision, Self::Error> {
        match &mut self.0 {
            How::Here(policy) => policy.decide(state).map_err(CallError::Inner).and_then(bounded),
            How::Thread(caller) => caller.decide(state),
        }
    }
}

impl<P: Policy> Durable for Timed<P> {
    fn save(&self, eager: &Eager) -> Result<SavedState, Self::Error> {
        match &self.0 {
            How::Here(policy) => policy.save(eager).map_err(CallError::Inner),
            How::Thread(caller) => {
                eager.check()?;
                Ok(caller.known.clone())
            }
        }
    }

    fn restore(&mut self, eager: &mut Eager, saved: &SavedState) -> Result<(), Self::Error> {
        match &mut self.0 {
            How::Here(policy) => policy.restore(eager, saved).map_err(CallError::Inner),
            How::Thread(caller) => {
                eager.check()?;
                caller.restore(saved)
            }
        }
    }
}

/// To take up a state, or to decide, or both in this order; and to say what the state is then.
#[derive(Debug)]
struct Request {
    from: Option<SavedState>,
    state: Option<SystemState>,
}

/// What the policy decided, where it was asked to, and its state afterwards; or why there is neither.
type Reply<E> = Result<(Result<Decision, CallError<E>>, SavedState), CallError<E>>;

#[derive(Debug)]
struct Caller<E> {
    name: &'static str,
    exchange: Exchange<Request, Reply<E>>,
    thread: Option<JoinHandle<()>>,
    /// After the last answer that was taken.
    known: SavedState,
    /// Whether the policy has not taken up `known` yet.
    must_restore: bool,
    limits: Limits,
    breaker: Breaker,
    clock: Arc<dyn Clock>,
}

impl<E> Caller<E> {
    fn decide(&mut self, state: &SystemState) -> Result<Decision, CallError<E>> {
        let permit = self.breaker.allow(self.clock.now());
        let permit = permit.map_err(|refused| CallError::Blocked { retry_in_ms: refused.retry_in.as_millis() })?;
        let from = self.must_restore.then(|| self.known.clone());
        let reply = self.call(Request { from, state: Some(state.clone()) }, self.limits.deadline);
        let verdict = match &reply {
            Ok(Ok((Ok(_), _))) => Verdict::Success,
            Err(CallError::Busy) => Verdict::Neither,
            _ => Verdict::Failure,
        };
        self.breaker.record(permit, verdict, self.clock.now());
        let (decision, known) = reply??;
        (self.known, self.must_restore) = (known, false);
        decision
    }

    fn restore(&mut self, saved: &SavedState) -> Result<(), CallError<E>> {
        match self.call(Request { from: Some(saved.clone()), state: None }, self.limits.deadline) {
            Ok(reply) => {
                (_, self.known) = reply?;
                self.must_restore = false;
            }
            // It is taken up before the next call.
            Err(_) => (self.known, self.must_restore) = (saved.clone(), true),
        }
        Ok(())
    }

    /// # Errors
    /// [`CallError::Late`], [`CallError::Busy`].
    fn call(&self, request: Request, time: Duration) -> Result<Reply<E>, CallError<E>> {
        let generation = self.exchange.ask(request).map_err(|_| CallError::Busy)?;
        self.exchange.wait(generation, time).ok_or(CallError::Late { deadline_ms: time.as_millis() })
    }
}

impl<E> Drop for Caller<E> {
    /// A policy that is at a call keeps its thread until it comes back; nobody waits for it.
    fn drop(&mut self) {
        let is_working = self.exchange.close();
        if let Some(thread) = self.thread.take().filter(|_| !is_working) {
            thread.join().ok();
        }
    }
}

/// The side of the policy.
struct Server<P> {
    policy: P,
    /// What the caller knows.
    known: SavedState,
    is_lost: bool,
}

impl<P: Policy> Server<P> {
    fn serve(mut self, exchange: &Exchange<Request, Reply<P::Error>>) {
        // Of this thread, on which no region is ever open.
        let mut eager = Eager::acquire().expect("a new thread has no token and no region");
        while let Some((generation, request)) = exchange.next() {
            let reply = self.reply(&mut eager, request);
            let known = reply.as_ref().ok().map(|(_, known)| known.clone());
            let is_taken = exchange.answer(generation, reply);
            match known {
                Some(known) if is_taken => self.known = known,
                // What was dropped never happened.
                Some(_) => self.put_back(&mut eager),
                None => {}
            }
        }
    }

    fn reply(&mut self, eager: &mut Eager, request: Request) -> Reply<P::Error> {
        if self.is_lost {
            return Err(CallError::Lost);
        }
        let work = catch_unwind(AssertUnwindSafe(|| self.work(eager, request)));
        let reply = work.unwrap_or_else(|panic| Err(CallError::Panicked(message(&*panic))));
        if reply.is_err() {
            self.put_back(eager);
        }
        reply
    }

    fn work(&mut self, eager: &mut Eager, request: Request) -> Reply<P::Error> {
        if let Some(from) = &request.from {
            self.policy.restore(eager, from).map_err(CallError::Inner)?;
        }
        let decided = request.state.map_or_else(|| Ok(Decision::default()), |state| self.policy.decide(&state));
        let decided = match decided.map(bounded) {
            Ok(Err(flood)) => return Err(flood),
            Ok(Ok(decision)) => Ok(decision),
            Err(error) => Err(CallError::Inner(error)),
        };
        Ok((decided, self.policy.save(eager).map_err(CallError::Inner)?))
    }

    fn put_back(&mut self, eager: &mut Eager) {
        let back = catch_unwind(AssertUnwindSafe(|| self.policy.restore(eager, &self.known).is_ok()));
        self.is_lost = !back.unwrap_or(false);
    }
}

/// The decision, unless it is larger than any that can be meant.
fn bounded<E>(decision: Decision) -> Result<Decision, CallError<E>> {
    let signed = |order: &leyline::command::Order| order.signed.as_ref().map_or(0, |signed| signed.bytes.len());
    let of_orders = decision.orders.iter().map(|order| order.reason.len() + signed(order));
    let of_waiting = decision.waiting.iter().map(|why| why.rule.len() + why.detail.len());
    let orders = decision.orders.len().max(decision.waiting.len());
    let bytes = of_orders.chain(of_waiting).sum();
    if orders > MAX_ORDERS || bytes > MAX_TEXT_BYTES {
        return Err(CallError::Flood { orders, bytes });
    }
    Ok(decision)
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without a message".to_owned())
}

#[cfg(test)]
#[cfg(not(feature = "model-check"))]
mod tests;
