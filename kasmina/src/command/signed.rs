//! Commands for the tests of this module.

use hmac::{Hmac, KeyInit, Mac};
use leyline::command::{Command, KeyId, Operation, SignedCommand};
use leyline::id::{RunId, SeedId};
use sha2::Sha256;

use crate::command::{CommandKey, KeyRing, Verifier};

/// Of the clocks of these tests, when they start.
pub(super) const NOW_MS: u64 = 1_000_000;
pub(super) const CAPACITY: usize = 100;

fn secret(key_id: KeyId) -> [u8; 32] {
    [u8::try_from(key_id.0 % 251).expect("less than 251") + 1; 32]
}

/// The key that goes with an id.
pub(super) fn key(id: u32) -> (KeyId, CommandKey) {
    (KeyId(id), CommandKey::new(secret(KeyId(id))))
}

pub(super) fn run_id() -> RunId {
    RunId::new("run-1").unwrap()
}

/// Accepts commands of keys 0 and 1.
pub(super) fn verifier() -> Verifier {
    Verifier::new(run_id(), KeyRing::from_iter([key(0), key(1)]), CAPACITY)
}

pub(super) fn command(sequence: u64) -> Command {
    Command::new(run_id(), sequence, NOW_MS, Operation::Cull { seed: SeedId(3) }, "test".into())
}

/// Signs whatever the bytes are.
pub(super) fn sign_bytes(id: u32, bytes: Vec<u8>) -> SignedCommand {
    let key_id = KeyId(id);
    let mut mac = Hmac::<Sha256>::new_from_slice(&secret(key_id)).unwrap();
    mac.update(&SignedCommand::signed_message(key_id, &bytes));
    SignedCommand { key_id, tag: mac.finalize().into_bytes().into(), bytes }
}

pub(super) fn sign(id: u32, command: &Command) -> SignedCommand {
    sign_bytes(id, command.to_bytes())
}
