//! `manifest.json`: what a generation consists of, sealed by a digest over its own body.

use serde::{Deserialize, Serialize};

use super::error::Fault;
use super::name::{check_config_digest, check_portable};
use super::payload::{MAX_STATE_BYTES, MAX_TENSORS_BYTES, Payload, STATE_FILE, TENSORS_FILE, check_size};
use super::snapshot::{Generation, SnapshotMeta};

/// The newest format that this build writes and reads.
pub const FORMAT_VERSION: u64 = 2;
/// The format of a generation that is not pinned.
const UNPINNED_VERSION: u64 = 1;
/// Most bytes of `manifest.json`.
pub const MAX_MANIFEST_BYTES: u64 = 64 << 10;

pub(super) const MANIFEST_FILE: &str = "manifest.json";
const FORMAT: &str = "esper-checkpoint";
/// The files of version 1, in the order of the manifest.
const FILES: &[&str] = &[STATE_FILE, TENSORS_FILE];

// The frame of every version, fixed to the byte: a flipped bit outside the body is a difference, not another spelling.
const HEAD: &[u8] = b"{\"blake3\":\"";
const MIDDLE: &[u8] = b"\",\"manifest\":";
const TAIL: &[u8] = b"}\n";

/// Body of the manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Manifest {
    format: String,
    version: u64,
    generation: Generation,
    pub(super) meta: SnapshotMeta,
    /// As many as [`FILES`], in that order.
    files: Vec<FileEntry>,
    /// Whether the generation stays until a newer pinned one is sound; written, as `true`, in version 2 alone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) pinned: bool,
}

/// Size and digest of one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileEntry {
    pub(super) name: String,
    pub(super) bytes: u64,
    blake3: String,
}

/// Why a manifest cannot be used.
#[derive(Debug)]
pub(super) enum ManifestError {
    Fault(Fault),
    /// Undamaged, of another version.
    Version(u64),
}

impl From<Fault> for ManifestError {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl Manifest {
    /// The manifest of `payload`, stored as `generation`.
    pub(super) fn new(generation: Generation, meta: SnapshotMeta, payload: &Payload, pinned: bool) -> Self {
        let files = vec![FileEntry::of(STATE_FILE, &payload.state), FileEntry::of(TENSORS_FILE, &payload.tensors)];
        let version = if pinned { FORMAT_VERSION } else { UNPINNED_VERSION };
        Self { format: FORMAT.to_owned(), version, generation, meta, files, pinned }
    }

    pub(super) fn state(&self) -> &FileEntry {
        &self.files[0]
    }

    pub(super) fn tensors(&self) -> &FileEntry {
        &self.files[1]
    }

    /// The bytes of `manifest.json`; the checked lengths of its texts keep it far below [`MAX_MANIFEST_BYTES`].
    pub(super) fn to_bytes(&self) -> Result<Vec<u8>, Fault> {
        Ok(seal(&serde_json::to_vec(self).map_err(Fault::Json)?))
    }

    /// Reads `manifest.json` of the directory of `expected`. Order: frame, digest, version, fields, their values.
    pub(super) fn parse(bytes: &[u8], expected: Generation) -> Result<Self, ManifestError> {
        let body = unseal(bytes)?;
        let claim: Claim = serde_json::from_slice(body).map_err(Fault::Json)?;
        if claim.format != FORMAT {
            return Err(Fault::Format { found: claim.format, expected: FORMAT }.into());
        }
        if !(UNPINNED_VERSION..=FORMAT_VERSION).contains(&claim.version) {
            return Err(ManifestError::Version(claim.version));
        }
        let manifest: Self = serde_json::from_slice(body).map_err(Fault::Json)?;
        if manifest.pinned != (manifest.version == FORMAT_VERSION) {
            let message = format!("`pinned` is {} in version {}", manifest.pinned, manifest.version);
            return Err(Fault::Json(serde::de::Error::custom(message)).into());
        }
        for file in &manifest.files {
            check_portable("file name", &file.name).map_err(Fault::from)?;
        }
        if !manifest.files.iter().map(|file| file.name.as_str()).eq(FILES.iter().copied()) {
            let found = manifest.files.into_iter().map(|file| file.name).collect();
            return Err(Fault::Files { found, expected: FILES }.into());
        }
        if manifest.generation != expected {
            return Err(Fault::Generation { found: manifest.generation, expected }.into());
        }
        check_config_digest(&manifest.meta.config_digest).map_err(Fault::from)?;
        check_size(manifest.state().bytes, MAX_STATE_BYTES)?;
        check_size(manifest.tensors().bytes, MAX_TENSORS_BYTES)?;
        Ok(manifest)
    }
}

impl FileEntry {
    fn of(name: &str, content: &[u8]) -> Self {
        Self { name: name.to_owned(), bytes: content.len() as u64, blake3: digest(content) }
    }

    /// Whether `content`, which is not longer than [`bytes`](Self::bytes), is what was written.
    pub(super) fn check(&self, content: &[u8]) -> Result<(), Fault> {
        let actual = content.len() as u64;
        if actual != self.bytes {
            return Err(Fault::TooShort { actual, expected: self.bytes });
        }
        check_digest(content, self.blake3.as_bytes())
    }
}

/// What is looked at before the version is known to be ours; unknown fields belong to other versions.
#[derive(Deserialize)]
struct Claim {
    format: String,
    version: u64,
}

/// Frames `body` with its digest.
pub(super) fn seal(body: &[u8]) -> Vec<u8> {
    [HEAD, digest(body).as_bytes(), MIDDLE, body, TAIL].concat()
}

fn unseal(bytes: &[u8]) -> Result<&[u8], Fault> {
    let framed = bytes.strip_prefix(HEAD).and_then(|rest| rest.strip_suffix(TAIL));
    let (expected, rest) = framed.and_then(|framed| framed.split_at_checked(64)).ok_or(Fault::Envelope)?;
    let body = rest.strip_prefix(MIDDLE).ok_or(Fault::Envelope)?;
    check_digest(body, expected)?;
    Ok(body)
}

fn digest(content: &[u8]) -> String {
    blake3::hash(content).to_hex().as_str().to_owned()
}

/// Compared as text, so that other spellings of the same number are damage too.
fn check_digest(content: &[u8], expected: &[u8]) -> Result<(), Fault> {
    let actual = digest(content);
    if actual.as_bytes() == expected {
        return Ok(());
    }
    Err(Fault::Digest { actual, expected: String::from_utf8_lossy(expected).chars().take(64).collect() })
}
