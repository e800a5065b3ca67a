//! What each knob costs where a step takes next to no time: the reference workload with one knob on, over the same with all off.
//!
//! Each round measures all off, then one knob, knob after knob, so that a machine that slows down slows both. `off` beside itself says
//! how far a ratio moves by chance. Displays are a matter of the command: they are measured as whole processes.

use std::num::{NonZeroU64, NonZeroUsize};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use candle_core::{Device, Tensor};
use esper_telemetry::sink::MemorySink;
use esper_telemetry::{Catalogue, QueueConfig, TelemetryRecorder};
use leyline::clock::Clock;
use leyline::error::BoxError;
use leyline::region::Eager;
use tolaria::batch::source::{ArrayFile, ArrayLayout, ArraySource, Element, ReadAs};
use tolaria::batch::transform::AugmentConfig;
use tolaria::batch::{Dataset, LoaderConfig, SamplerConfig, WeighedBy};
use tolaria::checkpoint::{CheckpointStore, StdFs};
use tolaria::plain::{NoPolicy, NoSeeds};
use tolaria::task::Classification;
use tolaria::trainer::report::EpochReport;
use tolaria::trainer::{
    Checkpoints, EarlyStopConfig, Flow, NullObserver, Observer, Parts, Splits, StepReport, TrainConfig, Trainer,
};

use crate::error::Error;
use crate::samples::{Samples, ms, us};
use crate::torch::tail;
use crate::trainer::{all_of, count, linear, plain_sgd};
use crate::work::{Needs, Outcome, Setting, Work, settings};

pub(super) const WORK: Work =
    Work::new("knobs", "What each knob costs on a tiny workload: one on, over all off", Needs::Nothing, run);

const LEN: usize = 16;
const STEPS: u64 = 4;
const ROUNDS: usize = 15;
/// Epochs of a measurement, and of one that writes to the disk.
const EPOCHS: [u64; 2] = [1500, 60];
/// Part of the epochs that is not measured: one of so many.
const WARM_UP: usize = 6;
/// Whole processes, per display.
const PROCESSES: usize = 7;
const NOTES: &str = "linear 16-4, 16 samples, batch 4, SGD, evaluated on the same 16 samples at the end of every epoch, no telemetry. KNOB.step: a \
    quarter of an epoch, its evaluation included, with all but KNOB off (median of the epochs of a round); KNOB.over_off: that over the one with all off \
    just before; n counts rounds. off.over_off: all off beside all off. eval_every_step: 3 evaluations in an epoch beside the one at its end. checkpoint_*: \
    durable, with every fsync, and waited for (`checkpoint.in_background = false`); every_step is 4 in an epoch. observer: told of every step, and asks for loss and norm so far. process.DISPLAY: `esper train --policy \
    off --epochs 40` on digits, from its start to its end, process.DISPLAY.over_off: over `--progress off` just before; tui within `script`, a \
    terminal of its own, over `--progress off` within it";

/// What is on.
struct Knob {
    name: &'static str,
    config: TrainConfig,
    data: Dataset,
    checkpoints: Option<fn(Checkpoints) -> Checkpoints>,
    is_observed: bool,
    is_recorded: bool,
}

fn run(setting: &Setting) -> Result<Outcome, Error> {
    let clock = &setting.clock;
    let dir = tempfile::tempdir().map_err(failed)?;
    let (memory, knobs) = knobs(dir.path())?;
    let mut samples = Samples::default();
    for _ in 0..ROUNDS {
        for knob in &knobs {
            let off = knobs[0].step(&memory, knob.num_epochs(), clock)?;
            let on = knob.step(&memory, knob.num_epochs(), clock)?;
            samples.push(format!("{}.step", knob.name), "us", on);
            samples.push(format!("{}.over_off", knob.name), "ratio", on / off);
        }
    }
    processes(dir.path(), clock, &mut samples)?;
    let config = settings([("rounds", ROUNDS.to_string()), ("epochs", format!("{EPOCHS:?}"))]);
    Ok(samples.into_result(WORK.name, WORK.name, NOTES, config, clock.as_ref()).into())
}

/// The samples, and what is measured of them, with all off first.
fn knobs(dir: &Path) -> Result<(Dataset, Vec<Knob>), Error> {
    let inputs: Vec<f32> = (0..LEN * 16).map(|i| ((i * 7 + 3) % 11) as f32 / 11.0 - 0.5).collect();
    let classes: Vec<u32> = (0..4).cycle().take(LEN).collect();
    let files = files(dir, &inputs, &classes)?;
    let inputs = Tensor::from_vec(inputs, (LEN, 16), &Device::Cpu)?;
    let memory = Dataset::new(inputs, Tensor::from_vec(classes, LEN, &Device::Cpu)?)?;
    let lengths = memory.clone().with_lengths((0..16).collect())?;
    let off = || Knob {
        name: "off",
        config: plain_sgd(4),
        data: memory.clone(),
        checkpoints: None,
        is_observed: false,
        is_recorded: false,
    };
    let with = |name, change: &dyn Fn(&mut TrainConfig)| {
        let mut knob = Knob { name, ..off() };
        change(&mut knob.config);
        knob
    };
    let loader = |name, workers, prefetch| {
        with(name, &|config| {
            config.loader = LoaderConfig { workers, prefetch: count(prefetch) };
        })
    };
    let augment = |name, augment: AugmentConfig| with(name, &|config| config.augment = augment.clone());
    let picture = Some([1, 4, 4]);
    let weighted = SamplerConfig::Weighted { by: WeighedBy::Class, class_weights: None };
    let kept = |name, change| Knob { name, checkpoints: Some(change), ..off() };
    let knobs = vec![
        off(),
        loader("workers_1", 1, 2),
        loader("workers_4", 4, 2),
        loader("workers_1_prefetch_8", 1, 8),
        augment("crop", AugmentConfig { crop: 1, picture, ..Default::default() }),
        augment("flip", AugmentConfig { flip: 0.5, picture, ..Default::default() }),
        augment("noise", AugmentConfig { noise: 0.1, ..Default::default() }),
        with("sampler_weighted", &|config| config.sampler = weighted.clone()),
        Knob {
            data: lengths,
            ..with("sampler_bucketed", &|config| config.sampler = SamplerConfig::Bucketed { pool: count(2) })
        },
        Knob { name: "data_in_files", data: files, ..off() },
        with("measures", &|config| config.measures = vec!["macro_f1".to_owned()]),
        with("eval_every_step", &|config| config.eval_every_steps = Some(NonZeroU64::MIN)),
        with("early_stop", &|config| config.early_stop = Some(EarlyStopConfig::new(NonZeroU64::MAX))),
        with("measure_conflicts", &|config| config.measure_conflicts = true),
        Knob { name: "observer", is_observed: true, ..off() },
        Knob { name: "telemetry", is_recorded: true, ..off() },
        kept("checkpoint_every_epoch", |of| of),
        kept("checkpoint_keep_best", |of| Checkpoints { keep_best: true, ..of }),
        kept("checkpoint_every_step", |of| Checkpoints { every_steps: Some(NonZeroU64::MIN), ..of }),
    ];
    Ok((memory, knobs))
}

impl Knob {
    fn num_epochs(&self) -> u64 {
        EPOCHS[usize::from(self.checkpoints.is_some())]
    }

    /// The time of a step, in µs: the median over epochs of their time per step.
    fn step(&self, held_out: &Dataset, num_epochs: u64, clock: &Arc<dyn Clock>) -> Result<f64, Error> {
        let dir = tempfile::tempdir().map_err(failed)?;
        let task = Arc::new(Classification::new(4));
        let data = Splits { train: self.data.clone(), ..all_of(held_out.clone()) };
        let mut parts =
            Parts { num_epochs, clock: Arc::clone(clock), ..Parts::new(task, NoSeeds::new(linear()?), NoPolicy, data) };
        if let Some(change) = self.checkpoints {
            let store = CheckpointStore::open(dir.path(), NonZeroUsize::MIN, Arc::new(StdFs));
            let checkpoints = Checkpoints::new(store.map_err(tolaria::Error::from)?);
            parts.checkpoints = Some(change(Checkpoints { keep_best: false, in_background: false, ..checkpoints }));
        }
        let mut guard = None;
        if self.is_recorded {
            let groups = [(tolaria::telemetry::METRICS, tolaria::telemetry::EVENTS)];
            let (catalogue, sink) = (Catalogue::new(&groups)?, Box::new(MemorySink::new()));
            let (run_id, clock) = (parts.run_id.clone(), Arc::clone(clock));
            let (recorder, handle) =
                TelemetryRecorder::start(run_id, catalogue, vec![sink], QueueConfig::default(), clock)?;
            (parts.recorder, guard) = (recorder, Some(handle));
        }
        let now = clock.now();
        let mut watch = Watch { clock: Arc::clone(clock), started: now, asks: self.is_observed, epochs: Vec::new() };
        Trainer::new(self.config.clone(), parts)?.run(&mut Eager::acquire()?, &mut watch)?;
        drop(guard);
        let mut measured = Samples::default();
        let skipped = watch.epochs.len() / WARM_UP;
        Ok(measured.extend("step", "us", watch.epochs.split_off(skipped)))
    }
}

/// Takes the time at the end of each epoch.
struct Watch {
    clock: Arc<dyn Clock>,
    started: Duration,
    asks: bool,
    epochs: Vec<f64>,
}

impl Observer for Watch {
    fn step(&mut self, step: &StepReport<'_>) -> Flow {
        if self.asks {
            std::hint::black_box(step.so_far());
        }
        NullObserver.step(step)
    }

    fn epoch_finished(&mut self, _report: &EpochReport) -> Result<(), BoxError> {
        let now = self.clock.now();
        self.epochs.push(us(now - self.started) / STEPS as f64);
        self.started = now;
        Ok(())
    }
}

/// These samples in two files.
fn files(dir: &Path, inputs: &[f32], classes: &[u32]) -> Result<Dataset, Error> {
    let open = |name: &str, bytes: Vec<u8>, element, dims: Vec<usize>, read_as| -> Result<ArrayFile, Error> {
        std::fs::write(dir.join(name), bytes).map_err(failed)?;
        Ok(ArrayFile::open(&dir.join(name), ArrayLayout { element, offset: 0, dims, read_as })
            .map_err(tolaria::Error::from)?)
    };
    let bytes = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let inputs = open("inputs", bytes(inputs), Element::F32, vec![16], ReadAs::F32 { scale: 1.0 })?;
    let classes = classes.iter().flat_map(|class| class.to_le_bytes()).collect();
    let targets = open("targets", classes, Element::U32, vec![], ReadAs::U32)?;
    Ok(Dataset::from_source(Arc::new(ArraySource::new(inputs, targets).map_err(tolaria::Error::from)?))?)
}

/// Displays, by the command itself.
fn processes(dir: &Path, clock: &Arc<dyn Clock>, samples: &mut Samples) -> Result<(), Error> {
    let has_terminals = Command::new("script").arg("--version").output().is_ok_and(|output| output.status.success());
    let displays = [("off", "off", false), ("plain", "plain", false), ("tui_off", "off", true), ("tui", "", true)];
    for turn in 0..=PROCESSES {
        let mut off = f64::NAN;
        for (name, progress, is_on_terminal) in displays.into_iter().filter(|display| !display.2 || has_terminals) {
            let out = dir.join(format!("{name}-{turn}"));
            let display = if progress.is_empty() { vec!["--tui"] } else { vec!["--progress", progress] };
            let started = clock.now();
            train(&out, &display, is_on_terminal)?;
            let took = ms(clock.now() - started);
            off = if progress == "off" { took } else { off };
            if turn > 0 {
                samples.push(format!("process.{name}"), "ms", took);
                samples.push(format!("process.{name}.over_off"), "ratio", took / off);
            }
        }
    }
    Ok(())
}

fn train(out: &Path, display: &[&str], is_on_terminal: bool) -> Result<(), Error> {
    let program = std::env::current_exe().map_err(failed)?;
    let (program, out) = (program.display().to_string(), out.display().to_string());
    let args = [&["train", "--policy", "off", "--epochs", "40", "--out", &out], display].concat();
    let mut command = if is_on_terminal {
        let mut command = Command::new("script");
        // A size: what has none shows nothing.
        command.args(["-qec", &format!("stty cols 80 rows 24; '{program}' {}", args.join(" ")), "/dev/null"]);
        command
    } else {
        let mut command = Command::new(program);
        command.args(args);
        command
    };
    let message = match command.stdin(Stdio::null()).output() {
        Ok(output) if output.status.success() => return Ok(()),
        Ok(output) => format!("{}: {}", output.status, tail(&String::from_utf8_lossy(&output.stderr))),
        Err(error) => error.to_string(),
    };
    Err(Error::Process { what: "esper train".to_owned(), message })
}

fn failed(source: std::io::Error) -> Error {
    Error::File { action: "writing samples to", path: std::env::temp_dir(), source }
}
