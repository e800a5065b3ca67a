//! A policy that plays a script.

use std::collections::VecDeque;

use leyline::command::{Operation, Order};
use leyline::durable::{Durable, SavedState};
use leyline::error::ErrorType;
use leyline::policy::{Decision, Policy};
use leyline::region::Eager;
use leyline::state::SystemState;

use crate::error::Error;

/// Plays one line of operations per call of `decide`, then nothing. It does not look at the state, so its script must
/// fit the run.
#[derive(Debug)]
pub struct FakePolicy {
    script: VecDeque<Vec<Operation>>,
}

impl FakePolicy {
    /// A policy that will play `script`.
    pub fn new(script: impl IntoIterator<Item = Vec<Operation>>) -> Self {
        Self { script: script.into_iter().collect() }
    }
}

impl ErrorType for FakePolicy {
    type Error = Error;
}

impl Policy for FakePolicy {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn decide(&mut self, _state: &SystemState) -> Result<Decision, Error> {
        let line = self.script.pop_front().unwrap_or_default();
        let orders = line.into_iter().map(|operation| Order::new(operation, "script")).collect();
        Ok(Decision { orders, waiting: Vec::new() })
    }
}

impl Durable for FakePolicy {
    fn save(&self, eager: &Eager) -> Result<SavedState, Error> {
        eager.check()?;
        Ok(SavedState { json: serde_json::to_string(&self.script)?, ..SavedState::default() })
    }

    fn restore(&mut self, eager: &mut Eager, saved: &SavedState) -> Result<(), Error> {
        eager.check()?;
        self.script = serde_json::from_str(&saved.json)?;
        Ok(())
    }
}
