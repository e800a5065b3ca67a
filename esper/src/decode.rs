//! `esper telemetry decode`: prints the packets of a frame file.

use std::io::{self, Write as _};
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
    let decoded =
        decode_file(&args.file, format, &mut out).with_context(|| format!("decoding {}", args.file.display()));
    // A closed pipe is the reader's choice, as with `| head`.
    out.flush().ok();
    decoded.map(|_| ExitCode::SUCCESS)
}
