//! `esper emergency`: the emergency level of a run that is under way, and orders to it.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use esper_disk::StdFs;
use leyline::clock::{Clock as _, SystemClock};
use tolaria::trainer::{Level, Origin, SignalFile};

use crate::exit::UsageError;
use crate::output;
use crate::run::RunFolder;

/// Longest wait for the run to answer an order: it does after the step that is under way.
const ANSWER: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(50);

/// Flags of `esper emergency`.
#[derive(Debug, Clone, Args)]
pub(super) struct EmergencyArgs {
    /// Run folder of a run that is under way.
    run: PathBuf,
    /// Orders a level: 0 or `normal`; 1, `notice`, which only tells of it; 2, `conservative`: nothing grows; 3, `safe`: seeds stand
    /// still as well, and steps run without graphs; 4, `halt`: a checkpoint is written and the run ends with exit code 3. Without
    /// it the level is printed.
    #[arg(long, value_name = "LEVEL")]
    level: Option<Level>,
    /// Why, for the records of the run; at most 100 bytes are kept.
    #[arg(long, value_name = "TEXT", default_value = "ordered by hand", requires = "level")]
    reason: String,
}

/// Runs the sub-command.
///
/// # Errors
/// [`UsageError`] where no run is under way in the folder; when its file cannot be read or written.
pub(super) fn command(args: &EmergencyArgs) -> anyhow::Result<ExitCode> {
    let folder = RunFolder::open(Arc::new(StdFs), &args.run)?;
    let shown = folder.path().display();
    if !folder.is_in_use()? {
        return Err(
            UsageError(format!("{shown}: no process trains there; expected the folder of a run under way")).into()
        );
    }
    let path = folder.emergency();
    let describe = || format!("{}, through which the run is spoken to", path.display());
    let mut file = SignalFile::open(&path).with_context(describe)?;
    let mut told = file.read(Origin::Run).with_context(describe)?;
    if let Some(level) = args.level {
        let before = told.as_ref().map_or(0, |told| told.sequence);
        let clock = SystemClock::new();
        let unix_ms = u64::try_from(clock.unix().as_millis()).unwrap_or(u64::MAX);
        let until = clock.now() + ANSWER;
        // The run writes as well, for microseconds.
        while let Err(error) = file.write(Origin::Operator, level, &args.reason, unix_ms) {
            if error.kind() != std::io::ErrorKind::WouldBlock || clock.now() > until {
                return Err(error).with_context(describe);
            }
            thread::sleep(LOOK);
        }
        while told.as_ref().map_or(0, |told| told.sequence) == before && clock.now() < until {
            thread::sleep(LOOK);
            told = file.read(Origin::Run).with_context(describe)?;
        }
        if told.as_ref().map_or(0, |told| told.sequence) == before {
            output::tell(
                "the level of the run has not changed: it may be the same, or higher by the run's own limits\n",
            );
        }
    }
    let text = match told {
        Some(told) => format!("{} ({}): {}\n", told.level.number(), told.level, told.reason),
        None => "0 (normal): the run has not told yet\n".to_owned(),
    };
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}
