//! What can go wrong with an exported network.

use std::io;
use std::path::PathBuf;

use esper_weights::WeightsError;
use leyline::error::{Error as LeylineError, ErrorKind};

/// Error of every function of this crate.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A folder holds no exported network.
    #[error("{} is no exported network: it has no {file}; expected a folder that `esper export` wrote", dir.display())]
    NotAnExport {
        /// The folder.
        dir: PathBuf,
        /// What is missing.
        file: &'static str,
    },
    /// A file could not be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A file or folder could not be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A file has another size than it may have.
    #[error("{} has {found} bytes: expected {expected}", path.display())]
    Size {
        /// The file.
        path: PathBuf,
        /// Its size (bytes).
        found: u64,
        /// What is accepted.
        expected: String,
    },
    /// A description was written by a version with another format.
    #[error("{}: `format` is {found}: expected {expected}, the format of this version", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u64,
        /// The one that is read.
        expected: u32,
    },
    /// A description is not one.
    #[error("{}:{line}:{column}: {problem}", path.display())]
    Document {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// What is wrong, with what is accepted.
        problem: String,
    },
    /// A field of a description contradicts the others.
    #[error("{}: `{field}` is {found}: expected {expected}", path.display())]
    Field {
        /// The file.
        path: PathBuf,
        /// The field.
        field: String,
        /// What it is.
        found: String,
        /// What is accepted.
        expected: String,
    },
    /// A description is of a network that cannot be built.
    #[error("{}: `network` cannot be built", path.display())]
    Network {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: Box<kasmina::Error>,
    },
    /// Weights are not those that the description speaks of.
    #[error("{} has the BLAKE3 digest {found}: expected {expected}, as model.json says; one of the files was changed", path.display())]
    Digest {
        /// The file.
        path: PathBuf,
        /// What the description says, hexadecimal.
        expected: String,
        /// That of the bytes, hexadecimal.
        found: String,
    },
    /// Weights do not fit the network.
    #[error("{} does not fit the network of model.json", path.display())]
    Weights {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: WeightsError,
    },
    /// A network that ONNX is not written of.
    #[error("`{field}` is {found}: expected {expected} for ONNX")]
    Onnx {
        /// The field of the description.
        field: String,
        /// What it is.
        found: String,
        /// What is accepted.
        expected: String,
    },
    /// A network answers with what is no finite number, as to inputs that are larger than all it has learned from.
    #[error("the network gives {found} for sample {sample}: expected finite numbers")]
    Outputs {
        /// The sample, from 1.
        sample: usize,
        /// The first such output.
        found: f32,
    },
    /// A sequence cannot go on.
    #[error("`{field}` is {found}: expected {expected}")]
    Sampling {
        /// The setting, or what was computed.
        field: &'static str,
        /// What it is.
        found: String,
        /// What is accepted.
        expected: &'static str,
    },
    /// There is something where an export was to be written.
    #[error("{} {found}; expected {expected}", dir.display())]
    Occupied {
        /// The folder.
        dir: PathBuf,
        /// What is there.
        found: String,
        /// What is accepted.
        expected: &'static str,
    },
    /// The network refused its inputs, or failed.
    #[error(transparent)]
    Forward(#[from] kasmina::Error),
    /// The tensor library or the device failed.
    #[error("a tensor operation failed")]
    Tensor(#[from] candle_core::Error),
}

impl LeylineError for Error {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::NotAnExport { .. } | Self::Read { .. } | Self::Write { .. } | Self::Occupied { .. } => ErrorKind::Io,
            Self::Format { .. } | Self::Onnx { .. } => ErrorKind::Unsupported,
            Self::Outputs { .. } | Self::Sampling { .. } => ErrorKind::Rejected,
            Self::Size { .. }
            | Self::Document { .. }
            | Self::Field { .. }
            | Self::Network { .. }
            | Self::Digest { .. }
            | Self::Weights { .. } => ErrorKind::Corrupt,
            Self::Forward(error) => error.kind(),
            Self::Tensor(_) => ErrorKind::Device,
        }
    }
}
