//! `esper drill`: runs drills and prints what came of them.

use std::process::ExitCode;

use clap::Args;

use crate::bench::{BUILD, OutArgs, device_name, may_be_written};
use crate::config::DeviceName;
use crate::drill::{ALL, Drill, named};
use crate::exit::{self, UsageError};
use crate::output;

/// Flags of `esper drill`.
#[derive(Debug, Clone, Args)]
pub(super) struct DrillArgs {
    /// The drill; all of them by default. An unknown name lists them.
    name: Option<String>,
    /// `cpu`, or `cuda:N` in a build with the `cuda` feature; some drills need a GPU.
    #[arg(long, value_name = "DEVICE", default_value = "cpu", value_parser = device_name)]
    device: DeviceName,
    #[command(flatten)]
    out: OutArgs,
}

/// Runs it. One drill fails: exit code 1, after all were run.
///
/// # Errors
/// Usage errors, and when a result cannot be written.
pub(super) fn command(args: &DrillArgs) -> anyhow::Result<ExitCode> {
    let chosen: Vec<&Drill> = match &args.name {
        None => ALL.iter().collect(),
        Some(name) => vec![named(name).ok_or_else(|| unknown(name))?],
    };
    let out = args.out.out.as_deref();
    may_be_written(out, BUILD)?;
    let width = ALL.iter().map(|drill| drill.name.len()).max().unwrap_or(0);
    let mut num_failed = 0;
    for drill in chosen {
        let outcome = drill.run(args.device, out)?;
        num_failed += u32::from(outcome.is_failure());
        output::print(&format!("{:<width$}  {outcome}\n", drill.name))?;
    }
    Ok(if num_failed == 0 { ExitCode::SUCCESS } else { ExitCode::from(exit::FAILED) })
}

fn unknown(name: &str) -> UsageError {
    let lines = ALL.iter().map(|drill| format!("\n  {}: {}", drill.name, drill.about));
    UsageError(format!("there is no drill `{name}`; expected one of{}", lines.collect::<String>()))
}
