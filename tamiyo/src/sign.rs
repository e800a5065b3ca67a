//! The signature of a command: HMAC-SHA256 (RFC 2104, FIPS 180-4) over its canonical bytes.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use leyline::command::{Command, SignedCommand};
use sha2::Sha256;

/// The secret that issuer and receiver of commands share. Its debug form does not show it.
#[derive(Clone)]
pub struct SigningKey(pub [u8; 32]);

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningKey(redacted)")
    }
}

impl SigningKey {
    /// The command's canonical bytes with their tag.
    #[must_use]
    pub fn sign(&self, command: &Command) -> SignedCommand {
        let bytes = command.to_bytes();
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        mac.update(&bytes);
        SignedCommand { tag: mac.finalize().into_bytes().into(), bytes }
    }
}

#[cfg(test)]
mod tests {
    use leyline::command::Operation;
    use leyline::id::{RunId, SeedId};

    use super::*;

    /// Made with Python: `hmac.new(bytes(range(32)), data, "sha256").hexdigest()`, `data` being the canonical bytes.
    const TAG: &str = "24a074c86504c9b4d3ae4f744524b7ff7143dd3be14551797f1e5bdc21cf81ac";

    fn command() -> Command {
        Command {
            run_id: RunId::new("run-1").unwrap(),
            sequence: 1,
            issued_at_unix_ms: 2,
            operation: Operation::Cull { seed: SeedId(3) },
            reason: "r".into(),
        }
    }

    #[test]
    fn the_tag_is_the_hmac_of_the_canonical_bytes() {
        let key = SigningKey(std::array::from_fn(|i| u8::try_from(i).unwrap()));
        let signed = key.sign(&command());
        assert_eq!(signed.bytes, command().to_bytes());
        assert_eq!(signed.tag.iter().map(|byte| format!("{byte:02x}")).collect::<String>(), TAG);
    }

    #[test]
    fn another_key_gives_another_tag() {
        assert_ne!(SigningKey([1; 32]).sign(&command()).tag, SigningKey([2; 32]).sign(&command()).tag);
    }

    #[test]
    fn the_key_is_not_shown() {
        assert_eq!(format!("{:?}", SigningKey([7; 32])), "SigningKey(redacted)");
    }
}
