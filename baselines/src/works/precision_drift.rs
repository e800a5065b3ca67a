//! How far training in reduced precision ends from training in single precision: losses, accuracy, parameters.

use std::sync::Arc;

use candle_core::Device;
use leyline::error::BoxError;
use leyline::model::TrainableModel as _;
use leyline::region::Eager;
use leyline::seed::SeedManager as _;
use tolaria::aggregate::ConflictResolution;
use tolaria::optim::ScheduleConfig;
use tolaria::trainer::report::EpochReport;
use tolaria::trainer::{ExecutionConfig, Flow, Observer, TrainConfig, TrainPrecision};

use crate::error::Error;
use crate::gpu::Gpu;
use crate::gpu::growing::values_of;
use crate::gpu::report::Broken;
use crate::models::{Form, Precision, Variant, Workload};
use crate::samples::Samples;
use crate::trainer::{all_of, count, plain_trainer, repeated, train_config};
use crate::work::{Needs, Outcome, Setting, Work, settings};

pub(super) const WORK: Work = Work::new(
    "precision-drift",
    "Training in TF32, bf16, f16 and with parameters of bf16 against f32: losses, accuracy, parameters",
    Needs::Nothing,
    run,
);

const NOTES: &str = "WORK.PRECISION.*: a run of the trainer with `train.precision`, weights and data as in f32, four microbatches per step, one of ref16: ref is linear 4→4, ref16 the reference workload, linear 16→4 in batches of 4. loss, accuracy: of the \
    training data at the end, evaluated in f32, of bf16_pure and bf16_stochastic in bf16; loss_drift, accuracy_drift: minus that of f32; largest_loss_drift: over all epochs, without sign. \
    parameter_drift: norm of the difference of all parameters from those of f32 over the norm of what f32 has learned (those at the end minus those at the start). skipped: steps \
    that overflowed. seed_drift: the same distance between two runs in f32 from other orders of the samples. tf32 is measured on a GPU. samples_per_s: of \
    runs whose epochs have the data 16 times, the last three of nine epochs, with the evaluation of one batch; one run each, one after the other; tfm5m has 64 tokens a sample. compiled: the share of the steps of all nine epochs that compiled graphs took";

/// Work, epochs, microbatches.
const WORKS: [(&str, u64, usize); 4] = [("ref", 200, 4), (REFERENCE, 200, 1), ("mlp", 12, 4), ("tfm5m", 6, 4)];
/// Of the runs that tell how fast training is: how often an epoch has the data, epochs, and those that are not measured.
const TIMES: usize = 16;
const EPOCHS: u64 = 9;
const BEFORE: usize = 6;
/// The reference workload.
const REFERENCE: &str = "ref16";
const SEEDS: [u64; 2] = [3, 4];

/// Losses, accuracies and parameters of a run.
struct Ran {
    losses: Vec<f64>,
    accuracies: Vec<f64>,
    skipped: u64,
    samples_per_s: Vec<f64>,
    /// Share of the steps that compiled graphs took.
    compiled: f64,
    start: Vec<f32>,
    end: Vec<f32>,
}

/// Of all epochs.
#[derive(Default)]
struct Scores {
    losses: Vec<f64>,
    accuracies: Vec<f64>,
    seconds: Vec<f64>,
    skipped: u64,
    steps: u64,
}

impl Observer for Scores {
    fn step_finished(&mut self, _: leyline::id::StepIndex) -> Flow {
        Flow::Continue
    }

    fn epoch_finished(&mut self, report: &EpochReport) -> Result<(), BoxError> {
        self.losses.push(report.validation.loss);
        self.accuracies.extend(report.validation.accuracy());
        self.seconds.push(report.wall_s);
        self.skipped += report.skipped_steps;
        self.steps = report.step.0;
        Ok(())
    }
}

fn run(setting: &Setting) -> Result<Outcome, Error> {
    let gpu = setting.gpu.map(|_| Gpu::open(setting)).transpose()?;
    let device = gpu.as_ref().map_or(Device::Cpu, |gpu| gpu.device.clone());
    let mut samples = Samples::default();
    for work in WORKS {
        measure(setting, &device, work, &mut samples)?;
    }
    let config = settings([("works", format!("{WORKS:?}"))]);
    Ok(match gpu {
        Some(gpu) => gpu.result(WORK.name, NOTES, config, samples),
        None => samples.into_result(WORK.name, WORK.name, NOTES, config, setting.clock.as_ref()),
    }
    .into())
}

fn measure(
    setting: &Setting,
    device: &Device,
    (work, epochs, microbatches): (&str, u64, usize),
    samples: &mut Samples,
) -> Result<(), Error> {
    let of = |precision, seed| train(setting, device, (work, epochs, microbatches), precision, seed, None);
    let throughput = |samples: &mut Samples, precision: TrainPrecision| {
        let mut ran = train(setting, device, (work, EPOCHS, microbatches), precision, SEEDS[0], Some(TIMES))?;
        let name = format!("{work}.{}", precision.name());
        samples.extend(format!("{name}.samples_per_s"), "1/s", ran.samples_per_s.split_off(BEFORE));
        samples.push(format!("{name}.compiled"), "ratio", ran.compiled);
        Ok::<_, Error>(())
    };
    let exact = of(TrainPrecision::F32, SEEDS[0])?;
    let learned = distance(&exact.end, &exact.start);
    samples.push(
        format!("{work}.seed_drift"),
        "ratio",
        distance(&of(TrainPrecision::F32, SEEDS[1])?.end, &exact.end) / learned,
    );
    if device.is_cuda() {
        throughput(samples, TrainPrecision::F32)?;
    }
    let reduced = [
        TrainPrecision::Tf32,
        TrainPrecision::Bf16,
        TrainPrecision::F16,
        TrainPrecision::Bf16Pure,
        TrainPrecision::Bf16Stochastic,
    ];
    for precision in reduced.into_iter().filter(|precision| device.is_cuda() || *precision != TrainPrecision::Tf32) {
        let found = of(precision, SEEDS[0])?;
        let name = format!("{work}.{}", precision.name());
        let mut push = |what: &str, unit, value| samples.push(format!("{name}.{what}"), unit, value);
        let pairs = [
            ("loss", "nats", &found.losses, &exact.losses),
            ("accuracy", "ratio", &found.accuracies, &exact.accuracies),
        ];
        for (what, unit, found, exact) in pairs {
            if let (Some(found), Some(exact)) = (found.last(), exact.last()) {
                push(what, unit, *found);
                push(&format!("{what}_drift"), unit, found - exact);
            }
        }
        let largest = found.losses.iter().zip(&exact.losses).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        push("largest_loss_drift", "nats", largest);
        push("parameter_drift", "ratio", distance(&found.end, &exact.end) / learned);
        push("skipped", "steps", found.skipped as f64);
        if device.is_cuda() {
            throughput(samples, precision)?;
        }
    }
    Ok(())
}

fn train(
    setting: &Setting,
    device: &Device,
    (work, epochs, microbatches): (&str, u64, usize),
    precision: TrainPrecision,
    seed: u64,
    times: Option<usize>,
) -> Result<Ran, Error> {
    let in_layers = match precision {
        TrainPrecision::Bf16Pure | TrainPrecision::Bf16Stochastic => Precision::Bf16Pure,
        _ => Precision::F32,
    };
    let variant = Variant { form: Form::Layers, precision: in_layers };
    let work = match work {
        "tfm5m" => Workload::sequence_ends(variant, 0, device)?,
        REFERENCE => Workload::reference(16, variant, 0, device)?,
        _ => Workload::of(work, variant, 0, device)?,
    };
    let data = match times {
        Some(times) => repeated(&work, times)?,
        None => all_of(work.dataset()?),
    };
    let num_samples = data.train.len() as f64;
    let config = train_config(
        (work.batch_size / microbatches).max(1),
        microbatches,
        work.optimizer,
        ConflictResolution::Mean,
        ExecutionConfig::default(),
    );
    let schedule = ScheduleConfig::constant(work.learning_rate);
    let config = TrainConfig { schedule, precision, eval_batch_size: count(1024), ..config };
    let mut trainer =
        plain_trainer(config, work.num_classes, work.model, data, [seed, epochs], &Arc::clone(&setting.clock))?;
    let values = |trainer: &crate::trainer::PlainTrainer| {
        values_of(trainer.seeds().model().parameters()).map_err(|Broken(text)| candle_core::Error::Msg(text))
    };
    let start = values(&trainer)?;
    let mut scores = Scores::default();
    trainer.run(&mut Eager::acquire()?, &mut scores)?;
    let end = values(&trainer)?;
    let Scores { losses, accuracies, seconds, skipped, steps } = scores;
    let samples_per_s = seconds.iter().map(|wall_s| num_samples / wall_s).collect();
    let compiled = trainer.graph_stats().total.compiled as f64 / steps.max(1) as f64;
    Ok(Ran { losses, accuracies, skipped, samples_per_s, compiled, start, end })
}

fn distance(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)).sum::<f64>().sqrt()
}
