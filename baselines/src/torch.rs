//! PyTorch, started by scripts that are part of this binary and print a report.

mod quantities;

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::work::{Settings, settings};

pub(crate) use quantities::Quantities;

/// Characters of the script's messages that an error repeats.
const TAIL_CHARS: usize = 2_000;

/// The script and its output.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// There is no such interpreter.
    #[error("no python interpreter was found as `{}`", python.display())]
    PythonMissing {
        /// What was looked for.
        python: PathBuf,
    },
    /// The interpreter could not be run.
    #[error("running `{}`", python.display())]
    Start {
        /// The interpreter.
        python: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The script ended with an error, for example because PyTorch is not installed.
    #[error("the pytorch peer failed ({status}): {}", if stderr_tail.is_empty() { "no message" } else { stderr_tail })]
    Failed {
        /// Exit code or signal.
        status: String,
        /// The end of what it wrote to standard error.
        stderr_tail: String,
    },
    /// The script printed something else than its report.
    #[error("the pytorch peer printed no report but `{start}`")]
    BadReport {
        /// The start of what it printed.
        start: String,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
}

/// Where the peer ran; unknown facts are absent.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PeerEnvironment {
    /// Version of PyTorch.
    pub(crate) torch: String,
    /// Version of CUDA that PyTorch was built with.
    pub(crate) cuda: Option<String>,
    /// Version of JAX, where it was asked for.
    #[serde(default)]
    pub(crate) jax: Option<String>,
    /// Name of the device.
    pub(crate) gpu: Option<String>,
    /// Version of the driver.
    pub(crate) driver: Option<String>,
    /// Whether `AdamW` was one fused kernel.
    #[serde(default)]
    pub(crate) fused: bool,
    /// Whether query, key and value were one product.
    #[serde(default)]
    pub(crate) joint_qkv: bool,
}

impl PeerEnvironment {
    /// Versions and device by name.
    pub(crate) fn facts(&self) -> Settings {
        fn known(fact: Option<&String>) -> &str {
            fact.map_or("unknown", String::as_str)
        }
        let Self { torch, cuda, jax, gpu, driver, .. } = self;
        let jax = jax.as_ref().map(|jax| ("jax".to_owned(), jax.clone()));
        settings([
            ("torch", torch.as_str()),
            ("cuda", known(cuda.as_ref())),
            ("gpu", known(gpu.as_ref())),
            ("driver", known(driver.as_ref())),
        ])
        .into_iter()
        .chain(jax)
        .collect()
    }
}

/// The report that a script prints, as the type that the caller expects.
pub(crate) fn run_script<R: DeserializeOwned>(
    script: &str,
    python: &Path,
    arguments: &[String],
) -> Result<R, PeerError> {
    let output =
        Command::new(python).args(["-c", script]).args(arguments).stdin(Stdio::null()).output().map_err(|source| {
            match source.kind() {
                io::ErrorKind::NotFound => PeerError::PythonMissing { python: python.to_owned() },
                _ => PeerError::Start { python: python.to_owned(), source },
            }
        })?;
    if !output.status.success() {
        let stderr_tail = tail(&String::from_utf8_lossy(&output.stderr));
        return Err(PeerError::Failed { status: output.status.to_string(), stderr_tail });
    }
    parse(&String::from_utf8_lossy(&output.stdout))
}

pub(crate) fn parse<R: DeserializeOwned>(text: &str) -> Result<R, PeerError> {
    serde_json::from_str(text)
        .map_err(|source| PeerError::BadReport { start: text.trim().chars().take(200).collect(), source })
}

/// The end says what went wrong; the start of a long trace-back does not.
pub(crate) fn tail(text: &str) -> String {
    let text = text.trim();
    let skipped = text.chars().count().saturating_sub(TAIL_CHARS);
    text.chars().skip(skipped).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A shell stands in for the interpreter: both take a script after `-c`.
    fn in_shell(script: &str) -> Result<Value, PeerError> {
        run_script(script, Path::new("sh"), &["--n=1".to_owned()])
    }

    #[test]
    fn the_output_of_the_process_is_the_report() {
        assert_eq!(in_shell("echo noise >&2; echo '{\"a\": 1}'").unwrap(), json!({"a": 1}));
    }

    #[test]
    fn a_failed_script_shows_the_end_of_its_messages() {
        let error = in_shell("printf '%03000d' 0 >&2; echo 'no CUDA device' >&2; exit 3").unwrap_err();
        let PeerError::Failed { status, stderr_tail } = &error else { panic!("{error}") };
        assert!(status.contains('3'), "{status}");
        assert_eq!(stderr_tail.len(), TAIL_CHARS);
        assert!(error.to_string().ends_with("no CUDA device"), "{error}");
        assert!(in_shell("exit 4").unwrap_err().to_string().ends_with("no message"));
        assert!(matches!(in_shell("echo {").unwrap_err(), PeerError::BadReport { .. }));
    }
}
