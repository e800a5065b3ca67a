//! `esper drill`: what can go wrong is made to go wrong, in a small run of the real trainer, and what it does is checked; and a run in
//! which nothing does, for its telemetry.
//!
//! Each drill has a temporary folder, a recorder and a trainer of its own. It passes when the run did what
//! `docs/drills.md` says and its telemetry has the names that alerts are built on.

mod world;
mod faults;
mod normal;
mod each;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use baselines::measure::Measurement;
use baselines::result::BenchResult;
use leyline::clock::SystemClock;

pub(crate) use each::ALL;
use world::Seen;

use crate::bench::{BUILD, may_be_written};
use crate::config::DeviceName;
use crate::wire::device;

const NOTES: &str = "drill.passed is 1: the run did what the drill expects; a drill that fails writes no result. metrics: names of the telemetry that the run left, \
    of events with `event ` before them";

/// Something that goes wrong, or nothing, and what must come of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Drill {
    /// Its name on the command line.
    pub(crate) name: &'static str,
    /// What goes wrong, in one line without a full stop.
    pub(crate) about: &'static str,
    /// Metrics that must have moved, and events that must have come.
    names: Names,
    /// Whether only a GPU can do it.
    needs_gpu: bool,
    run: fn(&candle_core::Device) -> Result<Seen, Failed>,
}

#[derive(Debug, Clone, Copy)]
struct Names {
    /// Above 0 at the end.
    metrics: &'static [&'static str],
    events: &'static [&'static str],
}

/// Why a drill failed.
#[derive(Debug)]
struct Failed(String);

impl<E: Into<anyhow::Error>> From<E> for Failed {
    fn from(error: E) -> Self {
        Self(format!("{:#}", error.into()))
    }
}

/// Fails the drill unless `holds`.
fn expect(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), Failed> {
    if holds { Ok(()) } else { Err(Failed(otherwise())) }
}

/// What came of a drill.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The run did what it should.
    Passed(String),
    /// It did not.
    Failed(String),
    /// There is no GPU here, and only one can do it.
    NeedsGpu(String),
}

impl Outcome {
    /// Whether the drill was run and failed.
    #[must_use]
    pub(crate) fn is_failure(&self) -> bool {
        matches!(self, Self::Failed(_))
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, why) = match self {
            Self::Passed(seen) => ("passed", seen),
            Self::Failed(why) => ("FAILED", why),
            Self::NeedsGpu(why) => ("needs a GPU", why),
        };
        write!(f, "{what:<11}  {why}")
    }
}

/// The drill of this name.
#[must_use]
pub(crate) fn named(name: &str) -> Option<&'static Drill> {
    ALL.iter().find(|drill| drill.name == name)
}

impl Drill {
    /// Runs it on a device, and writes its telemetry as `drill-NAME.json` when it passed and there is a folder for it.
    ///
    /// # Errors
    /// When the result cannot be written, or may not be: among those that are committed, of code that is not.
    pub(crate) fn run(&self, on: DeviceName, out: Option<&Path>) -> anyhow::Result<Outcome> {
        may_be_written(out, BUILD)?;
        if self.needs_gpu && on == DeviceName::Cpu {
            return Ok(Outcome::NeedsGpu("only graphs of a GPU can do that".to_owned()));
        }
        let found = device(on).map_err(Failed);
        let seen = match found.and_then(|device| (self.run)(&device)).and_then(|seen| self.look_at(seen)) {
            Ok(seen) => seen,
            Err(Failed(why)) => return Ok(Outcome::Failed(why)),
        };
        if let Some(dir) = out {
            self.result(&seen).write(dir)?;
        }
        Ok(Outcome::Passed(seen.told))
    }

    /// Compares the telemetry with what it must have.
    fn look_at(&self, seen: Seen) -> Result<Seen, Failed> {
        for name in self.names.metrics {
            expect(seen.metric(name) > 0.0, || format!("the metric {name} is {}", seen.metric(name)))?;
        }
        for name in self.names.events {
            expect(seen.events.contains(*name), || format!("no event {name}; there were {:?}", seen.events))?;
        }
        Ok(seen)
    }

    fn result(&self, seen: &Seen) -> BenchResult {
        let clock: Arc<SystemClock> = Arc::new(SystemClock::new());
        let name = format!("drill-{}", self.name);
        let plain = BenchResult::new(&name, NOTES, &*clock);
        let passed = Measurement::of("kept", vec![1.0]).expect("there is a value");
        let events = seen.events.iter().map(|name| format!("event {name}"));
        BenchResult {
            command: format!("cargo run --release -p esper -- drill {} --out DIR", self.name),
            environment: plain.environment.clone().built_from(BUILD),
            config: [("drill".to_owned(), self.about.to_owned())].into(),
            measurements: [("check.drill".to_owned(), passed)].into(),
            metrics: seen.metrics.keys().cloned().chain(events).collect(),
            ..plain
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drill_whose_telemetry_lacks_a_name_fails() {
        let seen = || Seen {
            metrics: [("there".to_owned(), 1.0), ("still".to_owned(), 0.0)].into(),
            events: ["came".to_owned()].into(),
            told: String::new(),
        };
        let names = |metrics, events| Drill { names: Names { metrics, events }, ..ALL[0] };
        assert!(names(&["there"], &["came"]).look_at(seen()).is_ok());
        for drill in [names(&["there", "still"], &[]), names(&["gone"], &[]), names(&["there"], &["lost"])] {
            assert!(drill.look_at(seen()).is_err());
        }
    }

    #[test]
    fn drills_have_names_of_their_own_and_all_assert_telemetry() {
        for drill in ALL {
            assert_eq!(ALL.iter().filter(|other| other.name == drill.name).count(), 1, "{}", drill.name);
            assert_eq!(named(drill.name).unwrap().name, drill.name);
            assert!(!drill.names.metrics.is_empty() || !drill.names.events.is_empty(), "{}", drill.name);
        }
        assert!(named("all").is_none());
    }
}
