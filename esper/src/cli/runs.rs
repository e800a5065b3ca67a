//! `esper runs`: what runs came to, and how they compare.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use esper_disk::{StdFs, replace_file};
use serde::Serialize;

use crate::exit::UsageError;
use crate::output;
use crate::report::{Run, printable};
use crate::runs::{Comparison, Row, Settings, earlier, render_page, table};

/// Sub-commands of `esper runs`.
#[derive(Debug, Clone, Subcommand)]
pub(super) enum RunsCommand {
    /// List the runs of a folder: data, policy, seed, loss, measures, seeds kept, parameters of the tested network, and how each
    /// ended.
    List(ListArgs),
    /// Compare runs: a table, paired differences, and a page with their curves over each other. Where a policy keeps validation data back to
    /// confirm gains, the best network was chosen on the rest: on fewer samples than under `off`.
    Compare(CompareArgs),
    /// Count what became of the seeds of runs, as the section `[policy.heuristic.earlier]` of later ones.
    Earlier(EarlierArgs),
}

/// Flags of `esper runs earlier`.
#[derive(Debug, Clone, Args)]
pub(super) struct EarlierArgs {
    /// Folders that `esper train` wrote, of one host and the same data.
    #[arg(required = true, value_name = "RUN_DIR")]
    run_dirs: Vec<PathBuf>,
    /// Print it as one setting, for `--set`.
    #[arg(long)]
    inline: bool,
}

/// Flags of `esper runs list`.
#[derive(Debug, Clone, Args)]
pub(super) struct ListArgs {
    /// Folder with run folders in it, or a run folder.
    #[arg(default_value = "runs")]
    dir: PathBuf,
    /// Print one JSON array.
    #[arg(long)]
    json: bool,
}

/// Flags of `esper runs compare`.
#[derive(Debug, Clone, Args)]
pub(super) struct CompareArgs {
    /// Folders that `esper train` wrote; differences are taken to the last arm.
    #[arg(required = true, num_args = 2.., value_name = "RUN_DIR")]
    run_dirs: Vec<PathBuf>,
    /// The page, which is replaced.
    #[arg(long, value_name = "FILE", default_value = "comparison.html")]
    out: PathBuf,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// What `compare --json` prints.
#[derive(Serialize)]
struct Printed<'a> {
    runs: Vec<&'a Row>,
    arms: &'a [crate::runs::Arm],
    differences: &'a [crate::runs::Difference],
    notes: &'a [String],
    page: String,
}

/// Runs the sub-command.
///
/// # Errors
/// [`UsageError`] for folders that hold no run; when the page cannot be written.
pub(super) fn command(command: &RunsCommand) -> anyhow::Result<ExitCode> {
    match command {
        RunsCommand::List(args) => list(args)?,
        RunsCommand::Compare(args) => compare(args)?,
        RunsCommand::Earlier(args) => told(args)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn list(args: &ListArgs) -> anyhow::Result<()> {
    let rows = rows(&args.dir)?;
    let text = if args.json { serde_json::to_string(&rows)? + "\n" } else { table(&rows) };
    Ok(output::print(&text)?)
}

/// The runs of a folder in the order in which they were started; damaged ones come first.
fn rows(dir: &Path) -> anyhow::Result<Vec<Row>> {
    if let Some(row) = Row::read(dir) {
        return Ok(vec![row]);
    }
    let shown = dir.display();
    let unreadable = |error| UsageError(format!("{shown}: {error}; expected a folder with run folders in it"));
    let mut dirs = Vec::new();
    for entry in fs::read_dir(dir).map_err(unreadable)? {
        dirs.push(entry.map_err(unreadable)?.path());
    }
    let mut rows: Vec<Row> = dirs.iter().filter(|dir| dir.is_dir()).filter_map(|dir| Row::read(dir)).collect();
    if rows.is_empty() {
        return Err(UsageError(format!(
            "{shown} holds no run; expected a folder with folders that `esper train` wrote"
        ))
        .into());
    }
    rows.sort_by(|a, b| (a.started_unix_ms, &a.dir).cmp(&(b.started_unix_ms, &b.dir)));
    Ok(rows)
}

fn compare(args: &CompareArgs) -> anyhow::Result<()> {
    let mut runs = Vec::new();
    for dir in &args.run_dirs {
        let row = Row::read(dir)
            .ok_or_else(|| UsageError(format!("{} holds no run; expected a run folder", dir.display())))?;
        match (Run::read(dir), Settings::read(dir)) {
            (Ok(run), Ok(settings)) => runs.push((run, row, settings)),
            (Err(error), _) | (_, Err(error)) => {
                let told = format!("warning: {} is left out: {:#}", dir.display(), anyhow::Error::new(error));
                output::tell(&(printable(&told) + "\n"));
            }
        }
    }
    if runs.len() < 2 {
        return Err(UsageError("runs compare: expected at least two runs that can be read".to_owned()).into());
    }
    let comparison = Comparison::of(runs);
    let page = render_page(&comparison)?;
    replace_file(&StdFs, &args.out, page.as_bytes()).with_context(|| format!("writing {}", args.out.display()))?;
    let shown = args.out.display().to_string();
    let rows: Vec<&Row> = comparison.runs.iter().map(|one| &one.row).collect();
    let text = if args.json {
        let (arms, differences, notes) = (&comparison.arms, &comparison.differences, &comparison.notes);
        serde_json::to_string(&Printed { runs: rows, arms, differences, notes, page: shown })? + "\n"
    } else {
        let rows: Vec<Row> = rows.into_iter().cloned().collect();
        format!("{}\n{}page: {shown}\n", table(&rows), comparison.render())
    };
    Ok(output::print(&text)?)
}

fn told(args: &EarlierArgs) -> anyhow::Result<()> {
    let read = |dir: &PathBuf| match (Run::read(dir), Settings::read(dir)) {
        (Ok(run), Ok(settings)) => Ok((run, settings)),
        (Err(error), _) | (_, Err(error)) => Err(UsageError(format!("{:#}", anyhow::Error::new(error)))),
    };
    let (tries, left_out) = earlier(&args.run_dirs.iter().map(read).collect::<Result<Vec<_>, _>>()?)?;
    left_out.iter().for_each(|told| output::tell(&format!("{told}\n")));
    let rows = tries.iter().map(toml::Value::try_from).collect::<Result<Vec<_>, _>>()?;
    let text = if args.inline {
        format!("policy.heuristic.earlier.tries={}\n", toml::Value::Array(rows))
    } else {
        let rows: String = rows.iter().map(|row| format!("    {row},\n")).collect();
        let (seeds, runs) = (tries.iter().map(|one| one.tries).sum::<u64>(), args.run_dirs.len() - left_out.len());
        format!("# What became of {seeds} seeds in {runs} runs.\n[policy.heuristic.earlier]\ntries = [\n{rows}]\n")
    };
    Ok(output::print(&text)?)
}
