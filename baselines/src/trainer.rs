//! Trainers of networks that do not grow, and their settings.

use std::num::NonZeroUsize;
use std::sync::Arc;

use candle_core::{Device, Tensor, Var};
use leyline::clock::Clock;
use leyline::id::RunId;
use leyline::task::Task;
use tolaria::aggregate::ConflictResolution;
use tolaria::batch::{BatchConfig, Dataset};
use tolaria::optim::{Decay, OptimizerConfig, ScheduleConfig};
use tolaria::plain::{NoPolicy, NoSeeds, PlainModel};
use tolaria::task::Classification;
use tolaria::trainer::{ExecutionConfig, Parts, Splits, TrainConfig, Trainer};

use crate::error::Error;
use crate::models::{Draw, Workload};

/// The trainer of a network that does not grow.
pub(crate) type PlainTrainer = Trainer<NoSeeds<PlainModel>, NoPolicy>;
/// Its parts.
pub(crate) type PlainParts = Parts<NoSeeds<PlainModel>, NoPolicy>;

/// A trainer of a classifier without policy, telemetry and checkpoints.
pub(crate) fn plain_trainer(
    config: TrainConfig,
    num_classes: usize,
    model: PlainModel,
    data: Splits,
    [seed, num_epochs]: [u64; 2],
    clock: &Arc<dyn Clock>,
) -> Result<PlainTrainer, Error> {
    let task = Arc::new(Classification::new(num_classes));
    Ok(Trainer::new(config, plain_parts(task, model, data, [seed, num_epochs], clock))?)
}

/// What such a trainer is made of, for any task.
pub(crate) fn plain_parts(
    task: Arc<dyn Task>,
    model: PlainModel,
    data: Splits,
    [seed, num_epochs]: [u64; 2],
    clock: &Arc<dyn Clock>,
) -> PlainParts {
    parts_of(task, NoSeeds::new(model), data, [seed, num_epochs], clock)
}

/// [`plain_parts`] of a network that may have buffers.
pub(crate) fn parts_of(
    task: Arc<dyn Task>,
    seeds: NoSeeds<PlainModel>,
    data: Splits,
    [seed, num_epochs]: [u64; 2],
    clock: &Arc<dyn Clock>,
) -> PlainParts {
    let run_id = RunId::new("bench").expect("a literal of allowed characters");
    let clock = Arc::clone(clock);
    Parts { run_id, seed, num_epochs, clock, ..Parts::new(task, seeds, NoPolicy, data) }
}

/// The same samples for all three purposes.
pub(crate) fn all_of(train: Dataset) -> Splits {
    Splits { validation: train.clone(), test: train.clone(), train }
}

/// The data of a work so many times in an epoch; a batch of it is held out.
pub(crate) fn repeated(work: &Workload, times: usize) -> Result<Splits, Error> {
    let all = |tensor: &Tensor| Tensor::cat(&vec![tensor; times], 0);
    let batch = |tensor: &Tensor| tensor.narrow(0, 0, work.batch_size)?.contiguous();
    let train = Dataset::new(all(&work.inputs)?, all(&work.targets)?)?;
    let held_out = Dataset::new(batch(&work.inputs)?, batch(&work.targets)?)?;
    Ok(Splits { train, validation: held_out.clone(), test: held_out })
}

/// 16-32-`outputs` with `middle` between the layers.
pub(crate) fn two_layers(
    seed: u64,
    outputs: usize,
    device: &Device,
    middle: impl Fn(&Tensor) -> candle_core::Result<Tensor> + Send + Sync + 'static,
) -> Result<PlainModel, Error> {
    let mut draw = Draw::new(seed, device);
    let mut weight = |rows, columns| Var::from_tensor(&draw.uniform((rows, columns), 0.3)?);
    let (first, second) = (weight(16, 32)?, weight(32, outputs)?);
    let named = vec![("first".to_owned(), first.clone()), ("second".to_owned(), second.clone())];
    Ok(PlainModel::new(named, move |x: &Tensor| middle(&x.matmul(&first)?)?.matmul(&second))?)
}

/// A learning rate that stays.
pub(crate) fn constant(learning_rate: f64) -> ScheduleConfig {
    ScheduleConfig { learning_rate, warmup_steps: 0, decay: Decay::Constant }
}

/// A number of samples or microbatches.
pub(crate) fn count(n: usize) -> NonZeroUsize {
    NonZeroUsize::new(n).expect("works have sizes above 0")
}

/// Settings that all checks share.
pub(crate) fn train_config(
    batch_size: usize,
    microbatches: usize,
    optimizer: OptimizerConfig,
    conflict: ConflictResolution,
    execution: ExecutionConfig,
) -> TrainConfig {
    TrainConfig {
        batch: BatchConfig { batch_size: count(batch_size), microbatches_per_step: count(microbatches) },
        optimizer,
        // The learning rate moves, so that a recorded step that kept one would be found out.
        schedule: ScheduleConfig { learning_rate: 0.01, warmup_steps: 20, decay: Decay::Constant },
        conflict,
        eval_batch_size: count(512),
        conflict_warn: 1.0,
        execution,
        ..TrainConfig::default()
    }
}

/// Stochastic gradient descent with batches of this size.
pub(crate) fn plain_sgd(batch_size: usize) -> TrainConfig {
    let sgd = OptimizerConfig::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.0 };
    let config = train_config(batch_size, 1, sgd, ConflictResolution::Mean, ExecutionConfig::default());
    TrainConfig { schedule: constant(0.01), eval_batch_size: count(16), ..config }
}

/// 16-4, without a bias.
pub(crate) fn linear() -> Result<PlainModel, Error> {
    let weight = Var::from_tensor(&Draw::new(1, &Device::Cpu).uniform((16, 4), 0.3)?)?;
    let named = vec![("weight".to_owned(), weight.clone())];
    Ok(PlainModel::new(named, move |x: &Tensor| x.matmul(&weight))?)
}
