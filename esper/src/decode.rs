//! `esper telemetry decode`: prints the packets of a frame file.

use std::io;
use std::process::ExitCode;

use anyhow::Context as _;
use esper_telemetry::decode::{DecodeFormat, decode_file};

use crate::cli::DecodeArgs;

/// Runs the sub-command.
///
/// # Errors
/// When the file cannot be read, or a frame does not verify; the error names the byte.
pub fn command(args: &DecodeArgs) -> anyhow::Result<ExitCode> {
    let format = if args.json { DecodeFormat::Json } else { DecodeFormat::Text };
    let mut out = io::stdout().lock();
    match decode_file(&args.file, format, &mut out) {
        Ok(decoded) => {
            if let Some(torn) = decoded.torn_tail {
                tracing::warn!("{}: {torn}", args.file.display());
            }
            Ok(ExitCode::SUCCESS)
        }
        // A closed pipe is the reader's choice, as with `| head`.
        Err(error) if is_closed_pipe(&error) => Ok(ExitCode::SUCCESS),
        Err(error) => Err(error).with_context(|| format!("decoding {}", args.file.display())),
    }
}

fn is_closed_pipe(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut causes = std::iter::successors(Some(error), |cause| cause.source());
    causes.any(|cause| cause.downcast_ref().is_some_and(|io: &io::Error| io.kind() == io::ErrorKind::BrokenPipe))
}
