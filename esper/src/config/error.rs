//! Configuration mistakes, each with its place.

use std::fmt;
use std::io;
use std::path::PathBuf;

use leyline::error::ErrorKind;

/// Why a configuration cannot be used.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("cannot read the configuration {}; expected a TOML file", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file is far larger than a configuration.
    #[error("{}: larger than {limit_bytes} bytes, expected a configuration", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The limit in bytes.
        limit_bytes: u64,
    },
    /// A setting on the command line is not of the form `key.path=value`.
    #[error("--set {text}: expected KEY=VALUE with a dotted key, for example `run.epochs=20`")]
    Flag {
        /// What was given.
        text: String,
    },
    /// The text is not TOML, or its content is not accepted.
    #[error("{}", lines(.0))]
    Invalid(Vec<Diagnostic>),
    /// The merged configuration has no form in TOML.
    #[error("the merged configuration cannot be written as TOML")]
    Unwritable(#[source] toml::ser::Error),
}

impl leyline::error::Error for ConfigError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Read { .. } => ErrorKind::Io,
            Self::TooLarge { .. } | Self::Flag { .. } | Self::Invalid(_) | Self::Unwritable(_) => {
                ErrorKind::InvalidConfig
            }
        }
    }
}

fn lines(diagnostics: &[Diagnostic]) -> String {
    diagnostics.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// One mistake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// Where it stands.
    pub place: Place,
    /// Dotted path of the key; empty when the text could not be parsed.
    pub key: String,
    /// What is wrong with it, and what was expected.
    pub problem: String,
    /// Accepted keys or values, where they can be listed.
    pub accepted: Vec<String>,
    /// The accepted name nearest to what was found.
    pub nearest: Option<String>,
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.place)?;
        if !self.key.is_empty() {
            write!(f, "`{}` ", self.key)?;
        }
        f.write_str(&self.problem)?;
        if !self.accepted.is_empty() {
            write!(f, "; accepted: {}", self.accepted.join(", "))?;
        }
        if let Some(nearest) = &self.nearest {
            write!(f, "; did you mean `{nearest}`?")?;
        }
        Ok(())
    }
}

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// A layer of defaults.
    Default {
        /// Name of the layer.
        layer: String,
    },
    /// A file; line and column count characters from 1.
    File {
        /// The file as it was named.
        path: String,
        /// Line.
        line: usize,
        /// Column.
        column: usize,
    },
    /// A flag of the command line, as it was given.
    Flag(String),
}

impl Place {
    /// `default`, `file` or `flag`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Default { .. } => "default",
            Self::File { .. } => "file",
            Self::Flag(_) => "flag",
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default { layer } => write!(f, "defaults ({layer})"),
            Self::File { path, line, column } => write!(f, "{path}:{line}:{column}"),
            Self::Flag(text) => f.write_str(text),
        }
    }
}
