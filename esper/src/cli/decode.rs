//! `esper telemetry decode`: prints the packets of a frame file.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use esper_telemetry::decode::{DecodeFormat, decode_file};

use crate::output;

/// Flags of `esper telemetry decode`.
#[derive(Debug, Clone, Args)]
pub(super) struct DecodeArgs {
    /// Frame file, for example `RUN_DIR/packets.bin`.
    file: PathBuf,
    /// One JSON object per packet instead of text.
    #[arg(long)]
    json: bool,
}

/// Runs the sub-command.
///
/// # Errors
/// When the file cannot be read, or a frame does not verify; the error names the byte.
pub(super) fn command(args: &DecodeArgs) -> anyhow::Result<ExitCode> {
    let format = if args.json { DecodeFormat::Json } else { DecodeFormat::Text };
    let decoded = output::stdout(|out| decode_file(&args.file, format, out));
    let decoded = decoded.with_context(|| format!("decoding {}", args.file.display()))?;
    if let Some(torn) = decoded.and_then(|decoded| decoded.torn_tail) {
        tracing::warn!("{}: {torn}", args.file.display());
    }
    Ok(ExitCode::SUCCESS)
}
