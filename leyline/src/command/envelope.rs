//! A command's bytes with the signature over them, and the form in which both travel.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Which of the keys that issuer and receiver share signed a command.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct KeyId(pub u32);

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "key-{}", self.0)
    }
}

/// A number that is used once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Nonce(pub [u8; 16]);

impl Nonce {
    /// A nonce from a number that its issuer uses once.
    #[must_use]
    pub fn from_counter(counter: u64) -> Self {
        Self(u128::from(counter).to_le_bytes())
    }
}

/// Canonical bytes of a command with their HMAC-SHA256 tag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignedCommand {
    /// The key of the tag.
    pub key_id: KeyId,
    /// See [`Command::to_bytes`](super::Command::to_bytes).
    pub bytes: Vec<u8>,
    /// HMAC-SHA256 over [`SignedCommand::signed_message`].
    pub tag: [u8; 32],
}

/// Bytes that are no signed command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EnvelopeError {
    /// Too few or too many bytes.
    #[error(
        "a signed command has {} to {} bytes, found {found}",
        SignedCommand::MIN_WIRE_BYTES,
        SignedCommand::MAX_WIRE_BYTES
    )]
    Length {
        /// How many there are.
        found: usize,
    },
}

impl SignedCommand {
    /// Fewest bytes of the form that travels: key id and tag.
    pub const MIN_WIRE_BYTES: usize = 4 + 32;
    /// Most bytes of the form that travels: a bound on what a receiver hashes for a stranger.
    pub const MAX_WIRE_BYTES: usize = 64 * 1024;

    /// What is signed: the key id, 4 bytes little-endian, then the command's bytes.
    #[must_use]
    pub fn signed_message(key_id: KeyId, bytes: &[u8]) -> Vec<u8> {
        [&key_id.0.to_le_bytes(), bytes].concat()
    }

    /// The form that travels: key id, 4 bytes little-endian, tag, then the command's bytes.
    #[must_use]
    pub fn to_wire(&self) -> Vec<u8> {
        [self.key_id.0.to_le_bytes().as_slice(), &self.tag, &self.bytes].concat()
    }

    /// Takes the form that travels apart. Nothing in the command itself is looked at.
    ///
    /// # Errors
    /// [`EnvelopeError`] for a length that no signed command has.
    pub fn from_wire(wire: &[u8]) -> Result<Self, EnvelopeError> {
        let refuse = EnvelopeError::Length { found: wire.len() };
        if wire.len() > Self::MAX_WIRE_BYTES {
            return Err(refuse);
        }
        let (key_id, rest) = wire.split_first_chunk::<4>().ok_or(refuse)?;
        let (tag, bytes) = rest.split_first_chunk::<32>().ok_or(refuse)?;
        Ok(Self { key_id: KeyId(u32::from_le_bytes(*key_id)), bytes: bytes.to_vec(), tag: *tag })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_that_travels_comes_back_the_same() {
        for len in [0, 1, 200] {
            let signed = SignedCommand { key_id: KeyId(0x0102_0304), bytes: vec![9; len], tag: [7; 32] };
            assert_eq!(SignedCommand::from_wire(&signed.to_wire()), Ok(signed));
        }
    }

    #[test]
    fn lengths_that_no_signed_command_has_are_refused() {
        for len in [0, 35, SignedCommand::MAX_WIRE_BYTES + 1] {
            assert_eq!(SignedCommand::from_wire(&vec![0; len]), Err(EnvelopeError::Length { found: len }));
        }
    }
}
