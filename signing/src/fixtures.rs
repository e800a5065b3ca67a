//! Commands for the tests of this crate.

use leyline::command::{Command, KeyId, Operation, SignedCommand};
use leyline::id::{RunId, SeedId};

use crate::verifier::Verifier;
use crate::{CommandKey, KeyRing};

/// Of the clocks of these tests, when they start.
pub(crate) const NOW_MS: u64 = 1_000_000;

/// The key that goes with an id.
pub(crate) fn key(id: u32) -> (KeyId, CommandKey) {
    (KeyId(id), CommandKey::new([u8::try_from(id % 251).expect("less than 251") + 1; 32]))
}

pub(crate) fn run_id() -> RunId {
    RunId::new("run-1").unwrap()
}

/// Accepts commands of keys 0 and 1.
pub(crate) fn verifier() -> Verifier {
    Verifier::new(run_id(), KeyRing::from_iter([key(0), key(1)]))
}

pub(crate) fn command(sequence: u64) -> Command {
    Command::new(run_id(), sequence, NOW_MS, Operation::Cull { seed: SeedId(3) }, "test".into())
}

/// Signs whatever the bytes are.
pub(crate) fn sign_bytes(id: u32, bytes: Vec<u8>) -> SignedCommand {
    key(id).1.sign_bytes(KeyId(id), bytes)
}

pub(crate) fn sign(id: u32, command: &Command) -> SignedCommand {
    sign_bytes(id, command.to_bytes())
}
