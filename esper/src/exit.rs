//! Exit codes, and how an error reaches the user.
//!
//! | code | meaning |
//! |---|---|
//! | 0 | done |
//! | 1 | the run failed or diverged |
//! | 2 | bad usage or configuration |
//! | 3 | halted by an emergency, after writing a checkpoint where the state can be saved |
//! | 130 | interrupted by Ctrl-C, SIGTERM or SIGHUP, after writing a checkpoint, or what a study has done; or by a second one, at once |

use std::process::ExitCode;

use baselines::Error as BenchError;
use esper_export::Error as ExportError;

use crate::config::ConfigError;
use crate::data::Error as DataError;
use crate::output;
use crate::report::ReportError;

/// The run failed.
pub const FAILED: u8 = 1;
/// Bad usage or configuration.
pub const USAGE: u8 = 2;
/// Halted by an emergency, after writing a checkpoint.
pub const HALTED: u8 = 3;
/// Interrupted by a signal, after writing a checkpoint.
pub const INTERRUPTED: u8 = 130;

/// Marks an error as the user's to mend: a flag, a key, a file they named.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

/// Prints an error with its causes, and gives its exit code.
pub fn report(error: &anyhow::Error) -> ExitCode {
    output::tell(&format!("error: {error:#}\n"));
    let usage = error.chain().any(|cause| {
        cause.is::<UsageError>()
            || cause.is::<ConfigError>()
            || matches!(cause.downcast_ref(), Some(ReportError::NotARun { .. }))
            || matches!(cause.downcast_ref(), Some(BenchError::Flag { .. }))
            || cause.downcast_ref().is_some_and(|error| !matches!(error, DataError::Tensor(_)))
            || cause
                .downcast_ref()
                .is_some_and(|error| !matches!(error, ExportError::Write { .. } | ExportError::Tensor(_)))
    });
    ExitCode::from(if usage { USAGE } else { FAILED })
}

/// Prints what is wrong with the command line, or the help that was asked for.
pub fn usage(error: &clap::Error) -> ExitCode {
    // The only failure is a closed terminal, and then there is nobody to tell.
    error.print().ok();
    if error.use_stderr() { ExitCode::from(USAGE) } else { ExitCode::SUCCESS }
}
