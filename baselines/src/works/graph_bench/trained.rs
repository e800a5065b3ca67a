//! Epochs of the real trainer on a GPU, eager against graphs.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use leyline::clock::Clock;
use leyline::error::BoxError;
use leyline::id::RunId;
use leyline::region::Eager;
use leyline::telemetry::NullRecorder;
use tolaria::aggregate::ConflictResolution;
use tolaria::batch::BatchConfig;
use tolaria::optim::{Decay, ScheduleConfig};
use tolaria::plain::{NoPolicy, NoSeeds};
use tolaria::trainer::report::EpochReport;
use tolaria::trainer::{ExecutionConfig, Observer, Parts, Splits, StepMode, TrainConfig, Trainer};

use crate::error::Error;
use crate::gpu::open::Gpu;
use crate::models::Workload;
use crate::samples::{Samples, us};

const WARM_UP: u64 = 20;
const EPOCHS: u64 = 220;

/// Measures the epochs of one work.
pub(super) fn measure(gpu: &Gpu, eager: &mut Eager, name: &str, samples: &mut Samples) -> Result<(), Error> {
    for (name_of_mode, mode) in [("eager", StepMode::Eager), ("graph", StepMode::Graph)] {
        let work = Workload::named(name, 0, &gpu.device)?;
        let count = |n| NonZeroUsize::new(n).expect("sizes above 0");
        let config = TrainConfig {
            batch: BatchConfig { batch_size: count(work.batch_size), microbatches_per_step: count(1) },
            optimizer: work.optimizer,
            schedule: ScheduleConfig { learning_rate: work.learning_rate, warmup_steps: 0, decay: Decay::Constant },
            clip_norm: None,
            conflict: ConflictResolution::Mean,
            measures: Vec::new(),
            eval_batch_size: count(1024),
            conflict_warn: 1.0,
            measure_conflicts: false,
            cagrad_radius: 0.4,
            execution: ExecutionConfig { mode, ..ExecutionConfig::default() },
        };
        let train = work.dataset()?;
        let parts = Parts {
            run_id: RunId::new("graph-bench").expect("a literal of allowed characters"),
            seed: 0,
            num_epochs: EPOCHS,
            device: gpu.device.clone(),
            data: Splits { validation: train.clone(), test: train.clone(), train },
            seeds: NoSeeds::new(work.model),
            policy: NoPolicy,
            checkpoints: None,
            recorder: Arc::new(NullRecorder),
            clock: Arc::clone(&gpu.clock),
        };
        let mut trainer = Trainer::new(config, parts)?;
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
