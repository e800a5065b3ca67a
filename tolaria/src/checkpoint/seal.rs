//! Who wrote a generation: a signature of its manifest, with a key that this crate does not know.

use std::fmt;
use std::sync::Arc;

/// Name of the file beside the manifest that holds its signature.
pub(super) const SIGNATURE_FILE: &str = "manifest.hmac";
/// 64 digits and a line break.
pub(super) const SIGNATURE_BYTES: u64 = 65;

/// Signs the bytes of manifests, and tells whether a signature is right. A manifest has digests of all other files of its
/// generation, and names its run.
pub trait Seal: fmt::Debug + Send + Sync {
    /// The signature of these bytes.
    fn sign(&self, manifest: &[u8]) -> [u8; 32];

    /// Whether it is theirs; takes as long for a wrong one.
    fn verifies(&self, manifest: &[u8], signature: &[u8; 32]) -> bool;
}

/// What a store signs with, and whether it reads what is not signed.
#[derive(Debug, Clone)]
pub struct Signing {
    /// Holds the key.
    pub seal: Arc<dyn Seal>,
    /// Whether a generation without a signature is refused. A wrong signature always is.
    pub is_required: bool,
}

impl Signing {
    /// The content of the signature file of a manifest.
    #[must_use]
    pub fn to_bytes(&self, manifest: &[u8]) -> Vec<u8> {
        (blake3::Hash::from_bytes(self.seal.sign(manifest)).to_hex().to_string() + "\n").into_bytes()
    }

    /// What is wrong with the signature file of a manifest; absent where nothing is.
    #[must_use]
    pub fn fault(&self, manifest: &[u8], signature: Option<&[u8]>) -> Option<&'static str> {
        let Some(signature) = signature else { return self.is_required.then_some("it is missing") };
        let digits = signature.strip_suffix(b"\n").and_then(|digits| std::str::from_utf8(digits).ok());
        // 64 digits stand for 32 bytes, whatever they mean.
        let Some(tag) = digits.and_then(|digits| blake3::Hash::from_hex(digits).ok()) else {
            return Some("it is not 64 hexadecimal digits and a line break");
        };
        (!self.seal.verifies(manifest, tag.as_bytes())).then_some("it is of another key, or of another manifest")
    }
}
