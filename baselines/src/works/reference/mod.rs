//! The reference workload: linear 16→4, 16 samples, batch 4, cross-entropy, 4 optimizer steps an epoch.
//!
//! The real trainer runs it with the real recorder, a packet per epoch. Two times are taken per epoch: `epoch_steps`,
//! the four optimizer steps with shuffling, gathering and their telemetry, and `epoch_whole`, which adds the evaluation
//! on held-out data, the decision of the policy, the report and the packet. Steps against candle's own are in `steps.rs`.
//! On a GPU the device is waited for after the four steps, and both times are taken of each way in which steps reach it.

mod peer;
mod steps;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use candle_core::{Device, Tensor, Var};
use esper_layers::{LinearOptions, WeightOrder};
use leyline::clock::Clock;
use leyline::error::BoxError;
use leyline::id::{RunId, StepIndex};
use leyline::model::HostNumbers;
use leyline::region::Eager;
use leyline::telemetry::Recorder;
use tolaria::aggregate::ConflictResolution;
use tolaria::batch::Dataset;
use tolaria::optim::OptimizerConfig;
use tolaria::plain::{NoSeeds, PlainModel};
use tolaria::task::Classification;
use tolaria::trainer::report::EpochReport;
use tolaria::trainer::{ExecutionConfig, Flow, Observer, Parts, Splits, StepMode, TrainConfig, Trainer};

use crate::error::Error;
use crate::gpu::Gpu;
use crate::gpu::growing::in_mode;
use crate::result::BenchResult;
use crate::samples::{Samples, ms};
use crate::trainer::{constant, count, train_config};
use crate::work::{Flags, Needs, Outcome, Setting, Settings, Work, settings};

const NOTES: &str = "epoch_steps: 4 optimizer steps of the real trainer with shuffling, gathering and telemetry; \
    epoch_whole: with evaluation on 16 samples, policy, report and packet; step: one optimizer step. \
    WORK.candle_step: a step of candle's operations, loss and SGD; WORK.composed_step: of the trainer with a network \
    of candle's operations; WORK.step: of the trainer with one of esper_layers; parameters are compared first. torch.mlp.*: the same perceptron in PyTorch, eager and \
    by torch.compile, with a fused optimizer; ratio.mlp: mlp.step over the faster, medians";
const NOTES_OF_GPU: &str = "MODE.epoch_steps: 4 optimizer steps of the real trainer with shuffling, copies of their samples and telemetry, from the start of the epoch until the device is done; \
    MODE.epoch_whole: with evaluation on 16 samples, policy, report and packet. Samples are on the host; resident: on the device, with compiled steps; unpromised: the same, but the model does not promise that no number on the host moves, so that what was captured is tested twice an epoch. Before a time is taken the trainer has run \
    500 epochs, with a pause after each for the compiler";
const NUM_EPOCHS: u64 = 5_000;
const WARM_UP_EPOCHS: u64 = 500;
const EPOCHS: u64 = WARM_UP_EPOCHS + NUM_EPOCHS;
const STEPS_PER_EPOCH: u64 = 4;
/// After an epoch before any time is taken, on a GPU.
const PAUSE: Duration = Duration::from_millis(4);
/// As many steps have to be replays, percent of those that are measured, with those of the warm-up among them: a few are tests of what was captured.
const REPLAYED: u64 = 95;
/// Ways of a GPU: whether samples are on the device, and whether the model promises that no number on the host moves. Without the
/// promise what was captured is tested twice an epoch, however few steps that has.
const WAYS: [(&str, StepMode, bool, HostNumbers); 5] = [
    ("eager", StepMode::Eager, false, HostNumbers::Fixed),
    ("graph", StepMode::Graph, false, HostNumbers::Fixed),
    ("compiled", StepMode::Compiled, false, HostNumbers::Fixed),
    ("resident", StepMode::Compiled, true, HostNumbers::Fixed),
    ("unpromised", StepMode::Compiled, true, HostNumbers::MayMove),
];

pub(super) const WORK: Work = Work::with_flags::<ReferenceConfig>(
    "reference",
    "The reference workload on the CPU or a GPU: linear 16→4, 16 samples, batch 4",
    Needs::Nothing,
);

#[derive(Debug, Clone, clap::Args)]
struct ReferenceConfig {
    /// Measures the steps of the perceptron in PyTorch afterwards, on as many threads, and adds the ratio.
    #[arg(long)]
    with_peer: bool,
    /// Interpreter with PyTorch.
    #[arg(long, value_name = "PROGRAM", default_value = "python3", requires = "with_peer")]
    python: PathBuf,
}

impl Flags for ReferenceConfig {
    fn measure(&self, setting: &Setting) -> Result<Outcome, Error> {
        if let Some(ordinal) = setting.gpu {
            if self.with_peer {
                let found = format!("beside --device cuda:{ordinal}");
                return Err(Error::Flag { flag: "--with-peer", found, expected: "--device cpu".to_owned() });
            }
            return Ok(on_gpu(&Gpu::open(setting)?)?.into());
        }
        let mut result = on_cpu(&setting.clock)?;
        if self.with_peer {
            peer::add(&mut result, &self.python, setting.clock.as_ref())?;
        }
        Ok(result.into())
    }
}

fn on_cpu(clock: &Arc<dyn Clock>) -> Result<BenchResult, Error> {
    let mut stopwatch = Stopwatch::new(Arc::clone(clock), "", None);
    let model = linear(&Device::Cpu, HostNumbers::Fixed)?;
    let (_, metrics) = run(in_mode(StepMode::default()), model, [&Device::Cpu; 2], &mut stopwatch, EPOCHS)?;
    let mut samples = stopwatch.samples;
    steps::measure(clock, &mut samples)?;
    let result = samples.into_result("reference-cpu", WORK.name, NOTES, facts(), clock.as_ref());
    Ok(BenchResult { metrics, ..result })
}

fn on_gpu(gpu: &Gpu) -> Result<BenchResult, Error> {
    let (mut samples, mut names) = (Samples::default(), BTreeSet::new());
    for (name, mode, is_resident, host_numbers) in WAYS {
        let home = if is_resident { &gpu.device } else { &Device::Cpu };
        let mut stopwatch = Stopwatch::new(Arc::clone(&gpu.clock), &format!("{name}."), Some(gpu));
        stopwatch.samples = samples;
        let model = linear(&gpu.device, host_numbers)?;
        let (trainer, metrics) = run(in_mode(mode), model, [&gpu.device, home], &mut stopwatch, EPOCHS)?;
        samples = stopwatch.samples;
        names.extend(metrics);
        let found = match mode {
            StepMode::Eager => continue,
            StepMode::Graph => trainer.graph_stats().total.replays,
            StepMode::Compiled => trainer.num_compiled_replays(),
        };
        let expected = NUM_EPOCHS * STEPS_PER_EPOCH * REPLAYED / 100;
        if found < expected {
            let what = format!("the number of steps of `{name}` that were replays");
            return Err(Error::WrongResult { what, expected: expected as f64, found: found as f64 });
        }
    }
    let result = gpu.result(WORK.name, NOTES_OF_GPU, facts(), samples);
    Ok(BenchResult { metrics: names.into_iter().collect(), ..result })
}

fn facts() -> Settings {
    settings([
        ("model", "linear 16->4 with bias"),
        ("samples", "16"),
        ("batch_size", "4"),
        ("loss", "cross-entropy"),
        ("optimizer", "sgd"),
        ("telemetry", "recorder with a packet per epoch"),
        ("warm_up_epochs", "500"),
    ])
}

type ReferenceTrainer = Trainer<NoSeeds<PlainModel>, tamiyo::Tamiyo>;

/// Trains on a device, with samples that are on it or on the host: the trainer, and the metrics in its last packet.
fn run(
    execution: ExecutionConfig,
    model: PlainModel,
    [device, home]: [&Device; 2],
    stopwatch: &mut Stopwatch<'_>,
    num_epochs: u64,
) -> Result<(ReferenceTrainer, Vec<String>), Error> {
    let clock = Arc::clone(&stopwatch.clock);
    let run_id = RunId::new("reference").expect("a literal of allowed characters");
    let groups = [
        (tolaria::telemetry::METRICS, tolaria::telemetry::EVENTS),
        (tamiyo::telemetry::METRICS, tamiyo::telemetry::EVENTS),
    ];
    let sink = esper_telemetry::sink::MemorySink::new();
    let packets = sink.packets();
    let (recorder, guard) = esper_telemetry::TelemetryRecorder::start(
        run_id.clone(),
        esper_telemetry::Catalogue::new(&groups)?,
        vec![Box::new(sink)],
        esper_telemetry::QueueConfig::default(),
        Arc::clone(&clock),
    )?;
    let recorder: Arc<dyn Recorder> = recorder;
    let policy = tamiyo::Tamiyo::new(
        tamiyo::TamiyoConfig { policy: tamiyo::PolicyKind::Off, ..Default::default() },
        Arc::clone(&clock),
        Arc::clone(&recorder),
    )?;
    let parts = Parts {
        run_id,
        seed: 0,
        num_epochs,
        max_steps: None,
        device: device.clone(),
        data: Splits { train: samples(16, home)?, validation: samples(16, home)?, test: samples(16, home)? },
        task: Arc::new(Classification::new(4)),
        seeds: NoSeeds::new(model),
        policy,
        checkpoints: None,
        recorder,
        clock,
    };
    let mut trainer = Trainer::new(TrainConfig { execution, ..config() }, parts)?;
    let mut eager = Eager::acquire()?;
    stopwatch.begin();
    trainer.run(&mut eager, stopwatch)?;
    if let Some(error) = stopwatch.failed.take() {
        return Err(error);
    }
    drop(eager);
    guard.shutdown(Duration::from_secs(5));
    let names: Option<BTreeSet<String>> =
        packets.last().map(|packet| packet.metrics.iter().map(|m| m.name.clone()).collect());
    Ok((trainer, names.unwrap_or_default().into_iter().collect()))
}

fn config() -> TrainConfig {
    let optimizer = OptimizerConfig::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.0 };
    TrainConfig {
        schedule: constant(0.01),
        clip_norm: None,
        eval_batch_size: count(16),
        conflict_warn: 0.5,
        ..train_config(4, 1, optimizer, ConflictResolution::PcGrad, ExecutionConfig::default())
    }
}

/// Fixed, separable samples: the values do not matter for the time.
fn samples(count: usize, device: &Device) -> Result<Dataset, Error> {
    let inputs: Vec<f32> = (0..count * 16).map(|i| ((i * 7 + 3) % 11) as f32 / 11.0 - 0.5).collect();
    let targets: Vec<u32> = (0..4).cycle().take(count).collect();
    Ok(Dataset::new(Tensor::from_vec(inputs, (count, 16), device)?, Tensor::from_vec(targets, count, device)?)?)
}

fn linear(device: &Device, host_numbers: HostNumbers) -> Result<PlainModel, Error> {
    let weights: Vec<f32> = (0..64).map(|i| ((i * 5) % 13) as f32 / 26.0 - 0.25).collect();
    let weight = Var::from_tensor(&Tensor::from_vec(weights, (4, 16), device)?)?;
    let bias = Var::zeros(4, candle_core::DType::F32, device)?;
    let named = vec![("weight".to_owned(), weight.clone()), ("bias".to_owned(), bias.clone())];
    let options = LinearOptions { order: WeightOrder::OutIn, ..LinearOptions::default() };
    let model = PlainModel::new(named, move |x: &Tensor| esper_layers::linear(x, &weight, Some(&bias), &options))?;
    Ok(model.with_host_numbers(host_numbers))
}

/// Takes the times at the trainer's own call-backs.
struct Stopwatch<'a> {
    clock: Arc<dyn Clock>,
    /// Waited for before the end of an epoch's steps.
    gpu: Option<&'a Gpu>,
    /// Why it could not be waited for.
    failed: Option<Error>,
    names: [String; 3],
    epoch_started: Duration,
    step_started: Duration,
    epoch: u64,
    samples: Samples,
}

impl<'a> Stopwatch<'a> {
    fn new(clock: Arc<dyn Clock>, prefix: &str, gpu: Option<&'a Gpu>) -> Self {
        let now = clock.now();
        let names = ["step", "epoch_steps", "epoch_whole"].map(|name| format!("{prefix}{name}"));
        Self {
            clock,
            gpu,
            names,
            failed: None,
            epoch_started: now,
            step_started: now,
            epoch: 0,
            samples: Samples::default(),
        }
    }

    fn begin(&mut self) {
        self.epoch_started = self.clock.now();
        self.step_started = self.epoch_started;
    }
}

impl Observer for Stopwatch<'_> {
    fn step_finished(&mut self, step: StepIndex) -> Flow {
        let is_last = step.0.is_multiple_of(STEPS_PER_EPOCH);
        if let Some(gpu) = self.gpu.filter(|_| is_last) {
            self.failed = self.failed.take().or(gpu.wait().err());
        }
        let now = self.clock.now();
        if self.epoch >= WARM_UP_EPOCHS {
            // On a GPU a step alone is only brought on its way.
            if self.gpu.is_none() {
                self.samples.push(&self.names[0], "ms", ms(now - self.step_started));
            }
            if is_last {
                self.samples.push(&self.names[1], "ms", ms(now - self.epoch_started));
            }
        }
        self.step_started = self.clock.now();
        Flow::Continue
    }

    fn epoch_finished(&mut self, _report: &EpochReport) -> Result<(), BoxError> {
        let now = self.clock.now();
        if self.epoch >= WARM_UP_EPOCHS {
            self.samples.push(&self.names[2], "ms", ms(now - self.epoch_started));
        } else if self.gpu.is_some() {
            thread::sleep(PAUSE);
        }
        self.epoch += 1;
        self.begin();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use leyline::clock::SystemClock;

    use super::*;

    #[test]
    fn an_epoch_has_four_steps_and_its_times_and_metrics_are_those_of_the_way() {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let mut stopwatch = Stopwatch::new(clock, "eager.", None);
        stopwatch.epoch = WARM_UP_EPOCHS;
        let model = linear(&Device::Cpu, HostNumbers::Fixed).unwrap();
        let (trainer, metrics) = run(in_mode(StepMode::Eager), model, [&Device::Cpu; 2], &mut stopwatch, 3).unwrap();
        assert_eq!(trainer.progress().1.0, 3 * STEPS_PER_EPOCH);
        assert!(metrics.iter().any(|name| name == "tolaria.training.loss"), "{metrics:?}");
        let measured = stopwatch.samples.into_measurements();
        let counts: Vec<(&str, usize)> = measured.iter().map(|(name, of)| (name.as_str(), of.n)).collect();
        assert_eq!(counts, [("eager.epoch_steps", 3), ("eager.epoch_whole", 3), ("eager.step", 12)]);
    }

    #[test]
    fn the_peer_of_the_cpu_is_not_measured_beside_a_gpu() {
        let flags = ReferenceConfig { with_peer: true, ..ReferenceConfig::by_default() };
        let setting = Setting::alone(Arc::new(SystemClock::new()), Some(0));
        let error = flags.measure(&setting).unwrap_err();
        assert_eq!(error.to_string(), "--with-peer beside --device cuda:0: expected --device cpu");
    }
}
