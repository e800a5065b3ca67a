//! A policy whose orders are numbered, dated and signed.

use std::sync::Arc;

use leyline::clock::Clock;
use leyline::command::{Command, KeyId, Order};
use leyline::durable::{Durable, SavedState};
use leyline::error::ErrorType;
use leyline::id::RunId;
use leyline::policy::{Decision, Policy};
use leyline::region::Eager;
use leyline::state::SystemState;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{CommandKey, Error};

/// A reason that is longer would not survive the canonical bytes.
const MAX_REASON_BYTES: usize = 256;

/// Numbers, dates and signs what a policy orders; decides nothing.
///
/// ```
/// use std::sync::Arc;
///
/// use esper_signing::{CommandKey, Signed};
/// use leyline::command::{KeyId, Operation};
/// use leyline::id::{RunId, SeedId};
/// use leyline::policy::Policy;
/// use leyline_testkit::{clock::ManualClock, fake_policy::FakePolicy, world::{Measurements, Outcome, World}};
///
/// let (run_id, clock) = (RunId::new("run-1")?, Arc::new(ManualClock::default()));
/// let policy = FakePolicy::new([vec![Operation::Cull { seed: SeedId(3) }]]);
/// let mut signed = Signed::new(policy, run_id.clone(), KeyId(0), CommandKey::new([7; 32]), clock);
/// let decision = signed.decide(&World::new(run_id, 9, Measurements::all(Outcome::Good)).state())?;
/// assert_eq!(decision.orders[0].sequence, Some(1));
/// assert!(decision.orders[0].signed.is_some());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Signed<P> {
    policy: P,
    run_id: RunId,
    key_id: KeyId,
    key: CommandKey,
    clock: Arc<dyn Clock>,
    /// Of the last order; the first one has 1.
    sequence: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Saved {
    sequence: u64,
    policy: String,
}

impl<P: Policy> Signed<P> {
    /// Signs for `run_id` under `key`, which the receiver holds as `key_id`.
    pub fn new(policy: P, run_id: RunId, key_id: KeyId, key: CommandKey, clock: Arc<dyn Clock>) -> Self {
        Self { policy, run_id, key_id, key, clock, sequence: 0 }
    }

    /// The policy.
    pub fn inner(&self) -> &P {
        &self.policy
    }

    fn sign(&mut self, order: &mut Order) {
        self.sequence += 1;
        let mut reason = order.reason.clone();
        reason.truncate(reason.floor_char_boundary(MAX_REASON_BYTES));
        let issued_at_unix_ms = u64::try_from(self.clock.unix().as_millis()).unwrap_or(u64::MAX);
        let (run_id, operation) = (self.run_id.clone(), order.operation.clone());
        let command = Command::new(run_id, self.sequence, issued_at_unix_ms, operation, reason);
        let command = Command { input_coverage: order.input_coverage, ..command };
        order.sequence = Some(self.sequence);
        order.signed = Some(self.key.sign(self.key_id, &command));
        order.reason = command.reason;
    }
}

impl<P: Policy> ErrorType for Signed<P> {
    type Error = Error<P::Error>;
}

impl<P: Policy> Policy for Signed<P> {
    fn name(&self) -> &'static str {
        self.policy.name()
    }

    fn decide(&mut self, state: &SystemState) -> Result<Decision, Self::Error> {
        if state.run_id != self.run_id {
            return Err(Error::ForeignRun { expected: self.run_id.clone(), found: state.run_id.clone() });
        }
        let mut decision = self.policy.decide(state).map_err(Error::Inner)?;
        decision.orders.iter_mut().for_each(|order| self.sign(order));
        Ok(decision)
    }
}

impl<P: Policy> Durable for Signed<P> {
    fn save(&self, eager: &Eager) -> Result<SavedState, Self::Error> {
        let inner = self.policy.save(eager).map_err(Error::Inner)?;
        let saved = Saved { sequence: self.sequence, policy: inner.json };
        let json = serde_json::to_string(&saved).map_err(Error::Saved)?;
        Ok(SavedState { json, tensors: inner.tensors })
    }

    /// Numbers that were given out stay used, also after going back: the receiver takes each once (PO-4).
    fn restore(&mut self, eager: &mut Eager, saved: &SavedState) -> Result<(), Self::Error> {
        let mut document: Value = serde_json::from_str(&saved.json).map_err(Error::Saved)?;
        // In earlier builds the policy itself kept the number.
        if let Some(progress) = document.get("progress") {
            let number = progress.get("sequence").map(|number| ("sequence", number.clone()));
            document = number.into_iter().chain([("policy", Value::from(saved.json.as_str()))]).collect();
        }
        let Saved { sequence, policy: json } = serde_json::from_value(document).map_err(Error::Saved)?;
        let inner = SavedState { json, tensors: saved.tensors.clone() };
        self.policy.restore(eager, &inner).map_err(Error::Inner)?;
        self.sequence = self.sequence.max(sequence);
        Ok(())
    }
}
