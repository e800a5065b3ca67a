//! `esper report`: prints the summary of a run and writes its page again.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use esper_disk::StdFs;

use crate::{output, report};

/// Flags of `esper report`.
#[derive(Debug, Clone, Args)]
pub(super) struct ReportArgs {
    /// Folder that `esper train` wrote.
    run_dir: PathBuf,
}

/// Runs the sub-command.
///
/// # Errors
/// When the folder holds no run, or a file of it cannot be read; the error names file and line. When the page cannot be
/// written; the summary has been printed then.
pub(super) fn command(args: &ReportArgs) -> anyhow::Result<ExitCode> {
    let reading = || format!("reading the run in {}", args.run_dir.display());
    let run = report::Run::read(&args.run_dir).with_context(reading)?;
    output::print(&report::render_text(&run))?;
    output::print(&format!("report: {}\n", report::write(&StdFs, &args.run_dir)?.display()))?;
    Ok(ExitCode::SUCCESS)
}
