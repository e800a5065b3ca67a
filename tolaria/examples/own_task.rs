//! A task of one's own, trained with everything the trainer has: `cargo run -p tolaria --example own_task`.

use std::error::Error;
use std::num::NonZeroUsize;

use candle_core::{DType, Device, Result, Tensor, Var};
use leyline::region::Eager;
use leyline::task::{About, Direction, Measure, Scale};
use tolaria::batch::{BatchConfig, Dataset};
use tolaria::optim::{OptimizerConfig, ScheduleConfig};
use tolaria::plain::PlainModel;
use tolaria::task::Task;
use tolaria::trainer::{NullObserver, Parts, Splits, TrainConfig, Trainer};

/// The pinball loss, whose least is at a quantile of the targets: outputs and targets (B, 1) of `f32`.
#[derive(Debug)]
struct Quantile {
    level: f64,
    measures: Vec<Measure>,
}

impl Quantile {
    fn new(level: f64) -> Self {
        let about = About {
            name: "below",
            title: "Targets below",
            formula: "targets below the output / samples",
            scale: Scale::Ratio,
            direction: Direction::HigherIsBetter,
        };
        let is_below = |outputs: &Tensor, targets: &Tensor| targets.lt(outputs)?.to_dtype(DType::F32);
        Self { level, measures: vec![Measure::new(about, is_below, |below, samples| below[0] / samples).by_default()] }
    }
}

impl Task for Quantile {
    fn describe(&self) -> String {
        format!("quantile {}", self.level)
    }

    fn losses(&self, outputs: &Tensor, targets: &Tensor) -> Result<Tensor> {
        let over = (targets - outputs)?;
        (over.relu()?.affine(self.level, 0.0)? + over.neg()?.relu()?.affine(1.0 - self.level, 0.0)?)?.squeeze(1)
    }

    fn measures(&self) -> &[Measure] {
        &self.measures
    }

    fn check_targets(&self, targets: &Tensor) -> Result<()> {
        let is_column = matches!(*targets.dims(), [_, 1]) && targets.dtype() == DType::F32;
        if is_column { Ok(()) } else { candle_core::bail!("expected f32 of shape (N, 1), found {:?}", targets.shape()) }
    }
}

fn main() -> std::result::Result<(), Box<dyn Error>> {
    let bias = Var::zeros((1, 1), DType::F32, &Device::Cpu)?;
    let named = vec![("bias".to_owned(), bias.clone())];
    let model = PlainModel::new(named, move |x: &Tensor| x.ones_like()?.broadcast_mul(&bias))?;
    let size = NonZeroUsize::new(50).ok_or("50 is not 0")?;
    let config = TrainConfig {
        batch: BatchConfig { batch_size: size, microbatches_per_step: NonZeroUsize::MIN },
        optimizer: OptimizerConfig::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.0 },
        schedule: ScheduleConfig::constant(0.5),
        ..TrainConfig::default()
    };
    // 0, 1, …, 99.
    let targets = Tensor::arange(0.0_f32, 100.0, &Device::Cpu)?.reshape((100, 1))?;
    let data = Dataset::new(targets.zeros_like()?, targets)?;
    let data = Splits { train: data.clone(), validation: data.clone(), test: data };
    let parts = Parts { num_epochs: 400, ..Parts::plain(Quantile::new(0.9), model, data) };
    let mut trainer = Trainer::new(config, parts)?;
    let mut eager = Eager::acquire()?;
    trainer.run(&mut eager, &mut NullObserver)?;
    let below = trainer.test(&eager)?.score.measures.get("below").copied();
    if !below.is_some_and(|below| (below - 0.9).abs() < 0.03) {
        return Err(
            format!("0.9 of the targets are below their 0.9 quantile, but {below:?} are below the output").into()
        );
    }
    Ok(())
}
