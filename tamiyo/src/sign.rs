//! The signature of a command: HMAC-SHA256 (RFC 2104, FIPS 180-4) over the id of its key and its canonical bytes.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use leyline::command::{Command, KeyId, SignedCommand};
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
    /// The command's canonical bytes with their tag, for a receiver that holds this key alone, under id 0.
    #[must_use]
    pub fn sign(&self, command: &Command) -> SignedCommand {
        self.sign_as(KeyId::default(), command)
    }

    /// The command's canonical bytes with their tag, for a receiver that holds this key under `key_id`.
    #[must_use]
    pub fn sign_as(&self, key_id: KeyId, command: &Command) -> SignedCommand {
        let bytes = command.to_bytes();
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        mac.update(&SignedCommand::signed_message(key_id, &bytes));
        SignedCommand { key_id, tag: mac.finalize().into_bytes().into(), bytes }
    }
}

#[cfg(test)]
mod tests {
    use leyline::command::Operation;
    use leyline::id::{RunId, SeedId};

    use super::*;

    /// Made with Python from the layout in `leyline::command`, without any of this code:
    ///
    /// ```text
    /// import hmac
    /// def le(number, size): return number.to_bytes(size, "little")
    /// def text(t): return le(len(t), 2) + t.encode()
    /// command = (b"esper.command" + le(2, 1) + text("run-1") + le(1, 8) + le(1, 16) + le(2, 8) + le(60000, 4)
    ///            + le(8, 1) + le(3, 4) + le(0, 1) + text("r"))
    /// for key_id in 0, 7: print(hmac.new(bytes(range(32)), le(key_id, 4) + command, "sha256").hexdigest())
    /// ```
    const TAGS: [(u32, &str); 2] = [
        (0, "95e69fbfd5e3a36f5376af4795998ea0d60541a85c31bdc8642e06bceb6778c2"),
        (7, "a9b6a691f53539114f1fa158b1124ca00bbc38dea130fae4b95eccb80d322a76"),
    ];

    fn command() -> Command {
        Command::new(RunId::new("run-1").unwrap(), 1, 2, Operation::Cull { seed: SeedId(3) }, "r".into())
    }

    #[test]
    fn the_tag_is_the_hmac_of_the_key_id_and_the_canonical_bytes() {
        let key = SigningKey(std::array::from_fn(|i| u8::try_from(i).unwrap()));
        for (key_id, tag) in TAGS {
            let signed = key.sign_as(KeyId(key_id), &command());
            assert_eq!((signed.key_id, &signed.bytes), (KeyId(key_id), &command().to_bytes()));
            assert_eq!(signed.tag.iter().map(|byte| format!("{byte:02x}")).collect::<String>(), tag);
        }
    }

    #[test]
    fn another_key_gives_another_tag() {
        let tag = |key| SigningKey(key).sign(&command()).tag;
        assert_ne!(tag([1; 32]), tag([2; 32]));
    }

    #[test]
    fn the_key_is_not_shown() {
        assert_eq!(format!("{:?}", SigningKey([7; 32])), "SigningKey(redacted)");
    }
}
