//! What a work is, what it is given, and what it leaves behind.

use std::any::TypeId;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command};
use esper_telemetry::TelemetryRecorder;
use leyline::clock::Clock;
use leyline::region::Eager;
use leyline::telemetry::{EventDesc, MetricDesc};
use tolaria::trainer::Observer;

use crate::candle_in_place;
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
        let mut outcome = match self.start {
            Start::Plain(run) => run(setting)?,
            Start::OnGpu { notes, run } => {
                let (gpu, mut samples) = (Gpu::open(setting)?, Samples::default());
                let config = run(&gpu, &mut Eager::acquire()?, &mut samples)?;
                gpu.result(self.name, notes, config, samples).into()
            }
            Start::WithFlags { add, run } => {
                let mut outcome: Outcome = run(flags, setting)?;
                outcome.result.command += &as_given(&add(Command::new(self.name)), flags);
                outcome
            }
        };
        outcome.result = candle_in_place::named(outcome.result);
        Ok(outcome)
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

/// The flags of a work on a command line, those included that were left to their defaults: a later version may have others. Of a path its
/// last part, as nobody else has the folder.
fn as_given(work: &Command, flags: &ArgMatches) -> String {
    let words = |arg: &Arg| -> Vec<String> {
        let (id, long) = (arg.get_id().as_str(), arg.get_long().map(|long| format!("--{long}")));
        if matches!(arg.get_action(), ArgAction::SetTrue) {
            return long.filter(|_| flags.get_flag(id)).into_iter().collect();
        }
        let is_path = arg.get_value_parser().type_id() == TypeId::of::<PathBuf>();
        let text = |value: &OsStr| {
            let last = Path::new(value).file_name().filter(|_| is_path);
            last.unwrap_or(value).to_string_lossy().into_owned()
        };
        let values: Vec<String> = flags.get_raw(id).into_iter().flatten().map(text).collect();
        let value = Some(values.join(",")).filter(|value| !value.is_empty());
        long.zip(value).into_iter().flat_map(<[String; 2]>::from).collect()
    };
    let args: Vec<&Arg> = work.get_arguments().filter(|arg| !arg.is_hide_set()).collect();
    let is_default = |arg: &Arg| flags.value_source(arg.get_id().as_str()) == Some(ValueSource::DefaultValue);
    let given: Vec<String> = args.iter().filter(|arg| !is_default(arg)).flat_map(|arg| words(arg)).collect();
    // A flag that belongs to another one is refused without it.
    let is_taken = |more: &[String]| {
        let parser = work.clone().no_binary_name(true);
        parser.try_get_matches_from(given.iter().chain(more)).is_ok()
    };
    let words = args
        .iter()
        .map(|arg| (is_default(arg), words(arg)))
        .filter(|(is_default, words)| !is_default || is_taken(words));
    words.flat_map(|(_, words)| words).map(|word| format!(" {word}")).collect()
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
    use crate::works;

    #[derive(Debug, Args)]
    struct Tiny {
        #[arg(long, default_value_t = 3)]
        rounds: u32,
        #[arg(long, hide = true, default_value_t = 1)]
        of_a_part: u32,
    }

    impl Flags for Tiny {
        fn measure(&self, setting: &Setting) -> Result<Outcome, Error> {
            assert_eq!((self.rounds, self.of_a_part), (3, 1));
            Ok(BenchResult::new("tiny", "", setting.clock.as_ref()).into())
        }
    }

    #[test]
    fn the_command_of_a_result_has_the_flags_that_were_left_to_their_defaults() {
        let setting = Setting::alone(Arc::new(SystemClock::new()), None);
        let work = Work::with_flags::<Tiny>("tiny", "Nothing", Needs::Nothing);
        let result = work.run_as_it_is(&setting).unwrap().result;
        assert_eq!(result.command, "cargo run --release -p esper -- bench tiny --out DIR --rounds 3");
    }

    #[test]
    fn a_command_has_the_flags_that_were_given_and_the_defaults_that_it_takes_beside_them() {
        let work = works::named("growth-at-scale").unwrap();
        let line = |work: &Work, given: &[&str]| {
            let command = work.flags(Command::new(work.name)).no_binary_name(true);
            as_given(&command, &command.clone().try_get_matches_from(given).unwrap())
        };
        assert_eq!(
            line(work, &["--text", "/home/of/somebody/book.txt", "--steps", "2400", "--arms", "stack.p85,null"]),
            " --text book.txt --blocks 12 --width 512 --context 256 --batch 32 --steps 2400 --every 75 --held-out 512 --arms \
             stack.p85,null --rise 100 --first-seed 0 --seeds 3 --budget 460"
        );
        let work = works::named("compile-bench").unwrap();
        let alone = line(work, &["--works", "ref,mlp", "--kernels"]);
        assert_eq!(alone, " --works ref,mlp --precisions f32,tf32,bf16 --kernels");
        let beside = line(work, &["--works", "ref", "--with-peer"]);
        assert!(beside.ends_with(" --with-peer --python python3 --peer-modes graph --peer-budget 145"), "{beside}");
    }

    #[test]
    fn every_work_takes_the_flags_of_its_result() {
        for work in works::ALL {
            let command = work.flags(Command::new(work.name)).no_binary_name(true);
            let first = as_given(&command, &command.clone().try_get_matches_from([""; 0]).unwrap());
            let again = command.clone().try_get_matches_from(first.split_whitespace()).unwrap();
            assert_eq!(as_given(&command, &again), first, "{}", work.name);
        }
    }

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
