//! Why there is no report.

use std::io;
use std::path::PathBuf;

use leyline::error::ErrorKind;

/// Why a run folder could not be reported on.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The folder is not one of a run.
    #[error("{} is not a run folder: {file} is missing; expected a folder that `esper train` wrote", dir.display())]
    NotARun {
        /// The folder.
        dir: PathBuf,
        /// The file that every run has.
        file: &'static str,
    },
    /// A file is there and cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file holds something else than it should.
    #[error("{}:{line}:{column}: {problem}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// Byte in the line, from 1; 0 when the whole line is meant.
        column: usize,
        /// What is wrong, with control characters removed: it may quote the file.
        problem: String,
    },
    /// The page could not be put together.
    #[error("cannot lay out the page")]
    Layout(#[source] askama::Error),
    /// The page could not be written; an earlier one is still there.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl leyline::error::Error for ReportError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::NotARun { .. } | Self::Read { .. } | Self::Write { .. } => ErrorKind::Io,
            Self::Malformed { .. } => ErrorKind::Corrupt,
            Self::Layout(_) => ErrorKind::Other,
        }
    }
}
