//! What can go wrong with a checkpoint, and where.

use std::io;
use std::path::PathBuf;

use candle_core::DType;
use leyline::error::ErrorKind;

use super::manifest::FORMAT_VERSION;
use super::name::NameError;
use super::snapshot::Generation;

/// Error of the checkpoint store.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// Another store, perhaps of another process, writes to the directory.
    #[error("checkpoint directory `{}` is in use by another writer", dir.display())]
    Locked {
        /// The directory.
        dir: PathBuf,
    },
    /// The file system failed.
    #[error("cannot {action} `{}`", path.display())]
    Io {
        /// What was attempted.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// A stored generation is damaged or incomplete.
    #[error("generation {generation} is damaged: `{}`", path.display())]
    Damaged {
        /// The generation.
        generation: Generation,
        /// The file or directory in which the damage was found.
        path: PathBuf,
        /// What was found and what was expected.
        #[source]
        fault: Fault,
    },
    /// An undamaged generation was written in a format that this build does not read.
    #[error(
        "generation {generation} in `{}` has format version {found}, but this build reads versions 1 to {FORMAT_VERSION}; \
         resume with the build that wrote it",
        path.display()
    )]
    UnsupportedVersion {
        /// The generation.
        generation: Generation,
        /// Its manifest.
        path: PathBuf,
        /// The version in the manifest.
        found: u64,
    },
    /// An undamaged generation is not signed as it should be; it may be somebody else's.
    #[error(
        "generation {generation} is not to be trusted: its signature `{}` cannot be accepted: {found}; expected the key that the run was \
         written with, or a folder that nobody else has written to",
        path.display()
    )]
    Untrusted {
        /// The generation.
        generation: Generation,
        /// Its signature.
        path: PathBuf,
        /// What is wrong with it.
        found: &'static str,
    },
    /// The directory has no such generation.
    #[error(
        "no generation {generation} in `{}`; the newest is {}",
        dir.display(),
        newest.map_or_else(|| "absent".to_owned(), |newest| newest.to_string())
    )]
    NoSuchGeneration {
        /// The directory.
        dir: PathBuf,
        /// What was asked for.
        generation: Generation,
        /// The newest generation there is.
        newest: Option<Generation>,
    },
    /// There are generations and none can be loaded; starting afresh would hide that.
    #[error("none of the {} generations in `{}` can be loaded", skipped.len(), dir.display())]
    NothingLoadable {
        /// The directory.
        dir: PathBuf,
        /// Every generation, newest first, with its reason.
        skipped: Vec<(Generation, CheckpointError)>,
    },
    /// A name in the snapshot cannot be stored.
    #[error(transparent)]
    InvalidName(#[from] NameError),
    /// The snapshot holds a tensor of a type that cannot be stored.
    #[error("tensor `{tensor}` has type {dtype:?}; expected u8, u32, i16, i32, i64, bf16, f16, f32 or f64")]
    UnsupportedDType {
        /// `component/tensor`.
        tensor: String,
        /// Its type.
        dtype: DType,
    },
    /// A tensor cannot be copied to the host.
    #[error("cannot copy tensor `{tensor}` to the host")]
    Device {
        /// `component/tensor`.
        tensor: String,
        /// Why.
        #[source]
        source: Box<candle_core::Error>,
    },
    /// The snapshot cannot be written down in the format.
    #[error("the snapshot does not fit `{file}`")]
    Unwritable {
        /// The file it was meant for.
        file: &'static str,
        /// What does not fit.
        #[source]
        fault: Fault,
    },
    /// The number of the newest generation is the largest there can be.
    #[error("`{}` has generation {newest}, after which there is no number", dir.display())]
    NumbersExhausted {
        /// The directory.
        dir: PathBuf,
        /// The newest generation.
        newest: Generation,
    },
    /// The new generation is stored and durable, but older ones could not be removed.
    #[error("generation {committed} is stored, but older ones could not be removed")]
    Retention {
        /// The new generation.
        committed: Generation,
        /// What failed.
        #[source]
        source: Box<CheckpointError>,
    },
}

impl CheckpointError {
    /// The generation that was durably stored although this error was returned.
    #[must_use]
    pub fn committed(&self) -> Option<Generation> {
        if let Self::Retention { committed, .. } = self { Some(*committed) } else { None }
    }

    /// Whether what is stored is damaged, so that it will never be read.
    pub(crate) fn is_damage(&self) -> bool {
        match self {
            Self::Damaged { .. } => true,
            Self::NothingLoadable { skipped, .. } => skipped.iter().all(|(_, reason)| reason.is_damage()),
            _ => false,
        }
    }

    pub(super) fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { action, path, source }
    }
}

impl leyline::error::Error for CheckpointError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Locked { .. }
            | Self::NoSuchGeneration { .. }
            | Self::Untrusted { .. }
            | Self::InvalidName(_)
            | Self::Unwritable { .. }
            | Self::NumbersExhausted { .. } => ErrorKind::Rejected,
            Self::Io { .. } => ErrorKind::Io,
            Self::Damaged { .. } | Self::UnsupportedVersion { .. } | Self::NothingLoadable { .. } => ErrorKind::Corrupt,
            Self::UnsupportedDType { .. } => ErrorKind::Unsupported,
            Self::Device { .. } => ErrorKind::Device,
            Self::Retention { source, .. } => source.kind(),
        }
    }
}

/// How bytes differ from what they should be.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The file or directory is not there.
    #[error("it is missing")]
    Missing,
    /// Something else has its name, a link for example.
    #[error("it is not {expected}")]
    WrongKind {
        /// What it should be.
        expected: &'static str,
    },
    /// It is larger than the format allows.
    #[error("it has {bytes} bytes; the limit is {limit}")]
    TooLarge {
        /// Its size, or the size it claims.
        bytes: u64,
        /// The limit of the format.
        limit: u64,
    },
    /// It has more bytes than expected; it was not read to the end.
    #[error("it has more than the expected {expected} bytes")]
    TooLong {
        /// Size in the manifest, or the limit of the manifest itself.
        expected: u64,
    },
    /// It has fewer bytes than expected.
    #[error("it has {actual} bytes, expected {expected}")]
    TooShort {
        /// Its size.
        actual: u64,
        /// Size in the manifest.
        expected: u64,
    },
    /// Its content has changed.
    #[error("its BLAKE3 digest is {actual}, expected {expected}")]
    Digest {
        /// Digest of what was read.
        actual: String,
        /// Digest in the manifest.
        expected: String,
    },
    /// The manifest is not framed as every version frames it.
    #[error("it is not of the form {{\"blake3\":\"<64 hex digits>\",\"manifest\":<body>}}")]
    Envelope,
    /// The manifest belongs to something else.
    #[error("its format is {found:?}, expected {expected:?}")]
    Format {
        /// What it claims.
        found: String,
        /// What it should be.
        expected: &'static str,
    },
    /// The directory was renamed or copied.
    #[error("it says generation {found}, but its directory says {expected}")]
    Generation {
        /// Number in the manifest.
        found: Generation,
        /// Number in the directory's name.
        expected: Generation,
    },
    /// The manifest lists other files than the format has.
    #[error("it lists the files {found:?}, expected {expected:?}")]
    Files {
        /// What it lists.
        found: Vec<String>,
        /// The files of the format.
        expected: &'static [&'static str],
    },
    /// A name is not allowed.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A tensor has no owner.
    #[error("tensor {tensor:?} belongs to no component of state.json")]
    Orphan {
        /// Name in the tensor file.
        tensor: String,
    },
    /// A tensor has a type that version 1 does not have.
    #[error("tensor {tensor:?} has type {dtype}; expected U8, U32, I16, I32, I64, BF16, F16, F32 or F64")]
    DType {
        /// Name in the tensor file.
        tensor: String,
        /// Its type, as safetensors names it.
        dtype: String,
    },
    /// Not the JSON that was expected.
    #[error("it is not valid JSON of its kind")]
    Json(#[source] serde_json::Error),
    /// Not a safetensors file.
    #[error("it is not a valid safetensors file")]
    Safetensors(#[source] safetensors::SafeTensorError),
    /// A tensor cannot be built from its bytes.
    #[error("tensor {tensor:?} cannot be built")]
    Tensor {
        /// Name in the tensor file.
        tensor: String,
        /// Why.
        #[source]
        source: Box<candle_core::Error>,
    },
}
