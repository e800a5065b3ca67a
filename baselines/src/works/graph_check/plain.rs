//! Networks that do not grow: with dropout, and with deliberate mistakes.

use candle_core::Tensor;
use leyline::model::TrainableModel as _;
use leyline::region::Eager;
use leyline::seed::SeedManager as _;
use tolaria::aggregate::ConflictResolution;
use tolaria::batch::Dataset;
use tolaria::optim::OptimizerConfig;
use tolaria::random::{DrawCounter, Dropout};
use tolaria::trainer::{ExecutionConfig, NullObserver, StepMode};

use crate::gpu::growing::{differing, in_mode, samples, values_of};
use crate::gpu::open::Gpu;
use crate::gpu::report::{Broken, promise};
use crate::trainer::{PlainTrainer, all_of, plain_trainer, train_config, two_layers};

const INPUTS: usize = 16;
pub(super) const CLASSES: usize = 10;
const SAMPLES: usize = 205;
pub(super) const BATCH: usize = 8;

/// What a layer between the two linear ones does.
pub(super) type Middle = Box<dyn Fn(&Tensor) -> candle_core::Result<Tensor> + Send + Sync>;

/// 16-32-10 with `middle` after the first layer.
pub(super) fn trainer(
    gpu: &Gpu,
    middle: Middle,
    optimizer: OptimizerConfig,
    microbatches: usize,
    epochs: u64,
    execution: ExecutionConfig,
) -> Result<PlainTrainer, Broken> {
    let model = two_layers(11, CLASSES, &gpu.device, move |h| middle(&h.relu()?))?;
    let config = train_config(BATCH, microbatches, optimizer, ConflictResolution::Mean, execution);
    Ok(plain_trainer(config, CLASSES, model, all_of(data(gpu)?), [3, epochs], &gpu.clock)?)
}

/// What [`trainer`] trains on.
pub(super) fn data(gpu: &Gpu) -> Result<Dataset, Broken> {
    samples(SAMPLES, INPUTS, CLASSES, &gpu.device)
}

/// Values of all parameters.
pub(super) fn values(trainer: &PlainTrainer) -> Result<Vec<f32>, Broken> {
    values_of(trainer.seeds().model().parameters())
}

/// Dropout between the layers: replays draw fresh masks, and the same ones as eager steps.
pub(super) fn dropout(
    gpu: &Gpu,
    eager: &mut Eager,
    optimizer: OptimizerConfig,
    microbatches: usize,
) -> Result<String, Broken> {
    let epochs = if microbatches == 1 { 40 } else { 150 };
    let mut run = |mode, frozen: bool| -> Result<(PlainTrainer, Vec<f32>), Broken> {
        let counter = DrawCounter::new(99, &gpu.device)?;
        let layer = Dropout::new(0.25, 0, &counter)?;
        let middle: Middle = Box::new(move |h| {
            if !frozen {
                counter.advance()?;
            }
            Ok(layer.forward(h, true)?)
        });
        let mut trainer = trainer(gpu, middle, optimizer, microbatches, epochs, in_mode(mode))?;
        trainer.run(eager, &mut NullObserver)?;
        let values = values(&trainer)?;
        Ok((trainer, values))
    };
    let (_, expected) = run(StepMode::Eager, false)?;
    let (trainer, found) = run(StepMode::Graph, false)?;
    let (_, one_mask) = run(StepMode::Eager, true)?;
    if let Some(refusal) = trainer.last_refusal() {
        return Err(Broken(format!("a shape was refused: {refusal}")));
    }
    let wrong = differing(&expected, &found);
    promise(wrong == 0, || format!("{wrong} of {} parameters differ", found.len()))?;
    let other = differing(&one_mask, &found);
    promise(other * 2 > found.len(), || "the masks did not change from step to step".to_owned())?;
    let steps = trainer.progress().1.0;
    let replays = trainer.graph_stats().total.replays;
    promise(replays * 10 > steps * 8, || format!("{replays} of {steps} steps were replays"))?;
    Ok(format!("{steps} steps, {replays} replays, 0 of {} parameters differ, {other} with one mask", found.len()))
}
