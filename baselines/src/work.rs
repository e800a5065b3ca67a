//! What a work is, what it is given, and what it leaves behind.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{ArgMatches, Args, Command};
use esper_telemetry::TelemetryRecorder;
use leyline::clock::Clock;
use leyline::region::Eager;
use leyline::telemetry::{EventDesc, MetricDesc};
use tolaria::trainer::Observer;

use crate::error::Error;
use crate::gpu::Gpu;
use crate::result::BenchResult;
use crate::samples::Samples;

/// What a work is given.
#[derive(Debug, Clone)]
pub struct Setting {
    /// Takes the times.
    pub clock: Arc<dyn Clock>,
    /// Number of the GPU; none for the CPU, on which only some works run.
    pub gpu: Option<usize>,
    /// Has a run served; only the command can.
    pub surround: Surround,
    /// What such a run can tell.
    pub descriptors: &'static [Descriptors],
}

/// Metrics and events of one subsystem.
type Descriptors = (&'static [&'static MetricDesc], &'static [&'static EventDesc]);

const SUBSYSTEMS: &[Descriptors] = &[
    (tolaria::telemetry::METRICS, tolaria::telemetry::EVENTS),
    (kasmina::telemetry::METRICS, kasmina::telemetry::EVENTS),
    (tamiyo::telemetry::METRICS, tamiyo::telemetry::EVENTS),
];

/// Serves a run that is told of its steps and epochs by the observer, over a folder that is not there yet, as `esper train --serve` does, until
/// the observer is dropped. Tells where. An error is a sentence.
pub type Surround = fn(&Path, &Arc<TelemetryRecorder>) -> Result<(SocketAddr, Box<dyn Observer>), String>;

impl Setting {
    /// Without a server.
    #[must_use]
    pub fn alone(clock: Arc<dyn Clock>, gpu: Option<usize>) -> Self {
        let surround = |_: &Path, _: &_| Err("only `esper bench` can serve a run".to_owned());
        Self { clock, gpu, surround, descriptors: SUBSYSTEMS }
    }
}

/// What a work needs beside the CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// Nothing.
    Nothing,
    /// A GPU that replays graphs.
    Gpu,
    /// PyTorch, in a process of its own.
    Torch,
}

/// Something that can be measured, as `esper bench` lists and starts it.
#[derive(Debug, Clone, Copy)]
pub struct Work {
    /// Its name on the command line and, but for the works of the CPU, in results.
    pub name: &'static str,
    /// What it measures, in one line without a full stop.
    pub about: &'static str,
    /// What it needs.
    pub needs: Needs,
    start: Start,
}

#[derive(Debug, Clone, Copy)]
enum Start {
    Plain(fn(&Setting) -> Result<Outcome, Error>),
    OnGpu { notes: &'static str, run: fn(&Gpu, &mut Eager, &mut Samples) -> Result<Settings, Error> },
    WithFlags { add: fn(Command) -> Command, run: fn(&ArgMatches, &Setting) -> Result<Outcome, Error> },
}

/// What was measured with which sizes, and what was seen, by name: the `config` of a result.
pub type Settings = BTreeMap<String, String>;

/// Settings from pairs.
pub(crate) fn settings<K: ToString, V: ToString>(pairs: impl IntoIterator<Item = (K, V)>) -> Settings {
    pairs.into_iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
}

/// Flags of a work beside those of every work. A work that runs with all others gets them by default.
pub(crate) trait Flags: Args {
    /// Measures as they say.
    fn measure(&self, setting: &Setting) -> Result<Outcome, Error>;

    /// All by default.
    #[cfg(test)]
    fn by_default() -> Self {
        Self::of(&Self::augment_args(Command::new("")).get_matches_from([""; 0]))
    }

    /// Those of a command line that has them.
    fn of(matches: &ArgMatches) -> Self {
        Self::from_arg_matches(matches).expect("the command has the flags of its work")
    }
}

impl Work {
    /// One function measures and makes the result.
    pub(crate) const fn new(
        name: &'static str,
        about: &'static str,
        needs: Needs,
        run: fn(&Setting) -> Result<Outcome, Error>,
    ) -> Self {
        Self { name, about, needs, start: Start::Plain(run) }
    }

    /// A function measures on a GPU; the result says by `notes` what its numbers mean.
    pub(crate) const fn on_gpu(
        name: &'static str,
        about: &'static str,
        notes: &'static str,
        run: fn(&Gpu, &mut Eager, &mut Samples) -> Result<Settings, Error>,
    ) -> Self {
        Self { name, about, needs: Needs::Gpu, start: Start::OnGpu { notes, run } }
    }

    /// Measures as its flags say.
    pub(crate) const fn with_flags<F: Flags>(name: &'static str, about: &'static str, needs: Needs) -> Self {
        let start = Start::WithFlags { add: F::augment_args, run: |matches, setting| F::of(matches).measure(setting) };
        Self { name, about, needs, start }
    }

    /// The command with the flags of this work beside those that it has, and with its description.
    #[must_use]
    pub fn flags(&self, command: Command) -> Command {
        let command = if let Start::WithFlags { add, .. } = self.start { add(command) } else { command };
        command.about(self.about).long_about(None)
    }

    /// Measures as the flags on the command line say.
    ///
    /// # Errors
    /// [`Error::NeedsGpu`] where there is none, else what the work fails with.
    pub fn run(&self, flags: &ArgMatches, setting: &Setting) -> Result<Outcome, Error> {
        match self.start {
            Start::Plain(run) => run(setting),
            Start::OnGpu { notes, run } => {
                let (gpu, mut samples) = (Gpu::open(setting)?, Samples::default());
                let config = run(&gpu, &mut Eager::acquire()?, &mut samples)?;
                Ok(gpu.result(self.name, notes, config, samples).into())
            }
            Start::WithFlags { run, .. } => run(flags, setting),
        }
    }

    /// Measures with all flags by default. What needs PyTorch needs a GPU here as well, so that it is comparable.
    ///
    /// # Errors
    /// As [`Work::run`].
    pub fn run_as_it_is(&self, setting: &Setting) -> Result<Outcome, Error> {
        if self.needs == Needs::Torch {
            // Closed again at once: the peer has a process of its own.
            drop(Gpu::open(setting)?);
        }
        self.run(&self.flags(Command::new(self.name)).get_matches_from([""; 0]), setting)
    }
}

/// A result with its attachments.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// The numbers.
    pub result: BenchResult,
    /// Files beside it.
    pub attachments: Vec<Attachment>,
}

/// A text file beside a result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    /// Its name within the folder of the result.
    pub file_name: String,
    /// Its text.
    pub text: String,
}

impl Outcome {
    /// Writes the result and its attachments into `dir`.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn write(&self, dir: &Path) -> Result<Vec<PathBuf>, Error> {
        let mut written = vec![self.result.write(dir)?];
        for Attachment { file_name, text } in &self.attachments {
            let path = dir.join(file_name);
            std::fs::write(&path, text).map_err(|source| Error::File {
                action: "writing",
                path: path.clone(),
                source,
            })?;
            written.push(path);
        }
        Ok(written)
    }
}

impl From<BenchResult> for Outcome {
    fn from(result: BenchResult) -> Self {
        Self { result, attachments: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use leyline::clock::SystemClock;

    use super::*;
    use crate::environment::Environment;

    #[test]
    fn attachments_lie_beside_the_result() {
        let result = BenchResult {
            schema: crate::result::SCHEMA,
            name: "drawn".to_owned(),
            command: String::new(),
            notes: String::new(),
            environment: Environment::detect(&SystemClock::new()),
            config: BTreeMap::new(),
            measurements: BTreeMap::new(),
            metrics: Vec::new(),
        };
        let attachments = vec![Attachment { file_name: "drawn.svg".to_owned(), text: "<svg/>".to_owned() }];
        let dir = tempfile::tempdir().unwrap();
        let written = Outcome { result, attachments }.write(&dir.path().join("new")).unwrap();
        let names: Vec<_> = written.iter().map(|path| path.file_name().unwrap()).collect();
        assert_eq!(names, ["drawn.json", "drawn.svg"]);
        assert_eq!(std::fs::read_to_string(&written[1]).unwrap(), "<svg/>");
    }
}
