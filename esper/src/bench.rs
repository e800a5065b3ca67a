//! `esper bench`: measures, and compares measurements.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use baselines::compare::compare;
use baselines::result::BenchResult;
use baselines::works;
use clap::Subcommand;
use leyline::clock::{Clock, SystemClock};

/// Sub-commands of `esper bench`.
#[derive(Debug, Clone, Subcommand)]
pub enum BenchCommand {
    /// The reference workload: linear 16→4, 16 samples, batch 4.
    Reference(MeasureArgs),
    /// Every work.
    All(MeasureArgs),
    /// Ratios of two results; fails when the second lost a measurement or a metric.
    Compare {
        /// Result before.
        before: PathBuf,
        /// Result after.
        after: PathBuf,
    },
}

/// Flags of a measurement.
#[derive(Debug, Clone, clap::Args)]
pub struct MeasureArgs {
    /// Folder for the result as JSON; printed only when absent.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

impl BenchCommand {
    /// Runs the sub-command.
    ///
    /// # Errors
    /// When a work fails or a file is no result.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Reference(args) => measure(&["reference"], &args),
            Self::All(args) => measure(works::NAMES, &args),
            Self::Compare { before, after } => {
                let comparison = compare(&BenchResult::read(&before)?, &BenchResult::read(&after)?);
                print(&comparison.to_string());
                Ok(if comparison.passed() { ExitCode::SUCCESS } else { ExitCode::from(crate::exit::FAILED) })
            }
        }
    }
}

fn measure(names: &[&str], args: &MeasureArgs) -> anyhow::Result<ExitCode> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    for name in names {
        let result = works::run(name, &clock)?;
        let mut text = format!("{}\n", result.name);
        for (name, m) in &result.measurements {
            let unit = &m.unit;
            text += &format!("  {name:<16} median {:.4} {unit}  p95 {:.4} {unit}  n {}\n", m.median, m.p95, m.n);
        }
        if let Some(dir) = &args.out {
            text += &format!("  written to {}\n", result.write(dir)?.display());
        }
        print(&text);
    }
    Ok(ExitCode::SUCCESS)
}

#[expect(clippy::print_stdout, reason = "results of a command belong on standard output")]
fn print(text: &str) {
    print!("{text}");
}
