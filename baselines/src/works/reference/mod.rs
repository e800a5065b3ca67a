//! The reference workload: linear 16→4, 16 samples, batch 4, cross-entropy, 4 optimizer steps an epoch.
//!
//! The real trainer runs it with the real recorder, a packet per epoch. Two times are taken per epoch: `epoch_steps`,
//! the four optimizer steps with shuffling, gathering and their telemetry, and `epoch_whole`, which adds the evaluation
//! on held-out data, the decision of the policy, the report and the packet. Steps against candle's own are in `steps.rs`.

mod peer;
mod steps;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use candle_core::{Device, Tensor, Var};
use esper_layers::{LinearOptions, WeightOrder};
use leyline::clock::Clock;
use leyline::error::BoxError;
use leyline::id::{RunId, StepIndex};
use leyline::region::Eager;
use leyline::telemetry::Recorder;
use tolaria::aggregate::ConflictResolution;
use tolaria::batch::Dataset;
use tolaria::optim::OptimizerConfig;
use tolaria::plain::{NoSeeds, PlainModel};
use tolaria::task::Classification;
use tolaria::trainer::report::EpochReport;
use tolaria::trainer::{ExecutionConfig, Flow, Observer, Parts, Splits, TrainConfig, Trainer};

use crate::error::Error;
use crate::result::BenchResult;
use crate::samples::{Samples, ms};
use crate::trainer::{constant, count, train_config};
use crate::work::{Flags, Needs, Outcome, Setting, Work, settings};

const NOTES: &str = "epoch_steps: 4 optimizer steps of the real trainer with shuffling, gathering and telemetry; \
    epoch_whole: with evaluation on 16 samples, policy, report and packet; step: one optimizer step. \
    WORK.candle_step: a step of candle's operations, loss and SGD; WORK.composed_step: of the trainer with a network \
    of candle's operations; WORK.step: of the trainer with one of esper_layers; parameters are compared first. torch.mlp.*: the same perceptron in PyTorch, eager and \
    by torch.compile, with a fused optimizer; ratio.mlp: mlp.step over the faster, medians";
const NUM_EPOCHS: u64 = 5_000;
const WARM_UP_EPOCHS: u64 = 500;
const STEPS_PER_EPOCH: u64 = 4;

pub(super) const WORK: Work = Work::with_flags::<ReferenceConfig>(
    "reference",
    "The reference workload on the CPU: linear 16→4, 16 samples, batch 4",
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
        let mut result = ours(setting)?;
        if self.with_peer {
            peer::add(&mut result, &self.python, setting.clock.as_ref())?;
            result.command += " --with-peer";
        }
        Ok(result.into())
    }
}

fn ours(setting: &Setting) -> Result<BenchResult, Error> {
    let clock = &setting.clock;
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
        Arc::clone(clock),
    )?;
    let recorder: Arc<dyn Recorder> = recorder;
    let policy = tamiyo::Tamiyo::new(
        tamiyo::TamiyoConfig { policy: tamiyo::PolicyKind::Off, ..Default::default() },
        Arc::clone(clock),
        Arc::clone(&recorder),
    )?;
    let parts = Parts {
        run_id,
        seed: 0,
        num_epochs: WARM_UP_EPOCHS + NUM_EPOCHS,
        max_steps: None,
        device: Device::Cpu,
        data: Splits { train: samples(16)?, validation: samples(16)?, test: samples(16)? },
        task: Arc::new(Classification::new(4)),
        seeds: NoSeeds::new(linear()?),
        policy,
        checkpoints: None,
        recorder,
        clock: Arc::clone(clock),
    };
    let mut trainer = Trainer::new(config(), parts)?;
    let mut stopwatch = Stopwatch::new(Arc::clone(clock));
    let mut eager = Eager::acquire()?;
    trainer.run(&mut eager, &mut stopwatch)?;
    drop(eager);
    guard.shutdown(Duration::from_secs(5));

    let names: Option<BTreeSet<String>> =
        packets.last().map(|packet| packet.metrics.iter().map(|m| m.name.clone()).collect());
    let mut samples = stopwatch.samples;
    steps::measure(clock, &mut samples)?;
    let config = settings([
        ("model", "linear 16->4 with bias"),
        ("samples", "16"),
        ("batch_size", "4"),
        ("loss", "cross-entropy"),
        ("optimizer", "sgd"),
        ("telemetry", "recorder with a packet per epoch"),
        ("warm_up_epochs", "500"),
    ]);
    let result = samples.into_result("reference-cpu", WORK.name, NOTES, config, clock.as_ref());
    Ok(BenchResult { metrics: names.unwrap_or_default().into_iter().collect(), ..result })
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
fn samples(count: usize) -> Result<Dataset, Error> {
    let inputs: Vec<f32> = (0..count * 16).map(|i| ((i * 7 + 3) % 11) as f32 / 11.0 - 0.5).collect();
    let targets: Vec<u32> = (0..4).cycle().take(count).collect();
    Ok(Dataset::new(
        Tensor::from_vec(inputs, (count, 16), &Device::Cpu)?,
        Tensor::from_vec(targets, count, &Device::Cpu)?,
    )?)
}

fn linear() -> Result<PlainModel, Error> {
    let weights: Vec<f32> = (0..64).map(|i| ((i * 5) % 13) as f32 / 26.0 - 0.25).collect();
    let weight = Var::from_tensor(&Tensor::from_vec(weights, (4, 16), &Device::Cpu)?)?;
    let bias = Var::zeros(4, candle_core::DType::F32, &Device::Cpu)?;
    let named = vec![("weight".to_owned(), weight.clone()), ("bias".to_owned(), bias.clone())];
    let options = LinearOptions { order: WeightOrder::OutIn, ..LinearOptions::default() };
    Ok(PlainModel::new(named, move |x: &Tensor| esper_layers::linear(x, &weight, Some(&bias), &options))?)
}

/// Takes the times at the trainer's own call-backs.
struct Stopwatch {
    clock: Arc<dyn Clock>,
    epoch_started: Duration,
    step_started: Duration,
    epoch: u64,
    samples: Samples,
}

impl Stopwatch {
    fn new(clock: Arc<dyn Clock>) -> Self {
        let now = clock.now();
        Self { clock, epoch_started: now, step_started: now, epoch: 0, samples: Samples::default() }
    }
}

impl Observer for Stopwatch {
    fn step_finished(&mut self, step: StepIndex) -> Flow {
        let now = self.clock.now();
        if self.epoch >= WARM_UP_EPOCHS {
            self.samples.push("step", "ms", ms(now - self.step_started));
            if step.0.is_multiple_of(STEPS_PER_EPOCH) {
                self.samples.push("epoch_steps", "ms", ms(now - self.epoch_started));
            }
        }
        self.step_started = self.clock.now();
        Flow::Continue
    }

    fn epoch_finished(&mut self, _report: &EpochReport) -> Result<(), BoxError> {
        let now = self.clock.now();
        if self.epoch >= WARM_UP_EPOCHS {
            self.samples.push("epoch_whole", "ms", ms(now - self.epoch_started));
        }
        self.epoch += 1;
        self.epoch_started = self.clock.now();
        self.step_started = self.epoch_started;
        Ok(())
    }
}
