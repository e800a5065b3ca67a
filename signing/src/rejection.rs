//! Why a command was rejected.

use leyline::command::{KeyId, WireError};
use leyline::id::RunId;

use crate::JournalError;

/// Why an order was rejected. It changed nothing, and its number is not used.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum Rejection {
    /// The tag is not the one of these bytes under this key, or there is none.
    #[error("its signature does not verify")]
    InvalidSignature,
    /// The bytes are signed, but no command.
    #[error("it cannot be read")]
    Malformed(#[source] WireError),
    /// It is meant for another run.
    #[error("it is meant for run `{found}`, this is run `{expected}`")]
    ForeignRun {
        /// The run it names.
        found: RunId,
        /// This run.
        expected: RunId,
    },
    /// Its number was used already, or a later one was.
    #[error("its sequence number {found} does not follow {last}")]
    Replayed {
        /// Its number.
        found: u64,
        /// The last number accepted under its key.
        last: u64,
    },
    /// It is too old.
    #[error("it is {age_ms} ms old: accepted are {accepted_ms}")]
    Stale {
        /// Its age.
        age_ms: u64,
        /// For how long it was valid.
        accepted_ms: u32,
    },
    /// It was issued too far in the future.
    #[error("it is {ahead_ms} ms ahead of the clock: accepted are 5000")]
    IssuedInFuture {
        /// How far ahead.
        ahead_ms: u64,
    },
    /// No key of this id is held.
    #[error("it names a key that is not held")]
    UnknownKey,
    /// Its key is no longer in use.
    #[error("its key, {key_id}, is retired")]
    RetiredKey {
        /// The key.
        key_id: KeyId,
    },
    /// It asks for an operation of the older system.
    #[error("it asks for what is not supported")]
    Unsupported(#[source] WireError),
    /// It is to be valid for no time or for too long.
    #[error("it is to be valid for {found_ms} ms: accepted are 1 to 60000")]
    InvalidValidity {
        /// What it says.
        found_ms: u32,
    },
    /// Its acceptance cannot be made durable.
    #[error("its acceptance could not be written down")]
    Journal(#[source] JournalError),
}

impl Rejection {
    /// The reasons, as telemetry names them.
    pub const REASONS: [&'static str; 11] = [
        "invalid_signature",
        "malformed_command",
        "foreign_run",
        "sequence_replayed",
        "stale_command",
        "issued_in_future",
        "unknown_key",
        "retired_key",
        "unsupported_operation",
        "invalid_validity",
        "journal_failed",
    ];

    /// Which of [`Self::REASONS`] it is.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        Self::REASONS[match self {
            Self::InvalidSignature => 0,
            Self::Malformed(_) => 1,
            Self::ForeignRun { .. } => 2,
            Self::Replayed { .. } => 3,
            Self::Stale { .. } => 4,
            Self::IssuedInFuture { .. } => 5,
            Self::UnknownKey => 6,
            Self::RetiredKey { .. } => 7,
            Self::Unsupported(_) => 8,
            Self::InvalidValidity { .. } => 9,
            Self::Journal(_) => 10,
        }]
    }
}
