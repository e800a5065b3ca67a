//! Trains a candle function on two classes of points: `cargo run -p tolaria --example train_plain`.

use std::error::Error;
use std::num::NonZeroUsize;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor, Var};
use leyline::clock::SystemClock;
use leyline::id::RunId;
use leyline::region::Eager;
use leyline::telemetry::NullRecorder;
use tolaria::batch::{BatchConfig, Dataset};
use tolaria::optim::{OptimizerConfig, ScheduleConfig};
use tolaria::plain::{NoPolicy, NoSeeds, PlainModel};
use tolaria::trainer::{NullObserver, Parts, Splits, TrainConfig, Trainer};

fn main() -> Result<(), Box<dyn Error>> {
    let device = Device::Cpu;
    let weight = Var::zeros((2, 2), DType::F32, &device)?;
    let named = vec![("weight".to_owned(), weight.clone())];
    let model = PlainModel::new(named, move |x: &Tensor| x.matmul(&weight))?;

    let eight = NonZeroUsize::new(8).ok_or("8 is not 0")?;
    let config = TrainConfig {
        batch: BatchConfig { batch_size: eight, microbatches_per_step: NonZeroUsize::MIN },
        optimizer: OptimizerConfig::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.0 },
        schedule: ScheduleConfig::constant(0.1),
        clip_norm: None,
        eval_batch_size: eight,
        conflict_warn: 1.0,
        ..TrainConfig::default()
    };
    let parts = Parts {
        run_id: RunId::new("example")?,
        seed: 0,
        num_epochs: 10,
        max_steps: None,
        data: Splits { train: points(64, 0)?, validation: points(32, 1)?, test: points(32, 2)? },
        device,
        seeds: NoSeeds::new(model),
        policy: NoPolicy,
        checkpoints: None,
        recorder: Arc::new(NullRecorder),
        clock: Arc::new(SystemClock::new()),
    };
    let mut trainer = Trainer::new(config, parts)?;
    let mut eager = Eager::acquire()?;
    trainer.run(&mut eager, &mut NullObserver)?;
    let accuracy = trainer.test(&eager)?.score.accuracy().unwrap_or(0.0);
    if accuracy < 1.0 {
        return Err(format!("the classes are separable, but the accuracy is {accuracy}").into());
    }
    Ok(())
}

/// Points left and right of a line through the origin.
fn points(count: u32, offset: u32) -> Result<Dataset, Box<dyn Error>> {
    let rows = (0..count).flat_map(|i| {
        let side = if i % 2 == 0 { 1.0 } else { -1.0 };
        [side * (1.0 + (i + offset) as f32 / 50.0), (i % 7) as f32 / 7.0 - 0.5]
    });
    let inputs = Tensor::from_iter(rows, &Device::Cpu)?.reshape((count as usize, 2))?;
    let targets = Tensor::from_iter((0..count).map(|i| i % 2), &Device::Cpu)?;
    Ok(Dataset::new(inputs, targets, 2)?)
}
