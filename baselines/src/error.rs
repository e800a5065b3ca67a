//! What can go wrong while measuring or comparing.

use std::path::PathBuf;

use esper_graph::Refusal;

use crate::torch::PeerError;

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
    /// A figure of a document cannot be made.
    #[error("{place}: {message}")]
    Figures {
        /// The document and the line.
        place: String,
        /// Why.
        message: String,
    },
    /// No work has this name.
    #[error("no benchmark is named `{name}`: expected one of {known}")]
    UnknownWork {
        /// The name.
        name: String,
        /// The names there are.
        known: String,
    },
    /// A work has no such value of this flag, or not beside the others.
    #[error("{flag} {found}: expected {expected}")]
    Flag {
        /// The flag.
        flag: &'static str,
        /// What it was given.
        found: String,
        /// What is accepted.
        expected: String,
    },
    /// The work measures a GPU, and there is none.
    #[error("this work needs a GPU: {why}")]
    NeedsGpu {
        /// What is missing.
        why: String,
    },
    /// The graph manager refused what a work is made of.
    #[error("{what} was refused")]
    Refused {
        /// What was tried.
        what: String,
        /// The rule.
        #[source]
        source: Refusal,
    },
    /// What was measured computed something else than it should; its times mean nothing.
    #[error("{what} gave {found}, expected {expected}")]
    WrongResult {
        /// What was computed.
        what: String,
        /// The right value.
        expected: f64,
        /// The value.
        found: f64,
    },
    /// The kernels of a step were to be traced, and the trace has none.
    #[error(
        "CUPTI told of no kernel in a compiled step of {case}: expected the {expected} launches that its graph has; let the \
         dynamic linker find the CUPTI of the driver's CUDA version (`LD_LIBRARY_PATH`), run under no other profiler, or \
         leave `--kernels` out"
    )]
    NothingTraced {
        /// Network and variant.
        case: String,
        /// Launches of kernels in the graph.
        expected: usize,
    },
    /// Something that is checked does not hold.
    #[error("promises are broken\n{table}")]
    BrokenPromises {
        /// Every check with what was seen.
        table: String,
    },
    /// A process that the work starts failed.
    #[error("the process of {what} failed: {message}")]
    Process {
        /// What it measures.
        what: String,
        /// The end of what it wrote, or why it did not start.
        message: String,
    },
    /// The peer failed.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// The trainer failed.
    #[error("the work failed")]
    Trainer(#[from] tolaria::Error),
    /// The seed manager could not be built or led.
    #[error("the seed manager failed")]
    Seeds(#[from] kasmina::Error),
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

impl Error {
    /// Whether this machine or build lacks what the work needs, as opposed to a work that went wrong.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        match self {
            Self::NeedsGpu { .. } | Self::Peer(PeerError::PythonMissing { .. }) => true,
            Self::Peer(PeerError::Failed { stderr_tail, .. }) => stderr_tail.contains("No module named"),
            _ => false,
        }
    }

    /// The error with its causes in one line.
    #[must_use]
    pub fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            text += &format!(": {error}");
            cause = error.source();
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(stderr_tail: &str) -> Error {
        Error::Peer(PeerError::Failed { status: "exit status: 1".to_owned(), stderr_tail: stderr_tail.to_owned() })
    }

    #[test]
    fn a_work_that_goes_wrong_is_not_unavailable() {
        for (error, expected) in [
            (Error::NeedsGpu { why: "none".to_owned() }, true),
            (Error::Peer(PeerError::PythonMissing { python: "python3".into() }), true),
            (failed("ModuleNotFoundError: No module named 'torch'"), true),
            (failed("RuntimeError: out of memory"), false),
            (Error::Refused { what: "a graph".to_owned(), source: Refusal::Empty }, false),
        ] {
            assert_eq!(error.is_unavailable(), expected, "{error}");
        }
    }

    #[test]
    fn causes_follow_in_one_line() {
        let error = Error::Refused { what: "a graph".to_owned(), source: Refusal::Empty };
        assert_eq!(error.chain(), "a graph was refused: the region did no work on the device");
    }
}
