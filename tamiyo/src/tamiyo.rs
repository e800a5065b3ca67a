//! The policy as the trainer sees it: proposals checked, numbered, dated and signed.

use std::sync::Arc;

use leyline::clock::Clock;
use leyline::command::{Command, KeyId, Operation};
use leyline::durable::{Durable, SavedState};
use leyline::error::ErrorType;
use leyline::id::RunId;
use leyline::policy::{Decision, Policy, Rationale};
use leyline::region::Eager;
use leyline::state::SystemState;
use leyline::telemetry::Recorder;
use serde::{Deserialize, Serialize};

use crate::check::Outlook;
use crate::config::TamiyoConfig;
use crate::coverage::input_coverage;
use crate::error::Error;
use crate::policy::{Memory, Proposal, Proposer};
use crate::sign::SigningKey;
use crate::telemetry::Instruments;

const FORMAT: u32 = 2;
/// A reason that is longer would not survive the canonical bytes.
const MAX_REASON_BYTES: usize = 256;

/// Turns states into signed commands by the configured policy.
///
/// In a decision the rationales of the commands come first, in the order of the commands; those of proposals that
/// were dropped and the reasons for waiting follow. The clock only dates commands and measures latency; no operation
/// depends on it.
#[derive(Debug)]
pub struct Tamiyo {
    run_id: RunId,
    key_id: KeyId,
    key: SigningKey,
    clock: Arc<dyn Clock>,
    instruments: Instruments,
    patience_epochs: u64,
    policy: Box<dyn Proposer>,
    progress: Progress,
}

/// What the service itself remembers.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Progress {
    /// Of the last command; the first one has 1.
    sequence: u64,
    /// Last finite validation loss.
    validation_loss: Option<f64>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Saved {
    format: u32,
    progress: Progress,
    memory: Memory,
}

impl Tamiyo {
    /// A policy with nothing observed yet that signs for `run_id`.
    ///
    /// # Errors
    /// [`Error::Config`] with everything that is wrong with the configuration.
    pub fn new(
        config: TamiyoConfig,
        run_id: RunId,
        key: SigningKey,
        clock: Arc<dyn Clock>,
        recorder: Arc<dyn Recorder>,
    ) -> Result<Self, Error> {
        config.validate().map_err(|issues| Error::Config { issues })?;
        Ok(Self {
            run_id,
            key_id: KeyId::default(),
            key,
            clock,
            instruments: Instruments::new(recorder),
            patience_epochs: config.heuristic.plateau.patience_epochs,
            policy: crate::policy::build(config),
            progress: Progress::default(),
        })
    }

    /// Signs under this id: what the receiver calls the key. Without it, under id 0.
    #[must_use]
    pub fn with_key_id(mut self, key_id: KeyId) -> Self {
        self.key_id = key_id;
        self
    }

    fn check(&self, state: &SystemState) -> Result<(), Error> {
        if state.run_id != self.run_id {
            return Err(Error::ForeignRun { expected: self.run_id.clone(), found: state.run_id.clone() });
        }
        match state.seeds.windows(2).find(|pair| pair[0].seed_id >= pair[1].seed_id) {
            Some(pair) => Err(Error::SeedOrder { seed: pair[1].seed_id }),
            None => Ok(()),
        }
    }

    /// Checks the proposals against the state and signs those that fit.
    fn issue(&mut self, state: &SystemState, mut proposals: Vec<Proposal>) -> Decision {
        proposals.sort_by_key(Proposal::precedence);
        let mut outlook = Outlook::of(state);
        let mut decision = Decision::default();
        let mut without_command = Vec::new();
        for Proposal { operation, rule, detail } in proposals {
            let Some(operation) = operation else {
                self.instruments.record_waiting(state, rule, &detail);
                without_command.push(Rationale { rule: rule.to_owned(), detail });
                continue;
            };
            if let Err(refusal) = outlook.admit(&operation) {
                let reason = refusal.to_string();
                self.instruments.record_refusal(state, &operation, rule, &reason);
                without_command.push(Rationale { rule: rule.to_owned(), detail: format!("dropped: {reason}") });
                continue;
            }
            let command = self.number(operation, rule, &detail, input_coverage(state));
            self.instruments.record_decision(state, &command, rule, &detail);
            let signed = self.key.sign_as(self.key_id, &command);
            decision.commands.push((command, signed));
            decision.rationale.push(Rationale { rule: rule.to_owned(), detail });
        }
        decision.rationale.append(&mut without_command);
        decision
    }

    fn number(&mut self, operation: Operation, rule: &str, detail: &str, coverage: f64) -> Command {
        self.progress.sequence += 1;
        let mut reason = format!("{rule}: {detail}");
        reason.truncate(reason.floor_char_boundary(MAX_REASON_BYTES));
        let issued_at_unix_ms = u64::try_from(self.clock.unix().as_millis()).unwrap_or(u64::MAX);
        let command = Command::new(self.run_id.clone(), self.progress.sequence, issued_at_unix_ms, operation, reason);
        Command { input_coverage: Some(coverage), ..command }
    }
}

impl ErrorType for Tamiyo {
    type Error = Error;
}

impl Policy for Tamiyo {
    fn name(&self) -> &'static str {
        self.policy.kind().name()
    }

    fn evaluate(&mut self, state: &SystemState) -> Result<Decision, Error> {
        let started = self.clock.now();
        self.check(state)?;
        let loss = state.validation.as_ref().map(|score| score.loss).filter(|loss| loss.is_finite());
        let delta = loss.zip(self.progress.validation_loss).map(|(now, before)| now - before);
        self.progress.validation_loss = loss.or(self.progress.validation_loss);
        self.instruments.record_state(state, loss, delta);

        let before = self.policy.signals();
        let proposals = self.policy.propose(state);
        self.instruments.record_signals(state, before, self.policy.signals(), self.patience_epochs);
        let decision = self.issue(state, proposals);
        self.instruments.record_latency(self.clock.now().saturating_sub(started));
        Ok(decision)
    }
}

impl Durable for Tamiyo {
    fn save(&self, eager: &Eager) -> Result<SavedState, Error> {
        eager.check()?;
        let saved = Saved { format: FORMAT, progress: self.progress, memory: self.policy.memory() };
        let json = serde_json::to_string(&saved).map_err(Error::Save)?;
        Ok(SavedState { json, ..SavedState::default() })
    }

    fn restore(&mut self, eager: &mut Eager, saved: &SavedState) -> Result<(), Error> {
        eager.check()?;
        let Saved { format, progress, memory } = serde_json::from_str(&saved.json).map_err(Error::Restore)?;
        if format != FORMAT {
            return Err(Error::RestoreFormat { expected: FORMAT, found: format });
        }
        self.policy.recall(memory)?;
        // Numbers that were given out stay used, also after going back: the receiver takes each once (PO-4).
        let sequence = progress.sequence.max(self.progress.sequence);
        self.progress = Progress { sequence, ..progress };
        Ok(())
    }
}
