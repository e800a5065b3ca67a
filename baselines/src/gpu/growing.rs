//! The real trainer with the real seed manager and a policy that grows by the clock.

use std::sync::Arc;

use candle_core::{Device, Tensor};
use kasmina::host::HostConfig;
use kasmina::isolation::IsolationConfig;
use kasmina::weight::ElementType;
use kasmina::{ActivationCheckpointing, Kasmina, KasminaConfig};
use leyline::clock::Clock;
use leyline::id::RunId;
use leyline::model::{Parameter, TrainableModel};
use leyline::region::Eager;
use leyline::seed::{AttributionMode, SeedManager};
use leyline::telemetry::{NullRecorder, Recorder};
use tamiyo::policy::FixedConfig;
use tamiyo::{PolicyKind, Tamiyo, TamiyoConfig};
use tolaria::aggregate::ConflictResolution;
use tolaria::batch::Dataset;
use tolaria::host_read::{HostReads, read_vec};
use tolaria::optim::OptimizerConfig;
use tolaria::task::{Classification, NextToken, Task};
use tolaria::trainer::{
    ExecutionConfig, NullObserver, Observer, Parts, Splits, StepMode, TrainConfig, TrainPrecision, Trainer,
};

use super::report::Broken;
use crate::gpu::open::Gpu;
use crate::models::Draw;
use crate::trainer::train_config;

/// A run of a network that grows.
#[derive(Debug, Clone)]
pub(crate) struct Growing {
    pub(crate) host: HostConfig,
    pub(crate) num_samples: usize,
    pub(crate) batch_size: usize,
    pub(crate) microbatches: usize,
    pub(crate) epochs: u64,
    /// Epochs of each stage of a seed.
    pub(crate) stage_epochs: u64,
    pub(crate) optimizer: OptimizerConfig,
    pub(crate) conflict: ConflictResolution,
    pub(crate) execution: ExecutionConfig,
    /// Whether the data stay on the host.
    pub(crate) data_on_host: bool,
    pub(crate) seed_width: usize,
    pub(crate) precision: TrainPrecision,
    pub(crate) checkpointing: ActivationCheckpointing,
}

pub(crate) const CLASSES: usize = 10;

/// Steps that run in one way, and all else as by default.
pub(crate) fn in_mode(mode: StepMode) -> ExecutionConfig {
    ExecutionConfig { mode, ..ExecutionConfig::default() }
}

/// A host of linear layers.
pub(crate) fn perceptron(inputs: usize, hidden: Vec<usize>) -> HostConfig {
    HostConfig::Mlp { inputs, hidden, classes: CLASSES }
}

/// The trainer of such a run.
pub(crate) type GrowingTrainer = Trainer<Kasmina, Tamiyo>;

impl Growing {
    /// A small network: 26 steps of 8 samples per epoch and one of 5, or 7 of up to 32.
    pub(crate) fn small(microbatches: usize, optimizer: OptimizerConfig) -> Self {
        Self {
            host: perceptron(16, vec![32, 24]),
            num_samples: 205,
            batch_size: 8,
            microbatches,
            // More than 1 000 steps.
            epochs: if microbatches == 1 { 40 } else { 150 },
            stage_epochs: 2,
            optimizer,
            conflict: ConflictResolution::PcGrad,
            execution: in_mode(StepMode::Graph),
            data_on_host: false,
            seed_width: 8,
            precision: TrainPrecision::F32,
            checkpointing: ActivationCheckpointing::None,
        }
    }

    pub(crate) fn with_mode(&self, mode: StepMode) -> Self {
        Self { execution: ExecutionConfig { mode, ..self.execution.clone() }, ..self.clone() }
    }

    pub(crate) fn trainer(&self, gpu: &Gpu) -> Result<GrowingTrainer, Broken> {
        self.trainer_on(&gpu.device, &gpu.clock)
    }

    /// The trainer on a device.
    pub(crate) fn trainer_on(&self, device: &Device, clock: &Arc<dyn Clock>) -> Result<GrowingTrainer, Broken> {
        Ok(Trainer::new(self.config(), self.parts_on(device, clock)?)?)
    }

    /// What the trainer is made of.
    pub(crate) fn parts_on(&self, device: &Device, clock: &Arc<dyn Clock>) -> Result<Parts<Kasmina, Tamiyo>, Broken> {
        let run_id = RunId::new("graph-check").expect("a literal of allowed characters");
        let recorder: Arc<dyn Recorder> = Arc::new(NullRecorder);
        let clock = Arc::clone(clock);
        let seeds_config = KasminaConfig {
            attribution: AttributionMode::Alpha,
            seed_width: self.seed_width,
            activation_checkpointing: self.checkpointing,
            dtype: ElementType::of(self.precision.of_parameters()).unwrap_or_default(),
            // A false alarm of the monitor would end the run.
            isolation: IsolationConfig { check_every_epochs: 1, strict: true },
            ..KasminaConfig::new(self.host.clone())
        };
        let seeds = Kasmina::new(seeds_config, device, Arc::clone(&clock), Arc::clone(&recorder))
            .map_err(|error| Broken(format!("the seed manager: {error}")))?;
        let policy = TamiyoConfig {
            policy: PolicyKind::Fixed,
            fixed: FixedConfig {
                training_epochs: self.stage_epochs,
                ramp_epochs: self.stage_epochs,
                holding_epochs: self.stage_epochs,
                ..FixedConfig::default()
            },
            ..TamiyoConfig::default()
        };
        let policy = Tamiyo::new(policy, Arc::clone(&clock), Arc::clone(&recorder))?;
        let home = if self.data_on_host { &Device::Cpu } else { device };
        let (train, task) = self.problem(home)?;
        Ok(Parts {
            run_id,
            seed: 3,
            num_epochs: self.epochs,
            max_steps: None,
            device: device.clone(),
            data: Splits { validation: train.clone(), test: train.clone(), train },
            task,
            seeds,
            policy,
            checkpoints: None,
            recorder,
            clock,
        })
    }

    /// What the host is for: tokens to go on from, or samples of classes.
    fn problem(&self, home: &Device) -> Result<(Dataset, Arc<dyn Task>), Broken> {
        if let HostConfig::LanguageModel { context, vocabulary, .. } = self.host {
            return Ok((windows(self.num_samples, context, vocabulary, home)?, Arc::new(NextToken::new(vocabulary))));
        }
        let inputs = self.host.sample_shape().iter().product();
        Ok((samples(self.num_samples, inputs, CLASSES, home)?, Arc::new(Classification::new(CLASSES))))
    }

    /// Trains to the end; the values of all parameters.
    pub(crate) fn finish(&self, gpu: &Gpu, eager: &mut Eager) -> Result<(GrowingTrainer, Vec<f32>), Broken> {
        self.finish_seen_by(&mut NullObserver, gpu, eager)
    }

    /// The same, with the observer told.
    pub(crate) fn finish_seen_by(
        &self,
        observer: &mut dyn Observer,
        gpu: &Gpu,
        eager: &mut Eager,
    ) -> Result<(GrowingTrainer, Vec<f32>), Broken> {
        let mut trainer = self.trainer(gpu)?;
        trainer.run(eager, observer)?;
        let values = values_of(trainer.seeds().model().parameters())?;
        Ok((trainer, values))
    }

    pub(crate) fn config(&self) -> TrainConfig {
        let conflict = self.conflict;
        let config = train_config(self.batch_size, self.microbatches, self.optimizer, conflict, self.execution.clone());
        TrainConfig { precision: self.precision, ..config }
    }
}

/// Random samples of random classes.
pub(crate) fn samples(count: usize, inputs: usize, classes: usize, device: &Device) -> Result<Dataset, Broken> {
    let mut draw = Draw::new(5, device);
    let targets: Vec<u32> = (0..u32::try_from(count).expect("few samples"))
        .map(|i| (i * 7 + i / 3) % u32::try_from(classes).expect("few classes"))
        .collect();
    let inputs = draw.uniform((count, inputs), 1.0)?;
    Ok(Dataset::new(inputs, Tensor::from_vec(targets, count, device)?)?)
}

/// Windows of one random text, (count, context), and the tokens that follow.
fn windows(count: usize, context: usize, vocabulary: usize, device: &Device) -> Result<Dataset, Broken> {
    let mut draw = Draw::new(8, device);
    let bound = u32::try_from(vocabulary).expect("few tokens");
    let text: Vec<u32> = (0..=count * context).map(|_| draw.below(bound)).collect();
    let rows = |tokens: &[u32]| Tensor::from_slice(tokens, (count, context), device);
    Ok(Dataset::new(rows(&text[..count * context])?, rows(&text[1..])?)?)
}

/// All elements, parameter after parameter.
pub(crate) fn values_of(parameters: &[Parameter]) -> Result<Vec<f32>, Broken> {
    let mut reads = HostReads::default();
    let mut values = Vec::new();
    for parameter in parameters {
        values.extend(read_vec(parameter.var.as_tensor(), "check", &mut reads)?);
    }
    Ok(values)
}

/// Elements whose bits differ; all of them when the counts differ.
pub(crate) fn differing(a: &[f32], b: &[f32]) -> usize {
    if a.len() != b.len() {
        return a.len().max(b.len());
    }
    a.iter().zip(b).filter(|(a, b)| a.to_bits() != b.to_bits()).count()
}
