//! `esper report`: writes the page of a run again and prints its summary.

use std::process::ExitCode;

use anyhow::Context as _;

use crate::cli::ReportArgs;
use crate::{output, report};

/// Runs the sub-command.
///
/// # Errors
/// When the folder holds no run, or a file of it cannot be read; the error names file and line.
pub fn report(args: &ReportArgs) -> anyhow::Result<ExitCode> {
    let page =
        report::write(&args.run_dir).with_context(|| format!("reading the run in {}", args.run_dir.display()))?;
    let run = report::Run::read(&args.run_dir)?;
    output::print(&format!("{}report: {}\n", report::render_text(&run), page.display()))?;
    Ok(ExitCode::SUCCESS)
}
