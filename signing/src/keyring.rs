//! The keys that commands may be signed with.

use std::collections::BTreeMap;
use std::fmt;
use std::hint::black_box;
use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use leyline::command::{Command, KeyId, SignedCommand};
use sha2::Sha256;

use crate::Rejection;

/// A key that who signs and who verifies share. Its bytes are never shown.
#[derive(Clone)]
pub struct CommandKey([u8; 32]);

/// Stands in for a key that is not held, so that an unknown id costs what a known one does. A tag under it is refused
/// like any other.
const DECOY: CommandKey = CommandKey([0; 32]);

impl CommandKey {
    /// Takes 32 secret bytes.
    #[must_use]
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The canonical bytes of a command with their tag, for a receiver that holds this key under `key_id`.
    ///
    /// ```
    /// use esper_signing::CommandKey;
    /// use leyline::command::{Command, KeyId, Operation};
    /// use leyline::id::{RunId, SeedId};
    ///
    /// let command = Command::new(RunId::new("run-1")?, 1, 2, Operation::Cull { seed: SeedId(3) }, "r".to_owned());
    /// let signed = CommandKey::new([7; 32]).sign(KeyId(0), &command);
    /// assert_eq!(signed.bytes, command.to_bytes());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn sign(&self, key_id: KeyId, command: &Command) -> SignedCommand {
        self.sign_bytes(key_id, command.to_bytes())
    }

    /// As [`Self::sign`], whatever the bytes are.
    pub(crate) fn sign_bytes(&self, key_id: KeyId, bytes: Vec<u8>) -> SignedCommand {
        let tag = self.mac(&SignedCommand::signed_message(key_id, &bytes)).finalize().into_bytes().into();
        SignedCommand { key_id, tag, bytes }
    }

    /// The HMAC-SHA256 of bytes that are no command, for this purpose: what is signed for one is not signed for another.
    #[must_use]
    pub fn tag(&self, purpose: &str, bytes: &[u8]) -> [u8; 32] {
        self.mac(&purposeful(purpose, bytes)).finalize().into_bytes().into()
    }

    /// Whether it is [`tag`](Self::tag) of these; takes as long for a wrong one.
    #[must_use]
    pub fn verifies_tag(&self, purpose: &str, bytes: &[u8], tag: &[u8; 32]) -> bool {
        self.verifies(&purposeful(purpose, bytes), tag)
    }

    fn mac(&self, message: &[u8]) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        mac.update(message);
        mac
    }

    /// Whether `tag` is the HMAC-SHA256 of `message`; takes as long for a wrong tag as for the right one.
    fn verifies(&self, message: &[u8], tag: &[u8; 32]) -> bool {
        self.mac(message).verify_slice(tag).is_ok()
    }
}

/// The length in front keeps a purpose from running into the bytes.
fn purposeful(purpose: &str, bytes: &[u8]) -> Vec<u8> {
    [&(purpose.len() as u64).to_le_bytes(), purpose.as_bytes(), bytes].concat()
}

impl fmt::Debug for CommandKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CommandKey(..)")
    }
}

/// The keys that a verifier accepts, by id. Without any, every command is refused.
///
/// A key is replaced by adding the next one under a new id and giving the old one a time at which it retires; both
/// are accepted in between. An id must never be given to another key: the numbers accepted under it stay used.
#[derive(Debug, Clone, Default)]
pub struct KeyRing {
    keys: BTreeMap<KeyId, HeldKey>,
}

#[derive(Debug, Clone)]
struct HeldKey {
    key: CommandKey,
    /// Since 1970-01-01 UTC.
    retired_at: Option<Duration>,
}

impl KeyRing {
    /// One key.
    #[must_use]
    pub fn single(id: KeyId, key: CommandKey) -> Self {
        Self::default().with(id, key)
    }

    /// Adds a key, or replaces the one of this id.
    #[must_use]
    pub fn with(mut self, id: KeyId, key: CommandKey) -> Self {
        self.keys.insert(id, HeldKey { key, retired_at: None });
        self
    }

    /// Adds a key that is refused from `retired_at` on, a time since 1970-01-01 UTC; or replaces the one of this id.
    #[must_use]
    pub fn with_until(mut self, id: KeyId, key: CommandKey, retired_at: Duration) -> Self {
        self.keys.insert(id, HeldKey { key, retired_at: Some(retired_at) });
        self
    }

    /// Whether the command was signed with a key of this ring that is in use at `now`. Its bytes are not looked into.
    pub(crate) fn verify(&self, signed: &SignedCommand, now: Duration) -> Result<(), Rejection> {
        let SignedCommand { key_id, bytes, tag } = signed;
        let held = self.keys.get(key_id);
        let key = held.map_or(&DECOY, |held| &held.key);
        // Not to be left out by the compiler where the answer is known already.
        let genuine = black_box(key.verifies(&SignedCommand::signed_message(*key_id, bytes), tag));
        match held {
            None => Err(Rejection::UnknownKey),
            Some(_) if !genuine => Err(Rejection::InvalidSignature),
            Some(held) if held.retired_at.is_some_and(|at| now >= at) => Err(Rejection::RetiredKey { key_id: *key_id }),
            Some(_) => Ok(()),
        }
    }
}

impl From<CommandKey> for KeyRing {
    /// The only key, under id 0.
    fn from(key: CommandKey) -> Self {
        Self::single(KeyId::default(), key)
    }
}

impl FromIterator<(KeyId, CommandKey)> for KeyRing {
    fn from_iter<I: IntoIterator<Item = (KeyId, CommandKey)>>(keys: I) -> Self {
        keys.into_iter().fold(Self::default(), |ring, (id, key)| ring.with(id, key))
    }
}

#[cfg(test)]
mod tests {
    use leyline::command::Operation;
    use leyline::id::{RunId, SeedId};

    use super::*;

    #[test]
    fn the_tag_is_the_standard_one() {
        // RFC 4231, test case 1 has a key of 20 bytes 0x0b; padded with zeros to 32 bytes it is the same HMAC key.
        let mut key = [0; 32];
        key[..20].fill(0x0b);
        let expected = "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7";
        let tag: Vec<u8> = (0..32).map(|i| u8::from_str_radix(&expected[2 * i..2 * i + 2], 16).unwrap()).collect();
        assert!(CommandKey::new(key).verifies(b"Hi There", &tag.try_into().unwrap()));
    }

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

    #[test]
    fn the_tag_is_the_hmac_of_the_key_id_and_the_canonical_bytes() {
        let operation = Operation::Cull { seed: SeedId(3) };
        let command = Command::new(RunId::new("run-1").unwrap(), 1, 2, operation, "r".into());
        let key = CommandKey::new(std::array::from_fn(|i| u8::try_from(i).unwrap()));
        for (key_id, tag) in TAGS {
            let signed = key.sign(KeyId(key_id), &command);
            assert_eq!((signed.key_id, &signed.bytes), (KeyId(key_id), &command.to_bytes()));
            assert_eq!(signed.tag.iter().map(|byte| format!("{byte:02x}")).collect::<String>(), tag);
        }
    }

    #[test]
    fn a_tag_is_of_one_purpose_and_no_tag_of_a_command() {
        let key = CommandKey::new([5; 32]);
        let tag = key.tag("a", b"bc");
        assert!(key.verifies_tag("a", b"bc", &tag));
        for (purpose, bytes) in [("ab", &b"c"[..]), ("a", b"bd"), ("", b"abc")] {
            assert!(!key.verifies_tag(purpose, bytes, &tag), "{purpose}");
        }
        assert!(!CommandKey::new([6; 32]).verifies_tag("a", b"bc", &tag));
        assert_ne!(key.sign_bytes(KeyId(1), b"bc".to_vec()).tag, tag);
    }

    #[test]
    fn a_tag_under_the_stand_in_opens_nothing() {
        let signed = DECOY.sign_bytes(KeyId(9), b"esper.command".to_vec());
        for ring in [KeyRing::default(), CommandKey::new([1; 32]).into()] {
            assert!(matches!(ring.verify(&signed, Duration::ZERO), Err(Rejection::UnknownKey)));
        }
    }

    #[test]
    fn keys_are_never_shown() {
        let ring = KeyRing::from(CommandKey::new([77; 32])).with_until(KeyId(1), CommandKey([78; 32]), Duration::MAX);
        let shown = format!("{ring:?}");
        assert_eq!(shown.matches("CommandKey(..)").count(), 2, "{shown}");
        assert!(!shown.contains("77") && !shown.contains("78"), "{shown}");
    }
}
