//! Verification of commands: who sent it, for which run, when, in which order, and that it is the first time.
//!
//! ```text
//!  SignedCommand ─► 1 key and tag ─► 2 form ─► 3 run ─► 4 time ─► 5 sequence ─► 6 nonce ─► journal ─► operation
//! ```
//!
//! # Order of the checks
//! | check | refused as |
//! |---|---|
//! | 1. the key is held, the tag is the one of these bytes, the key is not retired | `unknown_key`, `invalid_signature`, `retired_key` |
//! | 2. the bytes are a command with an operation of this version | `malformed_command`, `unsupported_operation` |
//! | 3. it is meant for this run | `foreign_run` |
//! | 4. its validity is 1 to 60 000 ms, it is at most 5 s ahead of the clock and not older than its validity | `invalid_validity`, `issued_in_future`, `stale_command` |
//! | 5. its number is above every number accepted under its key | `sequence_replayed` |
//! | 6. its nonce was not accepted under its key, and there is room to remember it | `nonce_replayed`, `ledger_full` |
//! | the journal, if there is one, holds it durably | `journal_failed` |
//!
//! Nothing in a command is parsed before check 1 has passed, and nothing in it is reported before all have. Number
//! and nonce count as used once all have passed, whether or not the operation is then allowed; before that, nothing
//! is used up, so a command that came too early can be sent again.
//!
//! # Replays
//! What was accepted is remembered as a *replay window*: the highest number of each key for ever, each nonce until no
//! command that bears it could be fresh. A nonce is never forgotten to make room: a full ledger refuses. The window
//! is part of the saved state, where going back to an older state never narrows it, and of the [`Journal`], which
//! brings it through a restart. A calendar that is set back can make a forgotten nonce fresh again; its number is
//! refused then.
//!
//! # Timing
//! What is compared in secret is the tag, by `verify_slice` of the `hmac` crate, which takes as long for a wrong tag
//! as for the right one, wherever they differ. An unknown key id costs the same HMAC under a key that nobody holds.
//! What else an answer's time depends on is known to the sender: the length of the bytes, and, once the tag has
//! verified, which check failed.

mod keyring;
mod rejection;
mod ledger;
mod journal;
mod verifier;

pub use journal::{Journal, JournalError, TornTail};
pub use keyring::{CommandKey, KeyRing};
pub use ledger::NonceLedger;
pub use rejection::Rejection;
pub use verifier::MAX_AHEAD;

pub(crate) use ledger::ReplayWindow;
pub(crate) use verifier::Verifier;

#[cfg(test)]
mod signed;
