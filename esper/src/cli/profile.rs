//! `esper profile`: trains, and says where the time of an epoch went.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use esper_disk::{StdFs, replace_file};

use crate::{output, phases, run};

/// Flags of `esper profile`.
#[derive(Debug, Clone, Args)]
pub(super) struct ProfileArgs {
    /// Where the trace is written: one JSON file for `chrome://tracing` or <https://ui.perfetto.dev>.
    #[arg(long, value_name = "FILE", default_value = "trace.json")]
    trace: PathBuf,
    #[command(flatten)]
    train: run::TrainArgs,
}

/// Runs the sub-command.
///
/// # Errors
/// As `esper train`, after what there is was told; when the trace cannot be written.
pub(super) fn command(args: &ProfileArgs) -> anyhow::Result<ExitCode> {
    let ended = run::train(&args.train);
    let recorded = phases::recorded();
    output::tell(&recorded.table());
    let written = replace_file(&StdFs, &args.trace, recorded.chrome_trace().as_bytes());
    let ended = ended?;
    written.with_context(|| format!("writing {}", args.trace.display()))?;
    output::tell(&format!("trace: {}\n", args.trace.display()));
    Ok(ended)
}
