//! A policy that plays a script.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use leyline::command::{Command, Operation, SignedCommand};
use leyline::durable::{Durable, SavedState};
use leyline::error::{ErrorKind, ErrorType};
use leyline::policy::{Decision, Policy, Rationale};
use leyline::region::Eager;
use leyline::state::SystemState;
use serde::{Deserialize, Serialize};

use crate::error::Error;

/// Plays one line of operations per call of `evaluate`, then nothing. It does not look at the state, so its script must
/// fit the run.
pub struct FakePolicy {
    script: VecDeque<Vec<Operation>>,
    next_sequence: u64,
    planted: Option<ErrorKind>,
    seen: Vec<SystemState>,
    sign: Signer,
}

type Signer = Arc<dyn Fn(&Command) -> SignedCommand + Send + Sync>;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Saved {
    script: VecDeque<Vec<Operation>>,
    next_sequence: u64,
}

impl FakePolicy {
    /// A policy that will play `script`, and signs with `sign`, for example
    /// [`fake_seed_manager::sign`](crate::fake_seed_manager::sign).
    pub fn new(
        script: impl IntoIterator<Item = Vec<Operation>>,
        sign: impl Fn(&Command) -> SignedCommand + Send + Sync + 'static,
    ) -> Self {
        Self {
            script: script.into_iter().collect(),
            next_sequence: 0,
            planted: None,
            seen: Vec::new(),
            sign: Arc::new(sign),
        }
    }

    /// Makes the next call of `evaluate` fail with this kind; its line of the script is played one call later.
    pub fn fail_next(&mut self, kind: ErrorKind) {
        self.planted = Some(kind);
    }

    /// The states it was given, in order.
    #[must_use]
    pub fn seen(&self) -> &[SystemState] {
        &self.seen
    }
}

impl fmt::Debug for FakePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakePolicy").field("script", &self.script).field("next_sequence", &self.next_sequence).finish()
    }
}

impl ErrorType for FakePolicy {
    type Error = Error;
}

impl Policy for FakePolicy {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn evaluate(&mut self, state: &SystemState) -> Result<Decision, Error> {
        self.seen.push(state.clone());
        if let Some(kind) = self.planted.take() {
            return Err(Error::Planted(kind));
        }
        let line = self.script.pop_front().unwrap_or_default();
        let rationale =
            line.iter().map(|operation| Rationale { rule: "script".into(), detail: operation.to_string() }).collect();
        let commands = line
            .into_iter()
            .map(|operation| {
                let command = Command::new(state.run_id.clone(), self.next_sequence, 0, operation, "script".into());
                self.next_sequence += 1;
                let signed = (self.sign)(&command);
                (command, signed)
            })
            .collect();
        Ok(Decision { commands, rationale })
    }
}

impl Durable for FakePolicy {
    fn save(&self, eager: &Eager) -> Result<SavedState, Error> {
        eager.check()?;
        let saved = Saved { script: self.script.clone(), next_sequence: self.next_sequence };
        let json = serde_json::to_string(&saved).map_err(|error| Error::Saved { field: error.to_string() })?;
        Ok(SavedState { json, ..SavedState::default() })
    }

    fn restore(&mut self, eager: &mut Eager, saved: &SavedState) -> Result<(), Error> {
        eager.check()?;
        let state: Saved =
            serde_json::from_str(&saved.json).map_err(|error| Error::Saved { field: error.to_string() })?;
        (self.script, self.next_sequence) = (state.script, state.next_sequence);
        Ok(())
    }
}
