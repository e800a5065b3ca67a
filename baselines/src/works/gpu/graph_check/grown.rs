//! The real trainer with the real seed manager and a policy that grows by the clock.

use std::num::NonZeroUsize;
use std::sync::Arc;

use candle_core::{Device, Tensor};
use kasmina::host::HostConfig;
use kasmina::{CommandKey, Kasmina, KasminaConfig};
use leyline::id::RunId;
use leyline::model::{Parameter, TrainableModel};
use leyline::region::Eager;
use leyline::seed::{AttributionMode, SeedManager};
use leyline::telemetry::{NullRecorder, Recorder};
use tamiyo::config::FixedConfig;
use tamiyo::{PolicyKind, SigningKey, Tamiyo, TamiyoConfig};
use tolaria::aggregate::ConflictResolution;
use tolaria::batch::{BatchConfig, Dataset};
use tolaria::graph::GraphMode;
use tolaria::host_read::{HostReads, read_vec};
use tolaria::optim::{Decay, OptimizerConfig, ScheduleConfig};
use tolaria::trainer::{ExecutionConfig, NullObserver, Parts, Splits, TrainConfig, Trainer};

use super::report::Broken;
use crate::works::gpu::open::Gpu;
use crate::works::models::Draw;

/// A run of a network that grows.
#[derive(Debug, Clone)]
pub(super) struct Growing {
    pub(super) inputs: usize,
    pub(super) hidden: Vec<usize>,
    pub(super) num_samples: usize,
    pub(super) batch_size: usize,
    pub(super) microbatches: usize,
    pub(super) epochs: u64,
    pub(super) optimizer: OptimizerConfig,
    pub(super) conflict: ConflictResolution,
    pub(super) execution: ExecutionConfig,
    /// Whether the data stay on the host.
    pub(super) data_on_host: bool,
    pub(super) seed_width: usize,
}

const CLASSES: usize = 10;

/// The trainer of such a run.
pub(super) type GrowingTrainer = Trainer<Kasmina, Tamiyo>;

impl Growing {
    /// A small network: 26 steps of 8 samples per epoch and one of 5, or 7 of up to 32.
    pub(super) fn small(microbatches: usize, optimizer: OptimizerConfig) -> Self {
        Self {
            inputs: 16,
            hidden: vec![32, 24],
            num_samples: 205,
            batch_size: 8,
            microbatches,
            // More than 1 000 steps.
            epochs: if microbatches == 1 { 40 } else { 150 },
            optimizer,
            conflict: ConflictResolution::PcGrad,
            execution: ExecutionConfig::default(),
            data_on_host: false,
            seed_width: 8,
        }
    }

    pub(super) fn with_graphs(&self, graphs: GraphMode) -> Self {
        Self { execution: ExecutionConfig { graphs, ..self.execution }, ..self.clone() }
    }

    pub(super) fn trainer(&self, gpu: &Gpu) -> Result<GrowingTrainer, Broken> {
        let run_id = RunId::new("graph-check").expect("a literal of allowed characters");
        let recorder: Arc<dyn Recorder> = Arc::new(NullRecorder);
        let (clock, key) = (Arc::clone(&gpu.clock), [7; 32]);
        let host = HostConfig::Mlp { inputs: self.inputs, hidden: self.hidden.clone(), classes: CLASSES };
        let seeds_config = KasminaConfig {
            attribution: AttributionMode::Alpha,
            seed_width: self.seed_width,
            ..KasminaConfig::new(host)
        };
        let seeds = Kasmina::new(
            seeds_config,
            &gpu.device,
            run_id.clone(),
            CommandKey::new(key),
            Arc::clone(&clock),
            Arc::clone(&recorder),
        )
        .map_err(|error| Broken(format!("the seed manager: {error}")))?;
        let policy = TamiyoConfig {
            policy: PolicyKind::Fixed,
            fixed: FixedConfig { training_epochs: 2, ramp_epochs: 2, holding_epochs: 2, ..FixedConfig::default() },
            ..TamiyoConfig::default()
        };
        let policy = Tamiyo::new(policy, run_id.clone(), SigningKey(key), Arc::clone(&clock), Arc::clone(&recorder))?;
        let device = if self.data_on_host { &Device::Cpu } else { &gpu.device };
        let train = samples(self.num_samples, self.inputs, CLASSES, device)?;
        let parts = Parts {
            run_id,
            seed: 3,
            num_epochs: self.epochs,
            device: gpu.device.clone(),
            data: Splits { validation: train.clone(), test: train.clone(), train },
            seeds,
            policy,
            checkpoints: None,
            recorder,
            clock,
        };
        Ok(Trainer::new(self.config(), parts)?)
    }

    /// Trains to the end; the values of all parameters.
    pub(super) fn finish(&self, gpu: &Gpu, eager: &mut Eager) -> Result<(GrowingTrainer, Vec<f32>), Broken> {
        let mut trainer = self.trainer(gpu)?;
        trainer.run(eager, &mut NullObserver)?;
        let values = values_of(trainer.seeds().model().parameters())?;
        Ok((trainer, values))
    }

    fn config(&self) -> TrainConfig {
        train_config(self.batch_size, self.microbatches, self.optimizer, self.conflict, self.execution)
    }
}

/// Settings that all checks share.
pub(super) fn train_config(
    batch_size: usize,
    microbatches: usize,
    optimizer: OptimizerConfig,
    conflict: ConflictResolution,
    execution: ExecutionConfig,
) -> TrainConfig {
    let count = |n| NonZeroUsize::new(n).expect("a literal above 0");
    TrainConfig {
        batch: BatchConfig { batch_size: count(batch_size), microbatches_per_step: count(microbatches) },
        optimizer,
        // The learning rate moves, so that a recorded step that kept one would be found out.
        schedule: ScheduleConfig { learning_rate: 0.01, warmup_steps: 20, decay: Decay::Constant },
        clip_norm: Some(1.0),
        conflict,
        eval_batch_size: count(512),
        conflict_warn: 1.0,
        measure_conflicts: false,
        cagrad_radius: 0.4,
        execution,
    }
}

/// Random samples of random classes.
pub(super) fn samples(count: usize, inputs: usize, classes: usize, device: &Device) -> Result<Dataset, Broken> {
    let mut draw = Draw::new(5, device);
    let targets: Vec<u32> = (0..u32::try_from(count).expect("few samples"))
        .map(|i| (i * 7 + i / 3) % u32::try_from(classes).expect("few classes"))
        .collect();
    let inputs = draw.uniform((count, inputs), 1.0)?;
    Ok(Dataset::new(inputs, Tensor::from_vec(targets, count, device)?, classes)?)
}

/// All elements, parameter after parameter.
pub(super) fn values_of(parameters: &[Parameter]) -> Result<Vec<f32>, Broken> {
    let mut reads = HostReads::default();
    let mut values = Vec::new();
    for parameter in parameters {
        values.extend(read_vec(parameter.var.as_tensor(), "check", &mut reads)?);
    }
    Ok(values)
}

/// Elements whose bits differ; all of them when the counts differ.
pub(super) fn differing(a: &[f32], b: &[f32]) -> usize {
    if a.len() != b.len() {
        return a.len().max(b.len());
    }
    a.iter().zip(b).filter(|(a, b)| a.to_bits() != b.to_bits()).count()
}
