//! Verification of commands: who sent it, for which run, in which order, and when.
//!
//! Nothing in a command is parsed before its tag has been verified, and nothing in it is acted on or reported before
//! all checks have passed. Order of the checks: tag, form, run, sequence, time. The sequence number counts as used
//! once all of them have passed, whether or not the operation is then allowed.

use std::fmt;
use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use leyline::clock::Clock;
use leyline::command::{Command, SignedCommand, WireError};
use leyline::id::RunId;
use sha2::Sha256;

/// Oldest accepted command.
pub const MAX_AGE: Duration = Duration::from_secs(60);
/// How far ahead of this clock the issuer's clock may be.
pub const MAX_AHEAD: Duration = Duration::from_secs(5);

/// The key that policy and seed manager share. Its bytes are never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct CommandKey([u8; 32]);

impl CommandKey {
    /// Takes 32 secret bytes.
    #[must_use]
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Whether `tag` is the HMAC-SHA256 of `bytes`; takes as long for a wrong tag as for the right one.
    fn verifies(&self, bytes: &[u8], tag: &[u8; 32]) -> bool {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        mac.update(bytes);
        mac.verify_slice(tag).is_ok()
    }
}

impl fmt::Debug for CommandKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CommandKey(..)")
    }
}

/// Why a command was rejected.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Rejection {
    /// The tag is not the one of these bytes under this key.
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
        /// The last number accepted.
        last: u64,
    },
    /// It is too old.
    #[error("it is {age_ms} ms old: accepted are 60000")]
    Stale {
        /// Its age.
        age_ms: u64,
    },
    /// It was issued too far in the future.
    #[error("it is {ahead_ms} ms ahead of the clock: accepted are 5000")]
    IssuedInFuture {
        /// How far ahead.
        ahead_ms: u64,
    },
}

impl Rejection {
    /// The reasons, as telemetry names them.
    pub const REASONS: [&'static str; 6] = [
        "invalid_signature",
        "malformed_command",
        "foreign_run",
        "sequence_replayed",
        "stale_command",
        "issued_in_future",
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
        }]
    }
}

/// Checks commands and remembers the last accepted number.
#[derive(Debug)]
pub(crate) struct Verifier {
    run_id: RunId,
    key: CommandKey,
    last_sequence: Option<u64>,
}

impl Verifier {
    pub(crate) fn new(run_id: RunId, key: CommandKey) -> Self {
        Self { run_id, key, last_sequence: None }
    }

    pub(crate) fn last_sequence(&self) -> Option<u64> {
        self.last_sequence
    }

    pub(crate) fn set_last_sequence(&mut self, last_sequence: Option<u64>) {
        self.last_sequence = last_sequence;
    }

    /// The command, once every check has passed; its number is used then.
    pub(crate) fn accept(&mut self, signed: &SignedCommand, clock: &dyn Clock) -> Result<Command, Rejection> {
        if !self.key.verifies(&signed.bytes, &signed.tag) {
            return Err(Rejection::InvalidSignature);
        }
        let command = Command::from_bytes(&signed.bytes).map_err(Rejection::Malformed)?;
        if command.run_id != self.run_id {
            return Err(Rejection::ForeignRun { found: command.run_id, expected: self.run_id.clone() });
        }
        if let Some(last) = self.last_sequence.filter(|&last| command.sequence <= last) {
            return Err(Rejection::Replayed { found: command.sequence, last });
        }
        let (now, issued_at) = (clock.unix(), Duration::from_millis(command.issued_at_unix_ms));
        if let Some(age) = now.checked_sub(issued_at).filter(|&age| age > MAX_AGE) {
            return Err(Rejection::Stale { age_ms: millis(age) });
        }
        if let Some(ahead) = issued_at.checked_sub(now).filter(|&ahead| ahead > MAX_AHEAD) {
            return Err(Rejection::IssuedInFuture { ahead_ms: millis(ahead) });
        }
        self.last_sequence = Some(command.sequence);
        Ok(command)
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use leyline::command::Operation;
    use leyline::id::SeedId;

    use super::*;

    const KEY: [u8; 32] = [7; 32];
    const NOW_MS: u64 = 1_000_000;

    #[derive(Debug)]
    struct Stopped;

    impl Clock for Stopped {
        fn now(&self) -> Duration {
            Duration::ZERO
        }
        fn unix(&self) -> Duration {
            Duration::from_millis(NOW_MS)
        }
    }

    fn sign(key: [u8; 32], bytes: Vec<u8>) -> SignedCommand {
        let mut mac = Hmac::<Sha256>::new_from_slice(&key).unwrap();
        mac.update(&bytes);
        let tag = mac.finalize().into_bytes().into();
        SignedCommand { bytes, tag }
    }

    fn command(run: &str, sequence: u64, issued_at_unix_ms: u64) -> Command {
        let operation = Operation::Cull { seed: SeedId(3) };
        Command { run_id: RunId::new(run).unwrap(), sequence, issued_at_unix_ms, operation, reason: "test".into() }
    }

    fn verifier(last_sequence: Option<u64>) -> Verifier {
        Verifier { last_sequence, ..Verifier::new(RunId::new("run-1").unwrap(), CommandKey::new(KEY)) }
    }

    /// `reason`: why it is rejected; none when it is accepted.
    #[track_caller]
    fn check(last: Option<u64>, signed: &SignedCommand, reason: Option<&str>) {
        let mut verifier = verifier(last);
        let outcome = verifier.accept(signed, &Stopped);
        assert_eq!(outcome.as_ref().err().map(Rejection::reason), reason, "{outcome:?}");
        let used = outcome.ok().map(|command| command.sequence).or(last);
        assert_eq!(verifier.last_sequence(), used, "a number is used by an accepted command only");
    }

    fn signed(run: &str, sequence: u64, issued_at: u64) -> SignedCommand {
        sign(KEY, command(run, sequence, issued_at).to_bytes())
    }

    #[test]
    fn numbers_are_accepted_once_and_in_order() {
        check(None, &signed("run-1", 0, NOW_MS), None);
        check(Some(0), &signed("run-1", 1, NOW_MS), None);
        check(Some(0), &signed("run-1", 9, NOW_MS), None);
        check(Some(0), &signed("run-1", 0, NOW_MS), Some("sequence_replayed"));
        check(Some(5), &signed("run-1", 4, NOW_MS), Some("sequence_replayed"));
        check(Some(u64::MAX), &signed("run-1", u64::MAX, NOW_MS), Some("sequence_replayed"));
    }

    #[test]
    fn a_command_is_fresh_for_a_minute_and_may_be_five_seconds_early() {
        check(None, &signed("run-1", 1, NOW_MS - 60_000), None);
        check(None, &signed("run-1", 1, NOW_MS - 60_001), Some("stale_command"));
        check(None, &signed("run-1", 1, 0), Some("stale_command"));
        check(None, &signed("run-1", 1, NOW_MS + 5_000), None);
        check(None, &signed("run-1", 1, NOW_MS + 5_001), Some("issued_in_future"));
        check(None, &signed("run-1", 1, u64::MAX), Some("issued_in_future"));
    }

    #[test]
    fn a_command_for_another_run_or_under_another_key_is_rejected() {
        check(None, &signed("run-2", 1, NOW_MS), Some("foreign_run"));
        check(None, &sign([8; 32], command("run-1", 1, NOW_MS).to_bytes()), Some("invalid_signature"));
        check(None, &sign(KEY, b"esper.command nonsense".to_vec()), Some("malformed_command"));
        // Forged bytes that are no command either: the tag is what is reported, so nothing was parsed.
        check(None, &sign([8; 32], b"nonsense".to_vec()), Some("invalid_signature"));
    }

    #[test]
    fn every_altered_byte_and_every_altered_bit_of_the_tag_is_refused() {
        let good = signed("run-1", 1, NOW_MS);
        for position in 0..good.bytes.len() {
            for flip in 1..=255 {
                let mut altered = good.clone();
                altered.bytes[position] ^= flip;
                check(None, &altered, Some("invalid_signature"));
            }
        }
        for position in 0..32 {
            for bit in 0..8 {
                let mut altered = good.clone();
                altered.tag[position] ^= 1 << bit;
                check(None, &altered, Some("invalid_signature"));
            }
        }
        for len in 0..good.bytes.len() {
            let cut = SignedCommand { bytes: good.bytes[..len].to_vec(), tag: good.tag };
            check(None, &cut, Some("invalid_signature"));
        }
    }

    #[test]
    fn the_tag_is_the_standard_one() {
        // RFC 4231, test case 1 has a key of 20 bytes 0x0b; padded with zeros to 32 bytes it is the same HMAC key.
        let mut key = [0; 32];
        key[..20].fill(0x0b);
        let expected = "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7";
        let tag: Vec<u8> = (0..32).map(|i| u8::from_str_radix(&expected[2 * i..2 * i + 2], 16).unwrap()).collect();
        assert!(CommandKey::new(key).verifies(b"Hi There", &tag.try_into().unwrap()));
    }

    #[test]
    fn the_key_is_never_shown() {
        assert_eq!(format!("{:?}", verifier(None)).matches("CommandKey(..)").count(), 1);
        assert!(!format!("{:?}", CommandKey::new([77; 32])).contains("77"));
    }
}
