//! A small trainer around the seed manager: gives orders, takes steps, ends epochs.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::sync::Arc;
use std::time::Duration;

use candle_core::{DType, Device, Tensor, Var};
use kasmina::blueprint::Registry;
use kasmina::host::{HostConfig, Pool};
use kasmina::weight::ElementType;
use kasmina::{Error, GraftedModel, Kasmina, KasminaConfig};
use leyline::batch::Batch;
use leyline::clock::Clock;
use leyline::command::{AlphaCurve, AlphaRamp, Operation, Order};
use leyline::id::{BlueprintId, EpochIndex, SeedId, SlotId, StepIndex};
use leyline::model::{AlphaOverride, Pass, TrainableModel};
use leyline::region::Eager;
use leyline::seed::{
    Applied, Counterfactual, Evidence, GradientHealth, SeedManager, SeedStage, SeedState, SlotState, Transition,
};
use leyline::task::Task;
use leyline::telemetry::Recorder;
use leyline::unit::Alpha;
use leyline_testkit::clock::ManualClock;
use leyline_testkit::cross_entropy::CrossEntropy;
use leyline_testkit::recording_recorder::RecordingRecorder;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

pub(crate) const NUM_SAMPLES: usize = 6;

/// Every kind of host in every dtype: what is to hold whatever the network runs through this list.
pub(crate) fn configurations() -> Vec<KasminaConfig> {
    let dtypes = [ElementType::F32, ElementType::F64, ElementType::Bf16];
    let hosts = hosts().into_iter().chain([language_model()]).map(config);
    hosts.chain([around()]).flat_map(|config| dtypes.map(|dtype| KasminaConfig { dtype, ..config.clone() })).collect()
}

/// Shape of one sample.
fn sample_shape(host: &HostConfig) -> Vec<usize> {
    match host {
        HostConfig::Mlp { inputs, .. } | HostConfig::Transformer { inputs, .. } => vec![*inputs],
        HostConfig::Cnn1d { length, .. } => vec![*length],
        HostConfig::Cnn2d { height, width, input_channels, .. } => vec![*input_channels, *height, *width],
        HostConfig::LanguageModel { context, .. } => vec![*context],
    }
}

/// Every kind of host that takes the samples of [`batch`], each small and starved.
pub(crate) fn hosts() -> [HostConfig; 4] {
    [mlp(), cnn(), cnn2d(), transformer()]
}

pub(crate) fn mlp() -> HostConfig {
    HostConfig::Mlp { inputs: 12, hidden: vec![4, 3], classes: 5 }
}

pub(crate) fn cnn() -> HostConfig {
    HostConfig::Cnn1d { length: 12, channels: vec![3, 4], kernel: 3, stride: 2, classes: 5, pool: Pool::Mean }
}

pub(crate) fn cnn2d() -> HostConfig {
    HostConfig::Cnn2d {
        height: 3,
        width: 4,
        input_channels: 1,
        channels: vec![3, 4],
        kernel: 3,
        stride: 2,
        classes: 5,
        pool: Pool::Mean,
    }
}

pub(crate) fn transformer() -> HostConfig {
    HostConfig::Transformer { inputs: 12, patch: 3, width: 4, heads: 2, layers: 1, mlp_ratio: 2, classes: 5 }
}

pub(crate) fn language_model() -> HostConfig {
    HostConfig::LanguageModel { context: 3, width: 4, heads: 2, layers: 1, mlp_ratio: 2, tied: true, vocabulary: 5 }
}

pub(crate) fn config(host: HostConfig) -> KasminaConfig {
    // Seeds in the shadow learn from all samples, whatever they cost.
    KasminaConfig { seed_width: 8, init_seed: 11, noise_blueprint: true, shadow_cost: None, ..KasminaConfig::new(host) }
}

/// The MLP with slots around its hidden layers: `around0` sees `input`, `around1` sees `hidden0`.
pub(crate) fn around() -> KasminaConfig {
    let blueprints = ["mlp", "noise", "norm_mlp", "widen"].map(str::to_owned).to_vec();
    KasminaConfig { blueprints: Some(blueprints), ..config(mlp()) }
}

/// This blueprint, or the one that stands in for it around a layer, where only one that is useful fits.
pub(crate) fn fitting<'a>(slot_id: &str, blueprint: &'a str) -> &'a str {
    if slot_id.starts_with("around") && blueprint != "noise" { "widen" } else { blueprint }
}

pub(crate) fn slot(id: &str) -> SlotId {
    SlotId::new(id).unwrap()
}

pub(crate) fn alpha(value: f64) -> Alpha {
    Alpha::new(value).unwrap()
}

pub(crate) fn ramp(target: f64, steps: u64) -> AlphaRamp {
    AlphaRamp { target: alpha(target), steps, curve: AlphaCurve::Cosine }
}

/// What all networks here are trained for.
pub(crate) fn task() -> Arc<dyn Task> {
    Arc::new(Pooled)
}

/// [`CrossEntropy`] of the mean over positions, where there are any: then the targets of one host serve all.
#[derive(Debug)]
struct Pooled;

impl Task for Pooled {
    fn describe(&self) -> String {
        CrossEntropy.describe()
    }
    fn losses(&self, outputs: &Tensor, targets: &Tensor) -> candle_core::Result<Tensor> {
        CrossEntropy.losses(&pooled(outputs)?, targets)
    }
    fn mean_loss(&self, outputs: &Tensor, targets: &Tensor) -> candle_core::Result<Tensor> {
        CrossEntropy.mean_loss(&pooled(outputs)?, targets)
    }
    fn hits(&self, outputs: &Tensor, targets: &Tensor) -> candle_core::Result<Option<Tensor>> {
        CrossEntropy.hits(&pooled(outputs)?, targets)
    }
    fn check_targets(&self, targets: &Tensor) -> candle_core::Result<()> {
        CrossEntropy.check_targets(targets)
    }
}

fn pooled(logits: &Tensor) -> candle_core::Result<Tensor> {
    if logits.rank() == 3 { logits.mean(1) } else { Ok(logits.clone()) }
}

/// The same as candle computes it.
pub(crate) fn cross_entropy(logits: &Tensor, targets: &Tensor) -> candle_core::Result<Tensor> {
    candle_nn::loss::cross_entropy(&pooled(logits)?, targets)
}

/// A batch that is the same for the same `variant`.
pub(crate) fn batch(variant: u32) -> Batch {
    batch_for(&mlp(), variant)
}

/// The same for any host.
pub(crate) fn batch_for(host: &HostConfig, variant: u32) -> Batch {
    let mut rng = ChaCha8Rng::seed_from_u64(u64::from(variant));
    let shape: Vec<usize> = std::iter::once(NUM_SAMPLES).chain(sample_shape(host)).collect();
    let inputs: Vec<f32> = (0..shape.iter().product()).map(|_| rng.random_range(-1.0..1.0)).collect();
    let inputs = Tensor::from_vec(inputs, shape, &Device::Cpu).unwrap();
    let inputs = if host.context().is_some() { as_tokens(&inputs) } else { inputs };
    let classes = u32::try_from(host.num_outputs()).unwrap();
    let targets: Vec<u32> = (0_u32..).take(NUM_SAMPLES).map(|i| (i + variant) % classes).collect();
    Batch { inputs, targets: Tensor::from_vec(targets, NUM_SAMPLES, &Device::Cpu).unwrap() }
}

/// Numbers from -1 to 1 as tokens below 5.
fn as_tokens(inputs: &Tensor) -> Tensor {
    inputs.affine(2.49, 2.5).unwrap().to_dtype(DType::U32).unwrap()
}

/// The elements with every bit they have, whatever their type: each fits into `f64`.
#[allow(clippy::disallowed_methods, reason = "tests look at values")]
pub(crate) fn exact_bits(tensor: &Tensor) -> Vec<u64> {
    let wide = tensor.flatten_all().unwrap().to_dtype(DType::F64).unwrap();
    wide.to_vec1::<f64>().unwrap().into_iter().map(f64::to_bits).collect()
}

#[allow(clippy::disallowed_methods, reason = "tests look at values")]
pub(crate) fn bits(tensor: &Tensor) -> Vec<u32> {
    // Exact for every narrower type.
    tensor
        .to_dtype(DType::F32)
        .unwrap()
        .flatten_all()
        .unwrap()
        .to_vec1::<f32>()
        .unwrap()
        .into_iter()
        .map(f32::to_bits)
        .collect()
}

/// Everything a refusal must leave alone.
pub(crate) type Fingerprint = (Vec<SeedState>, Vec<SlotState>, String, Vec<u32>, Vec<Vec<u32>>);

pub(crate) struct Rig {
    pub(crate) manager: Kasmina,
    pub(crate) eager: Eager,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) recorder: Arc<RecordingRecorder>,
    pub(crate) step: StepIndex,
    pub(crate) epoch: EpochIndex,
}

impl Rig {
    pub(crate) fn new(config: KasminaConfig) -> Self {
        Self::beside(config, Eager::acquire().unwrap())
    }

    /// There is one token per thread: a second rig takes over that of the first.
    pub(crate) fn beside(config: KasminaConfig, eager: Eager) -> Self {
        let build = |clock, recorder| Kasmina::new(config, &Device::Cpu, clock, recorder);
        Self::around(build, eager)
    }

    /// With blueprints of the test's choice.
    pub(crate) fn with_registry(config: KasminaConfig, registry: Registry, eager: Eager) -> Self {
        let build = |clock, recorder| Kasmina::with_registry(config, registry, &Device::Cpu, clock, recorder);
        Self::around(build, eager)
    }

    fn around(build: impl FnOnce(Arc<dyn Clock>, Arc<dyn Recorder>) -> Result<Kasmina, Error>, eager: Eager) -> Self {
        let clock = Arc::new(ManualClock::new(Duration::from_secs(1_000_000)));
        let recorder = Arc::new(RecordingRecorder::new());
        let mut manager = build(clock.clone(), recorder.clone()).expect("a manager");
        manager.train_for(&eager, &task()).expect("a task");
        Self { manager, eager, clock, recorder, step: StepIndex(0), epoch: EpochIndex(0) }
    }

    pub(crate) fn send(&mut self, operation: Operation) -> Result<Applied, Error> {
        self.manager.apply(&mut self.eager, &Order::new(operation, "test"))
    }

    #[track_caller]
    pub(crate) fn germinate(&mut self, slot_id: &str, blueprint: &str) -> SeedId {
        let blueprint = BlueprintId::new(fitting(slot_id, blueprint)).unwrap();
        let blend = self.manager.config().offered_blend.clone();
        self.send(Operation::Germinate { slot: slot(slot_id), blueprint, blend }).unwrap().seed
    }

    pub(crate) fn end_step(&mut self) {
        self.step = self.step.next();
        self.manager.finish_step(&mut self.eager, self.step).unwrap();
    }

    pub(crate) fn end_epoch(&mut self) -> Vec<Transition> {
        self.epoch = self.epoch.next();
        self.manager.finish_epoch(&mut self.eager, self.epoch).unwrap()
    }

    /// Evidence on which every gate opens.
    pub(crate) fn good_evidence(&mut self, seed: SeedId) {
        self.evidence(seed, 0.2);
    }

    /// A measured gain, nats per sample, with a healthy gradient, of the epoch that is not over yet.
    pub(crate) fn evidence(&mut self, seed: SeedId, loss_gain: f64) {
        let counterfactual =
            Some(Counterfactual { loss_gain, std_error: 0.01, accuracy_gain_pp: Some(1.5), num_samples: 64 });
        let gradient = Some(GradientHealth { norm: 0.1, host_ratio: Some(1.0), health: 1.0 });
        let evidence = Evidence { seed, epoch: self.epoch.next(), counterfactual, gradient };
        self.manager.record_evidence(&self.eager, &[evidence]).unwrap();
    }

    /// The first batch of an epoch, where the manager wants to see it.
    pub(crate) fn show_batch(&mut self) {
        if self.manager.wants_batch(&self.eager) {
            let batch = batch_for(&self.manager.config().host, 1);
            self.manager.inspect_batch(&self.eager, &batch).unwrap();
        }
    }

    /// Ends epochs with good evidence until every gate's time is over.
    pub(crate) fn ripen(&mut self, seed: SeedId) {
        for _ in 0..4 {
            self.show_batch();
            self.good_evidence(seed);
            self.end_epoch();
        }
    }

    /// Brings a newly germinated seed to a stage by commands and epochs.
    #[track_caller]
    pub(crate) fn bring_to(&mut self, seed: SeedId, stage: SeedStage) {
        let path: &[SeedStage] = match stage {
            SeedStage::Germinated => &[],
            SeedStage::Training => &[SeedStage::Training],
            SeedStage::Blending => &[SeedStage::Training, SeedStage::Blending],
            SeedStage::Holding => &[SeedStage::Training, SeedStage::Blending, SeedStage::Holding],
            SeedStage::Fossilized => {
                &[SeedStage::Training, SeedStage::Blending, SeedStage::Holding, SeedStage::Fossilized]
            }
            SeedStage::Pruned | SeedStage::Embargoed | SeedStage::Resetting => {
                self.send(Operation::Cull { seed }).unwrap();
                while self.stage(seed) != Some(stage) {
                    self.end_epoch();
                }
                return;
            }
            SeedStage::Dormant => panic!("no seed is dormant"),
        };
        for &next in path {
            let operation = match next {
                SeedStage::Training => Operation::StartTraining { seed },
                SeedStage::Blending => Operation::StartBlending { seed, ramp: ramp(1.0, 0) },
                SeedStage::Holding => Operation::Hold { seed },
                _ => Operation::Fossilize { seed },
            };
            self.send(operation).unwrap();
            self.ripen(seed);
        }
        assert_eq!(self.stage(seed), Some(stage));
    }

    pub(crate) fn states(&self) -> Vec<SeedState> {
        self.manager.export_seed_states(&self.eager).unwrap()
    }

    pub(crate) fn state(&self, seed: SeedId) -> Option<SeedState> {
        self.states().into_iter().find(|state| state.seed_id == seed)
    }

    pub(crate) fn stage(&self, seed: SeedId) -> Option<SeedStage> {
        self.state(seed).map(|state| state.stage)
    }

    pub(crate) fn model(&self) -> &GraftedModel {
        self.manager.model()
    }

    pub(crate) fn evaluate(&self, overrides: &[AlphaOverride]) -> Vec<u32> {
        let outputs = self.model().forward(&batch(1).inputs, Pass::Evaluate { overrides }).unwrap();
        assert!(outputs.shadows.is_empty());
        bits(&outputs.logits)
    }

    /// Main logits of a training pass.
    pub(crate) fn train_logits(&self) -> Vec<u32> {
        bits(&self.model().forward(&batch(1).inputs, Pass::Train).unwrap().logits)
    }

    /// One step of plain gradient descent on the main loss and every side loss.
    pub(crate) fn descend(&mut self, variant: u32) {
        let batch = batch_for(&self.manager.config().host, variant);
        let outputs = self.model().forward(&batch.inputs, Pass::Train).unwrap();
        for logits in std::iter::once(&outputs.logits).chain(outputs.shadows.iter().map(|shadow| &shadow.logits)) {
            let gradients = cross_entropy(logits, &batch.targets).unwrap().backward().unwrap();
            for parameter in self.model().parameters() {
                if let Some(gradient) = gradients.get(&parameter.var) {
                    let next = (parameter.var.as_tensor() - (gradient * 0.1).unwrap()).unwrap();
                    parameter.var.set(&next.detach()).unwrap();
                }
            }
        }
        self.end_step();
    }

    pub(crate) fn parameter_bits(&self) -> Vec<(String, Vec<u32>)> {
        self.model().parameters().iter().map(|p| (p.name.clone(), bits(&p.var))).collect()
    }

    pub(crate) fn seed_vars(&self, seed: SeedId) -> Vec<Var> {
        self.manager.seed_parameters(seed).unwrap().iter().map(|parameter| parameter.var.clone()).collect()
    }

    /// Fills every parameter of a seed.
    pub(crate) fn fill(&self, seed: SeedId, value: f32) {
        for var in self.seed_vars(seed) {
            let filled = (Tensor::ones(var.shape(), DType::F32, &Device::Cpu).unwrap() * f64::from(value)).unwrap();
            var.set(&filled.to_dtype(var.dtype()).unwrap()).unwrap();
        }
    }

    pub(crate) fn fingerprint(&self) -> Fingerprint {
        let slots = self.manager.export_slot_states(&self.eager).unwrap();
        let layout = format!("{:?}", self.model().layout());
        let outputs = self.model().forward(&batch(1).inputs, Pass::Train).unwrap();
        let shadows = outputs.shadows.iter().map(|shadow| bits(&shadow.logits)).collect();
        (self.states(), slots, layout, bits(&outputs.logits), shadows)
    }
}
