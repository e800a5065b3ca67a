//! Everything that can go wrong between a data file and a tensor.

use std::io;
use std::path::PathBuf;

use leyline::error::ErrorKind;

/// What went wrong, and where.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file could not be opened or read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A compressed file is damaged or cut short.
    #[error("{place}: damaged or cut short while unpacking")]
    Unpack {
        /// The file.
        place: String,
        /// What the decoder said.
        source: io::Error,
    },
    /// Unpacked content is larger than it may be.
    #[error("{place}: larger than {limit_bytes} bytes after unpacking, the most that is accepted")]
    TooLarge {
        /// The file.
        place: String,
        /// The limit in bytes.
        limit_bytes: u64,
    },
    /// The content is not the published content.
    #[error("{place}: the unpacked content has sha256 {found}, expected {expected}; fetch the file again")]
    WrongSum {
        /// The file.
        place: String,
        /// The published sum, hexadecimal.
        expected: String,
        /// The sum of what was read.
        found: String,
    },
    /// A cell or a line of a CSV file is not acceptable.
    #[error("{place}:{line}:{column}: found {found}, expected {expected}")]
    Csv {
        /// The file.
        place: String,
        /// Line, from 1.
        line: usize,
        /// Column of the table (comma-separated cell), from 1.
        column: usize,
        /// What stands there.
        found: String,
        /// What may stand there.
        expected: String,
    },
    /// What a file holds is not what it may hold.
    #[error("{place}: found {found}, expected {expected}")]
    Content {
        /// The file.
        place: String,
        /// What is there.
        found: String,
        /// What may be there.
        expected: String,
    },
    /// A header field or the length of an IDX file is not acceptable.
    #[error("{place}: {field} is {found}, expected {expected}")]
    Idx {
        /// The file.
        place: String,
        /// The header field, or "length".
        field: &'static str,
        /// What stands there.
        found: String,
        /// What may stand there.
        expected: String,
    },
    /// Files of a known data set are not where the configuration says.
    #[error("{set}: no {} in {}; these commands fetch and place the files:\n{commands}", missing.join(", "), folder.display())]
    MissingFiles {
        /// Name of the data set.
        set: &'static str,
        /// The folder that was searched.
        folder: PathBuf,
        /// File names, each accepted with or without `.gz`.
        missing: Vec<String>,
        /// Shell commands, one per line.
        commands: String,
    },
    /// Samples, shape, labels and number of classes do not fit together.
    #[error("table: {field} is {found}, expected {expected}")]
    Table {
        /// What does not fit.
        field: &'static str,
        /// What it is.
        found: String,
        /// What it may be.
        expected: String,
    },
    /// Too few rows for a three-way split.
    #[error("{rows} rows are to be split, expected at least {needed} for parts of at least one row each")]
    TooFewRows {
        /// Rows.
        rows: usize,
        /// Rows that are needed.
        needed: usize,
    },
    /// A class has too few rows for a three-way split.
    #[error(
        "class {class} has {rows} of the rows to be split, expected at least {needed} for parts of at least one row each"
    )]
    ClassTooSmall {
        /// Its name.
        class: String,
        /// Rows of it.
        rows: usize,
        /// Rows it needs.
        needed: usize,
    },
    /// The configuration of a data set contradicts the data set.
    #[error("{key}: {problem}")]
    Config {
        /// Key path in the configuration.
        key: &'static str,
        /// What is wrong, with the accepted values.
        problem: String,
    },
    /// The device refused a tensor.
    #[error("cannot place the samples on the device")]
    Tensor(#[from] candle_core::Error),
}

impl leyline::error::Error for Error {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Read { .. } | Self::MissingFiles { .. } => ErrorKind::Io,
            Self::Unpack { .. }
            | Self::TooLarge { .. }
            | Self::WrongSum { .. }
            | Self::Csv { .. }
            | Self::Idx { .. } => ErrorKind::Corrupt,
            Self::Content { .. }
            | Self::Table { .. }
            | Self::ClassTooSmall { .. }
            | Self::TooFewRows { .. }
            | Self::Config { .. } => ErrorKind::InvalidConfig,
            Self::Tensor(_) => ErrorKind::Device,
        }
    }
}

/// Foreign text as it may appear in a message: short, and without control characters.
pub(super) fn quoted(text: &str) -> String {
    const SHOWN_CHARS: usize = 40;
    let mut shown: String = text.chars().take(SHOWN_CHARS).flat_map(char::escape_debug).collect();
    if text.chars().nth(SHOWN_CHARS).is_some() {
        shown.push('…');
    }
    format!("`{shown}`")
}
