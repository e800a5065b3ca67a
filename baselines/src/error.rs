//! What can go wrong while measuring or comparing.

use std::path::PathBuf;

/// Errors of this crate.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file could not be read or written.
    #[error("{action} {}", path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: std::io::Error,
    },
    /// A file is no result of this harness.
    #[error("{} is not a benchmark result", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// No work has this name.
    #[error("no benchmark is named `{name}`: expected one of {known}")]
    UnknownWork {
        /// The name.
        name: String,
        /// The names there are.
        known: String,
    },
    /// The trainer failed.
    #[error("the work failed")]
    Trainer(#[from] tolaria::Error),
    /// The policy could not be built.
    #[error("the policy failed")]
    Policy(#[from] tamiyo::Error),
    /// The telemetry could not be built.
    #[error("the telemetry failed")]
    Telemetry(#[from] esper_telemetry::Error),
    /// The tensor library failed.
    #[error("the tensor library failed")]
    Tensor(#[from] candle_core::Error),
    /// The work ran outside its region rules.
    #[error(transparent)]
    Region(#[from] leyline::region::RegionError),
}
