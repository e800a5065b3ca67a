//! Checks that are shared among processes on one device.
//!
//! ```text
//!   work --jobs 3 ─┬► work --part 0/3 ─┐
//!                  ├► work --part 1/3 ─┼► their results ─► checks that need the device alone ─► one result
//!                  └► work --part 2/3 ─┘
//! ```

use std::process::{Child, Command, Stdio};
use std::str::FromStr;

use super::cache::CacheFolders;
use super::open::Gpu;
use crate::error::Error;
use crate::result::BenchResult;

/// Every `of`-th check from the one with the number `index` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    index: u32,
    of: u32,
}

impl FromStr for Part {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.split_once('/').and_then(|(index, of)| Some((index.parse().ok()?, of.parse().ok()?)));
        match parsed {
            Some((index, of)) if index < of => Ok(Self { index, of }),
            _ => Err("expected INDEX/COUNT with INDEX below COUNT, like 0/4".to_owned()),
        }
    }
}

/// Whose turn it is. The names are how those of checks begin that need the device alone.
#[derive(Debug, Default)]
pub(crate) enum Turn {
    #[default]
    All,
    Alone(&'static [&'static str]),
    Shared(Part, &'static [&'static str]),
}

impl Turn {
    /// Whether the next check, of this name, is run.
    pub(super) fn takes(&mut self, name: &str) -> bool {
        let is_of = |names: &[&str]| names.iter().any(|beginning| name.starts_with(beginning));
        match self {
            Self::All => true,
            Self::Alone(names) => is_of(names),
            Self::Shared(_, names) if is_of(names) => false,
            Self::Shared(part, _) => {
                let mine = part.index == 0;
                part.index = if mine { part.of - 1 } else { part.index - 1 };
                mine
            }
        }
    }
}

/// Runs the checks of a work that need not be alone in so many processes of this program, and waits for them all. What they
/// write to standard error is this program's.
///
/// # Errors
/// [`Error::Process`] when one fails, after the others have ended.
pub(super) fn run(work: &str, only: &str, jobs: u32, gpu: &Gpu) -> Result<Vec<BenchResult>, Error> {
    let folders = CacheFolders::new(gpu.clock.unix().as_nanos())?;
    let failed = |part: u32, message: String| Error::Process { what: format!("{work} --part {part}/{jobs}"), message };
    let started = (0..jobs).map(|part| {
        let out = folders.of(&part.to_string())?;
        let mut command = Command::new(std::env::current_exe().map_err(|error| failed(part, error.to_string()))?);
        command.args(["bench", work, "--only", only, "--part", &format!("{part}/{jobs}")]);
        command.args(["--device", &format!("cuda:{}", gpu.ordinal), "--out"]).arg(&out);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        Ok((part, out, child.map_err(|error| failed(part, error.to_string()))?))
    });
    let started: Vec<Result<_, Error>> = started.collect();
    let ended = started.into_iter().map(|started| {
        let (part, out, mut child): (_, _, Child) = started?;
        let status = child.wait().map_err(|error| failed(part, error.to_string()))?;
        if !status.success() {
            return Err(failed(part, status.to_string()));
        }
        let name = if only.is_empty() { format!("{work}.json") } else { format!("{work}.{only}.json") };
        BenchResult::read(&out.join(name))
    });
    // All are waited for before the first failure is told.
    let ended: Vec<_> = ended.collect();
    ended.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 7] = ["a.1", "memory.1", "a.2", "b", "memory.2", "c", "d"];

    fn taken(mut turn: Turn) -> Vec<&'static str> {
        NAMES.into_iter().filter(|name| turn.takes(name)).collect()
    }

    #[test]
    fn every_check_is_run_once_by_the_parts_and_alone_together() {
        let alone: &[&str] = &["memory."];
        let part = |text: &str| Turn::Shared(text.parse().unwrap(), alone);
        assert_eq!(taken(part("0/3")), ["a.1", "c"]);
        assert_eq!(taken(part("1/3")), ["a.2", "d"]);
        assert_eq!(taken(part("2/3")), ["b"]);
        assert_eq!(taken(Turn::Alone(alone)), ["memory.1", "memory.2"]);
        assert_eq!(taken(Turn::All), NAMES);
    }

    #[test]
    fn a_part_that_is_none_is_refused() {
        for text in ["", "1", "3/3", "-1/3", "a/b"] {
            assert!(text.parse::<Part>().unwrap_err().contains("like 0/4"), "{text}");
        }
    }
}
