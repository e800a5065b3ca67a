//! A number that moves before each step, as a device scalar: eager steps and replayed ones give the same bits.
//!
//! `cargo run -p tolaria --example device_scalar`, or with `--features cuda -- cuda:0`.
#![expect(clippy::print_stdout, reason = "an example shows what happened")]

#[path = "../../graph/examples/support/mod.rs"]
mod support;

use std::error::Error;
use std::num::NonZeroUsize;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor, Var};
use esper_graph::DeviceScalar;
use leyline::clock::SystemClock;
use leyline::error::BoxError;
use leyline::id::{RunId, StepIndex};
use leyline::model::TrainableModel as _;
use leyline::region::Eager;
use leyline::seed::SeedManager as _;
use leyline::telemetry::NullRecorder;
use tolaria::batch::{BatchConfig, Dataset};
use tolaria::host_read::{HostReads, read_vec};
use tolaria::optim::{OptimizerConfig, ScheduleConfig};
use tolaria::plain::{NoPolicy, NoSeeds, PlainModel};
use tolaria::task::Classification;
use tolaria::trainer::report::EpochReport;
use tolaria::trainer::{ExecutionConfig, Flow, Observer, Parts, Splits, StepMode, TrainConfig, Trainer};

/// Cools down with every step.
struct Cooling(DeviceScalar);

impl Observer for Cooling {
    fn step_finished(&mut self, step: StepIndex) -> Flow {
        // A failure of the device ends the next step.
        if let Err(error) = self.0.set(0.99_f32.powi(i32::try_from(step.0).unwrap_or(i32::MAX))) {
            println!("the number was not written: {error}");
        }
        Flow::Continue
    }

    fn epoch_finished(&mut self, _report: &EpochReport) -> Result<(), BoxError> {
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let device = support::device()?;
    let eagerly = train(&device, StepMode::Eager)?;
    let replayed = train(&device, StepMode::Compiled)?;
    if eagerly != replayed {
        return Err(format!("eager steps ended at {eagerly:?}, replayed ones at {replayed:?}").into());
    }
    println!("both end at {eagerly:?}");
    Ok(())
}

/// The bits of the weights after 30 epochs.
fn train(device: &Device, mode: StepMode) -> Result<Vec<u32>, Box<dyn Error>> {
    let weight = Var::zeros((2, 2), DType::F32, device)?;
    let heat = DeviceScalar::new(1.0, device)?;
    let (named, mut cooling) = (vec![("weight".to_owned(), weight.clone())], Cooling(heat.clone()));
    // `x.matmul(&weight)? * number` would be frozen at the number of the capture.
    let model = PlainModel::new(named, move |x: &Tensor| x.matmul(&weight)?.broadcast_mul(heat.as_tensor()))?;

    let eight = NonZeroUsize::new(8).ok_or("8 is not 0")?;
    let config = TrainConfig {
        batch: BatchConfig { batch_size: eight, microbatches_per_step: NonZeroUsize::MIN },
        optimizer: OptimizerConfig::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.0 },
        schedule: ScheduleConfig::constant(0.1),
        clip_norm: None,
        eval_batch_size: eight,
        conflict_warn: 1.0,
        execution: ExecutionConfig { mode, ..ExecutionConfig::default() },
        ..TrainConfig::default()
    };
    let data = points(64, device)?;
    let parts = Parts {
        run_id: RunId::new("example")?,
        seed: 0,
        num_epochs: 30,
        max_steps: None,
        data: Splits { train: data.clone(), validation: data.clone(), test: data },
        device: device.clone(),
        task: Arc::new(Classification::new(2)),
        seeds: NoSeeds::new(model),
        policy: NoPolicy,
        checkpoints: None,
        recorder: Arc::new(NullRecorder),
        clock: Arc::new(SystemClock::new()),
    };
    let mut trainer = Trainer::new(config, parts)?;
    trainer.run(&mut Eager::acquire()?, &mut cooling)?;
    println!("{mode:?}: {} of {} steps were replays", trainer.graph_stats().total.replays, trainer.progress().1.0);
    let weights = trainer.seeds().model().parameters()[0].var.as_tensor();
    Ok(read_vec(weights, "weights", &mut HostReads::default())?.into_iter().map(f32::to_bits).collect())
}

/// Points left and right of a line through the origin.
fn points(count: u32, device: &Device) -> Result<Dataset, Box<dyn Error>> {
    let rows = (0..count).flat_map(|i| {
        let side = if i % 2 == 0 { 1.0 } else { -1.0 };
        [side * (1.0 + i as f32 / 50.0), (i % 7) as f32 / 7.0 - 0.5]
    });
    let inputs = Tensor::from_iter(rows, device)?.reshape((count as usize, 2))?;
    let targets = Tensor::from_iter((0..count).map(|i| i % 2), device)?;
    Ok(Dataset::new(inputs, targets)?)
}
