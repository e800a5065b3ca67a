//! What going back takes, and what keeping states to go back to costs, in a network of about 5 million parameters.

mod planted;

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use candle_core::Device;
use kasmina::Kasmina;
use leyline::clock::Clock;
use leyline::error::BoxError;
use leyline::id::StepIndex;
use leyline::model::TrainableModel as _;
use leyline::region::Eager;
use leyline::seed::SeedManager as _;
use tamiyo::{PolicyKind, Tamiyo, TamiyoConfig};
use tolaria::aggregate::ConflictResolution;
use tolaria::checkpoint::{CheckpointStore, StdFs};
use tolaria::optim::OptimizerConfig;
use tolaria::trainer::report::EpochReport;
use tolaria::trainer::{
    Checkpoints, ExecutionConfig, Flow, Observer, Parts, RecoveryConfig, Splits, Tier, TrainConfig, TrainPrecision,
    Trainer,
};

use crate::error::Error;
use crate::gpu::Gpu;
use crate::gpu::growing::{CLASSES, Growing, GrowingTrainer, perceptron, samples};
use crate::gpu::report::Broken;
use crate::samples::{Samples, ms, us};
use crate::work::{Needs, Outcome, Setting, Work, settings};

pub(super) const WORK: Work = Work::new(
    "recovery",
    "What going back takes, from memory and from disk, and what keeping states costs a step; on the CPU with `--device cpu`",
    Needs::Nothing,
    run,
);

const NOTES: &str = "784-2048-1536-10, AdamW, batch 128. restore.memory: from a state in the memory of the device; restore.disk: from the newest checkpoint, which is read, \
    verified and copied to the device; both from the call to the end of the work of the device, some steps after the state. keep: taking one. step.off: a step without recovery \
    (time of an epoch over its steps, the evaluation of 256 samples included); step.on: a state every 64 steps and a look every 8, as by default; step.bound: with a bound of the loss \
    beside it; on.over_off, bound.over_off: over the run with it off just before, n counts rounds. \
    planted.PLACE.loss: training loss at the end of a run of 234 steps in which, at one step, data, a parameter of a seed, one of the host or what the last kernel of the loss \
    computes are no numbers; planted.none.loss: of runs without, with other orders of samples; a run whose culprit is not named, or whose loss is beyond theirs, breaks a promise";

/// Ways back that are measured, after one that is not.
const WAYS: usize = 30;
/// Steps in which no number is planted, for each place, and runs without that say how far losses differ by chance.
const PLANTED: usize = 100;
const NOISE: usize = 20;
/// Steps of an epoch on the CPU and on a GPU.
const STEPS: [usize; 2] = [16, 256];
const ROUNDS: usize = 3;
const EPOCHS: u64 = 4;
const BATCH: usize = 128;

fn run(setting: &Setting) -> Result<Outcome, Error> {
    let gpu = setting.gpu.map(|_| Gpu::open(setting)).transpose()?;
    let device = gpu.as_ref().map_or(Device::Cpu, |gpu| gpu.device.clone());
    let place = Place { device, clock: Arc::clone(&setting.clock), gpu };
    let mut measured = Samples::default();
    let broken = |Broken(table)| Error::BrokenPromises { table };
    let mut eager = Eager::acquire().map_err(tolaria::Error::from)?;
    let told =
        planted::run([PLANTED, NOISE], &place.device, &place.clock, &mut eager, &mut measured).map_err(broken)?;
    let num_parameters = place.measure(&mut eager, &mut measured).map_err(broken)?;
    let mut config =
        settings([("parameters", num_parameters), ("epochs", EPOCHS), ("steps_per_epoch", place.steps() as u64)]);
    config.extend(told);
    Ok(match &place.gpu {
        Some(gpu) => gpu.result(WORK.name, NOTES, config, measured),
        None => measured.into_result("recovery-cpu", "recovery --device cpu", NOTES, config, &*place.clock),
    }
    .into())
}

/// Where it is measured.
struct Place {
    device: Device,
    clock: Arc<dyn Clock>,
    gpu: Option<Gpu>,
}

impl Place {
    /// Measures everything; parameters of the network.
    fn measure(&self, eager: &mut Eager, measured: &mut Samples) -> Result<u64, Broken> {
        let num_parameters = self.restores(eager, measured, None)?;
        let dir = tempfile::tempdir().map_err(|error| Broken(error.to_string()))?;
        self.restores(eager, measured, Some(dir.path()))?;
        for _ in 0..ROUNDS {
            let off = self.steps_with(eager, measured, "off", RecoveryConfig::default())?;
            let on = RecoveryConfig { memory_mib: 512, ..RecoveryConfig::default() };
            let bound = RecoveryConfig { loss_bound: Some(1e6), ..on.clone() };
            for (name, recovery) in [("on", on), ("bound", bound)] {
                let with = self.steps_with(eager, measured, name, recovery)?;
                measured.push(format!("{name}.over_off"), "ratio", with / off);
            }
        }
        Ok(num_parameters)
    }

    fn steps(&self) -> usize {
        STEPS[usize::from(self.gpu.is_some())]
    }

    fn trainer(&self, recovery: RecoveryConfig, dir: Option<&Path>) -> Result<GrowingTrainer, Broken> {
        let growing = Growing {
            host: perceptron(784, vec![2048, 1536]),
            num_samples: BATCH * self.steps(),
            batch_size: BATCH,
            microbatches: 1,
            epochs: EPOCHS,
            stage_epochs: 1,
            optimizer: OptimizerConfig::AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 },
            conflict: ConflictResolution::Mean,
            execution: ExecutionConfig::default(),
            data_on_host: false,
            seed_width: 32,
            precision: TrainPrecision::F32,
            checkpointing: kasmina::ActivationCheckpointing::None,
        };
        let parts: Parts<Kasmina, Tamiyo> = growing.parts_on(&self.device, &self.clock)?;
        // Nothing grows: every epoch has the same steps.
        let policy = TamiyoConfig { policy: PolicyKind::Off, ..TamiyoConfig::default() };
        let held_out = samples(256, 784, CLASSES, &self.device)?;
        let open = |dir| CheckpointStore::open(dir, NonZeroUsize::MIN, Arc::new(StdFs)).map_err(tolaria::Error::from);
        let store = dir.map(open).transpose()?;
        let parts = Parts {
            policy: Tamiyo::new(policy, Arc::clone(&self.clock), Arc::clone(&parts.recorder))?,
            data: Splits { validation: held_out.clone(), test: held_out, train: parts.data.train },
            checkpoints: store.map(|store| Checkpoints { keep_best: false, ..Checkpoints::new(store) }),
            ..parts
        };
        Ok(Trainer::new(TrainConfig { recovery, ..growing.config() }, parts)?)
    }

    /// Goes back again and again, from memory or, with a folder, from disk.
    fn restores(&self, eager: &mut Eager, measured: &mut Samples, dir: Option<&Path>) -> Result<u64, Broken> {
        let (name, expected) = if dir.is_some() { ("disk", Tier::Disk) } else { ("memory", Tier::Memory) };
        let recovery = RecoveryConfig { memory_mib: 512, ..RecoveryConfig::default() };
        let recovery = if dir.is_some() { RecoveryConfig::default() } else { recovery };
        let mut trainer = self.trainer(recovery, dir)?;
        trainer.run(eager, &mut StopAt(StepIndex(4)))?;
        if dir.is_none() {
            self.wait()?;
            let started = self.clock.now();
            trainer.keep_state(eager)?;
            self.wait()?;
            measured.push("keep", "ms", ms(self.clock.now() - started));
            trainer.confirm_state();
        }
        for turn in 0..=WAYS {
            let at = trainer.progress().1.0;
            trainer.run(eager, &mut StopAt(StepIndex(at + 3)))?;
            self.wait()?;
            let started = self.clock.now();
            let back = trainer.roll_back(eager)?;
            self.wait()?;
            if back.tier != expected {
                return Err(Broken(format!("it went back to {}, not to {name}", back.tier.name())));
            }
            if turn > 0 {
                measured.push(format!("restore.{name}"), "ms", ms(self.clock.now() - started));
            }
        }
        Ok(trainer.seeds().model().layout().num_elements() as u64)
    }

    /// Median time of a step of a run with these settings, µs.
    fn steps_with(
        &self,
        eager: &mut Eager,
        measured: &mut Samples,
        name: &str,
        recovery: RecoveryConfig,
    ) -> Result<f64, Broken> {
        let mut epochs = Epochs { steps: self.steps() as f64, times: Vec::new() };
        self.trainer(recovery, None)?.run(eager, &mut epochs)?;
        // In the first epoch steps are captured and compiled.
        let mut times = epochs.times.split_off(1);
        times.iter().for_each(|time| measured.push(format!("step.{name}"), "us", *time));
        times.sort_by(f64::total_cmp);
        Ok(times[times.len() / 2])
    }

    fn wait(&self) -> Result<(), Broken> {
        Ok(self.gpu.as_ref().map_or(Ok(()), Gpu::wait)?)
    }
}

struct StopAt(StepIndex);

impl Observer for StopAt {
    fn step_finished(&mut self, step: StepIndex) -> Flow {
        if step == self.0 { Flow::Stop } else { Flow::Continue }
    }

    fn epoch_finished(&mut self, _report: &EpochReport) -> Result<(), BoxError> {
        Ok(())
    }
}

/// Time of the steps of each epoch, µs.
struct Epochs {
    steps: f64,
    times: Vec<f64>,
}

impl Observer for Epochs {
    fn epoch_finished(&mut self, report: &EpochReport) -> Result<(), BoxError> {
        self.times.push(us(std::time::Duration::from_secs_f64(report.wall_s)) / self.steps);
        Ok(())
    }
}
