//! The key that checkpoints and policies are signed with, from a file or the environment.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use esper_signing::CommandKey;
use tolaria::checkpoint::{Seal, Signing};

use crate::exit::UsageError;

/// Holds the key where no file is named.
const VARIABLE: &str = "ESPER_CHECKPOINT_KEY";
/// Tells signatures of checkpoints from all others under the same key.
const PURPOSE: &str = "esper.checkpoint.manifest";
/// The same of policies that were learned.
const OF_POLICIES: &str = "esper.policy.manifest";
const LONGEST: u64 = 4096;
const EXPECTED: &str = "expected 64 hexadecimal digits, as `openssl rand -hex 32` writes them";

/// Flags of commands that read or write checkpoints.
#[derive(Debug, Clone, Default, Args)]
pub struct SignatureArgs {
    /// File with the key that checkpoints are signed with, 64 hexadecimal digits; without it, the variable
    /// `ESPER_CHECKPOINT_KEY`.
    #[arg(long, value_name = "FILE")]
    pub checkpoint_key: Option<PathBuf>,
    /// Refuse checkpoints that are not signed with that key.
    #[arg(long)]
    pub require_signed: bool,
}

impl SignatureArgs {
    /// What checkpoints are signed and read with; absent without a key.
    ///
    /// # Errors
    /// [`UsageError`] for a file or a variable that holds no key, and where signatures are asked for without one.
    pub fn signing(&self) -> anyhow::Result<Option<Signing>> {
        self.signing_of(PURPOSE)
    }

    /// What policies that were learned are signed and read with; absent without a key.
    ///
    /// # Errors
    /// As [`Self::signing`].
    pub fn of_policies(&self) -> anyhow::Result<Option<Signing>> {
        self.signing_of(OF_POLICIES)
    }

    fn signing_of(&self, purpose: &'static str) -> anyhow::Result<Option<Signing>> {
        let (place, text) = match &self.checkpoint_key {
            Some(path) => {
                let place = format!("--checkpoint-key {}", path.display());
                let refused = |why: String| UsageError(format!("{place}: {why}; {EXPECTED}"));
                let size = std::fs::metadata(path).map_err(|error| refused(error.to_string()))?.len();
                if size > LONGEST {
                    return Err(refused(format!("it has {size} bytes")).into());
                }
                (place.clone(), std::fs::read_to_string(path).map_err(|error| refused(error.to_string()))?)
            }
            // One that is no text is no key: as if there were none, nothing would be signed or looked at.
            None => match std::env::var_os(VARIABLE) {
                Some(text) => (VARIABLE.to_owned(), text.to_string_lossy().into_owned()),
                None if self.require_signed => {
                    let missing =
                        format!("--require-signed: there is no key; expected --checkpoint-key FILE, or {VARIABLE}");
                    return Err(UsageError(missing).into());
                }
                None => return Ok(None),
            },
        };
        // The text is a secret: no message has it.
        let key = key(text.trim()).ok_or_else(|| UsageError(format!("{place} holds no key; {EXPECTED}")))?;
        Ok(Some(Signing {
            seal: Arc::new(Key { key: CommandKey::new(key), purpose }),
            is_required: self.require_signed,
        }))
    }
}

fn key(text: &str) -> Option<[u8; 32]> {
    let is_hex = text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hex.then(|| blake3::Hash::from_hex(text).ok()).flatten().map(Into::into)
}

#[derive(Debug)]
struct Key {
    key: CommandKey,
    purpose: &'static str,
}

impl Seal for Key {
    fn sign(&self, manifest: &[u8]) -> [u8; 32] {
        self.key.tag(self.purpose, manifest)
    }

    fn verifies(&self, manifest: &[u8], signature: &[u8; 32]) -> bool {
        self.key.verifies_tag(self.purpose, manifest, signature)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signing_of(text: &str) -> anyhow::Result<Option<Signing>> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        std::fs::write(&path, text).unwrap();
        SignatureArgs { checkpoint_key: Some(path), require_signed: true }.signing()
    }

    #[test]
    fn a_key_is_64_hexadecimal_digits_and_is_never_shown() {
        let hex = "00ff".repeat(16);
        for text in [hex.clone(), format!("{hex}\n"), hex.to_uppercase()] {
            let signing = signing_of(&text).unwrap().unwrap();
            assert!(signing.is_required && !format!("{signing:?}").contains("ff"));
            assert!(signing.seal.verifies(b"x", &signing.seal.sign(b"x")));
        }
        let (almost, long) = (&hex[1..], "0".repeat(5000));
        for text in ["", "secret", almost, &hex.replace("00", "0x"), &long] {
            let error = signing_of(text).unwrap_err();
            assert!(error.is::<UsageError>() && error.to_string().contains("64 hexadecimal digits"), "{error}");
            assert!(text.is_empty() || !error.to_string().contains(text), "{error}");
        }
    }

    #[test]
    fn another_key_does_not_verify() {
        let [one, other] = ["11", "22"].map(|digits| signing_of(&digits.repeat(32)).unwrap().unwrap().seal);
        assert!(!other.verifies(b"x", &one.sign(b"x")) && !one.verifies(b"y", &one.sign(b"x")));
    }
}
