//! Signed orders: [`Signed`] is a layer around any policy, [`Verified`] one around any seed manager. Neither knows what is
//! inside, and neither policy nor manager knows of the layer.
//!
//! ```text
//!  SystemState ─► Signed<P> ─ P::decide ─► number, date, tag ─► Order { signed } ─┐
//!                                                                                 │ the way that is not to be trusted
//!    M::apply ◄─ operation ◄─ journal ◄─ 5 number ◄─ 4 time ◄─ 3 run ◄─ 2 form ◄─ 1 key and tag ◄─ Verified<M>
//! ```
//!
//! # Order of the checks
//! | check | refused as |
//! |---|---|
//! | 1. it is signed, the key is held, the tag is the one of these bytes, the key is not retired | `unknown_key`, `invalid_signature`, `retired_key` |
//! | 2. the bytes are a command with an operation of this version | `malformed_command`, `unsupported_operation` |
//! | 3. it is meant for this run | `foreign_run` |
//! | 4. its validity is 1 to 60 000 ms, it is at most 5 s ahead of the clock and not older than its validity | `invalid_validity`, `issued_in_future`, `stale_command` |
//! | 5. its number is above every number accepted under its key | `sequence_replayed` |
//! | the journal, if there is one, holds it durably | `journal_failed` |
//!
//! Nothing in a command is parsed before check 1 has passed, and nothing in it is reported before all have. The number counts
//! as used once all have passed, whether or not the operation is then allowed; before that, nothing is used up, so a command
//! that came too early can be sent again. Of an order nothing counts but what was signed.
//!
//! # Replays
//! What was accepted is remembered as a *replay window*: the highest number of each key, for ever. It is part of the saved
//! state, where going back to an older state never narrows it, and of the [`Journal`], which brings it through a restart. The
//! nonce of a command is signed and written down with it and decides nothing: numbers grow, so a command that comes a second
//! time has a number that was used. A calendar that is set back makes an old command fresh again; its number is refused.
//!
//! # Timing
//! What is compared in secret is the tag, by `verify_slice` of the `hmac` crate, which takes as long for a wrong tag
//! as for the right one, wherever they differ. An unknown key id costs the same HMAC under a key that nobody holds.
//! What else an answer's time depends on is known to the sender: the length of the bytes, and, once the tag has
//! verified, which check failed.
#![forbid(unsafe_code)]

mod keyring;
mod rejection;
mod window;
mod journal;
mod verifier;
mod error;
mod signed;
mod verified;
pub mod telemetry;

pub use error::Error;
pub use journal::{Journal, JournalError, TornTail};
pub use keyring::{CommandKey, KeyRing};
pub use rejection::Rejection;
pub use signed::Signed;
pub use verified::{Verified, state_of_manager};
pub use verifier::MAX_AHEAD;

#[cfg(test)]
mod fixtures;
