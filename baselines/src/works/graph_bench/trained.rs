//! Epochs of the real trainer on a GPU, eager against graphs.

use std::sync::Arc;
use std::time::Duration;

use leyline::clock::Clock;
use leyline::error::BoxError;
use leyline::region::Eager;
use tolaria::aggregate::ConflictResolution;
use tolaria::trainer::report::EpochReport;
use tolaria::trainer::{Observer, StepMode, TrainConfig};

use crate::error::Error;
use crate::gpu::growing::in_mode;
use crate::gpu::open::Gpu;
use crate::models::Workload;
use crate::samples::{Samples, us};
use crate::trainer::{all_of, constant, count, plain_trainer, train_config};

const WARM_UP: u64 = 20;
const EPOCHS: u64 = 220;

/// Measures the epochs of one work.
pub(super) fn measure(gpu: &Gpu, eager: &mut Eager, name: &str, samples: &mut Samples) -> Result<(), Error> {
    for (name_of_mode, mode) in [("eager", StepMode::Eager), ("graph", StepMode::Graph)] {
        let work = Workload::named(name, 0, &gpu.device)?;
        let config = TrainConfig {
            schedule: constant(work.learning_rate),
            clip_norm: None,
            eval_batch_size: count(1024),
            ..train_config(work.batch_size, 1, work.optimizer, ConflictResolution::Mean, in_mode(mode))
        };
        let data = all_of(work.dataset()?);
        let mut trainer = plain_trainer(config, work.num_classes, work.model, data, [0, EPOCHS], &gpu.clock)?;
        let mut stopwatch = Stopwatch { clock: Arc::clone(&gpu.clock), began: gpu.now(), epochs: Vec::new() };
        trainer.run(eager, &mut stopwatch)?;
        let warm = usize::try_from(WARM_UP).expect("a small number");
        for epoch in &stopwatch.epochs[warm..] {
            samples.push(format!("trainer.{name}.epoch.{name_of_mode}"), "us", us(*epoch));
        }
        let replays = trainer.graph_stats().total.replays;
        samples.push(format!("trainer.{name}.replays.{name_of_mode}"), "count", replays as f64);
    }
    Ok(())
}

/// Takes the time of every epoch; its end has waited for the device.
struct Stopwatch {
    clock: Arc<dyn Clock>,
    began: Duration,
    epochs: Vec<Duration>,
}

impl Observer for Stopwatch {
    fn epoch_finished(&mut self, _report: &EpochReport) -> Result<(), BoxError> {
        let now = self.clock.now();
        self.epochs.push(now - self.began);
        self.began = self.clock.now();
        Ok(())
    }
}
