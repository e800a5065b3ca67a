//! The checks themselves, in their order.

use std::time::Duration;

use leyline::command::{Command, KeyId, SignedCommand, WireError};
use leyline::id::RunId;

use crate::window::{Acceptance, ReplayWindow};
use crate::{Journal, KeyRing, Rejection};

/// How far ahead of this clock the issuer's clock may be.
pub const MAX_AHEAD: Duration = Duration::from_secs(5);

/// Checks commands and remembers what it accepted.
#[derive(Debug)]
pub(crate) struct Verifier {
    run_id: RunId,
    keys: KeyRing,
    window: ReplayWindow,
    journal: Option<Journal>,
}

impl Verifier {
    pub(crate) fn new(run_id: RunId, keys: KeyRing) -> Self {
        Self { run_id, keys, window: ReplayWindow::default(), journal: None }
    }

    /// Takes over what the journal holds, and writes to it from now on.
    pub(crate) fn set_journal(&mut self, journal: Journal) {
        self.window.merge(journal.window());
        self.journal = Some(journal);
    }

    pub(crate) fn set_keys(&mut self, keys: KeyRing) {
        self.keys = keys;
    }

    pub(crate) fn window(&self) -> &ReplayWindow {
        &self.window
    }

    /// Remembers what a saved window remembers too.
    pub(crate) fn merge(&mut self, saved: &ReplayWindow) {
        self.window.merge(saved);
    }

    /// The command, once every check has passed; its number is used then, durably if there is a journal. `now` is the
    /// calendar time since 1970-01-01 UTC.
    pub(crate) fn accept(&mut self, signed: &SignedCommand, now: Duration) -> Result<Command, Rejection> {
        self.keys.verify(signed, now)?;
        let command = Command::from_bytes(&signed.bytes).map_err(|error| match error {
            WireError::Retired { .. } => Rejection::Unsupported(error),
            error => Rejection::Malformed(error),
        })?;
        if command.run_id != self.run_id {
            return Err(Rejection::ForeignRun { found: command.run_id, expected: self.run_id.clone() });
        }
        let new = acceptance(signed.key_id, &command, now)?;
        self.window.check(&new)?;
        if let Some(journal) = &mut self.journal {
            journal.append(&new).map_err(Rejection::Journal)?;
        }
        self.window.insert(new.key_id, new.sequence);
        Ok(command)
    }
}

/// What to remember of a command that is fresh.
fn acceptance(key_id: KeyId, command: &Command, now: Duration) -> Result<Acceptance, Rejection> {
    let accepted_ms = command.valid_for_ms;
    if !(1..=Command::MAX_VALID_FOR_MS).contains(&accepted_ms) {
        return Err(Rejection::InvalidValidity { found_ms: accepted_ms });
    }
    let issued_at = Duration::from_millis(command.issued_at_unix_ms);
    if let Some(ahead) = issued_at.checked_sub(now).filter(|&ahead| ahead > MAX_AHEAD) {
        return Err(Rejection::IssuedInFuture { ahead_ms: millis(ahead) });
    }
    let valid_for = Duration::from_millis(accepted_ms.into());
    if let Some(age) = now.checked_sub(issued_at).filter(|&age| age > valid_for) {
        return Err(Rejection::Stale { age_ms: millis(age), accepted_ms });
    }
    let expires_unix_ms = command.issued_at_unix_ms.saturating_add(accepted_ms.into());
    Ok(Acceptance { key_id, sequence: command.sequence, nonce: command.nonce, expires_unix_ms })
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
