//! Gradient descent on a perceptron that is too small, and that a seed of kasmina widens: data, loss, loop and decisions are
//! this crate's own.
#![forbid(unsafe_code)]

use std::error::Error;
use std::sync::Arc;

use candle_core::{D, Device, Tensor};
use candle_nn::loss::cross_entropy;
use candle_nn::ops::log_softmax;
use kasmina::host::HostConfig;
use kasmina::{GraftedModel, Kasmina, KasminaConfig};
use leyline::batch::Batch;
use leyline::clock::SystemClock;
use leyline::command::{AlphaCurve, AlphaRamp, Operation, Order};
use leyline::id::{BlueprintId, EpochIndex, SeedId, SlotId, StepIndex};
use leyline::model::{AlphaOverride, Pass, TrainableModel};
use leyline::region::Eager;
use leyline::seed::{Counterfactual, Evidence, GradientHealth, SeedManager, SeedStage};
use leyline::task::Task;
use leyline::telemetry::NullRecorder;
use leyline::unit::Alpha;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const STEPS_PER_EPOCH: u64 = 50;
const LEARNING_RATE: f64 = 0.1;

/// How the network was before a seed was planted, and after it had become permanent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Growth {
    /// Loss in nats per sample, before and after.
    pub loss: (f32, f32),
    /// Trainable elements, before and after.
    pub num_elements: (usize, usize),
    /// Epochs until the seed was permanent.
    pub num_epochs: u64,
}

/// What the network is trained for: kasmina measures with it whether seeds leave the host alone.
#[derive(Debug)]
struct CrossEntropy;

impl Task for CrossEntropy {
    fn describe(&self) -> String {
        "classification of 4".to_owned()
    }

    fn losses(&self, logits: &Tensor, targets: &Tensor) -> candle_core::Result<Tensor> {
        log_softmax(logits, D::Minus1)?.gather(&targets.unsqueeze(1)?, 1)?.squeeze(1)?.neg()
    }

    fn check_targets(&self, _targets: &Tensor) -> candle_core::Result<()> {
        Ok(())
    }
}

/// Trains until a seed has become permanent.
///
/// # Errors
/// When kasmina refuses a step of the seed's life.
pub fn grow() -> Result<Growth> {
    let host = HostConfig::Mlp { inputs: 2, hidden: vec![3], classes: 4 };
    let config = KasminaConfig { seed_width: 8, ..KasminaConfig::new(host) };
    let (clock, recorder) = (Arc::new(SystemClock::new()), Arc::new(NullRecorder));
    let mut seeds = Kasmina::new(config, &Device::Cpu, clock, recorder)?;
    let mut eager = Eager::acquire()?;
    let task: Arc<dyn Task> = Arc::new(CrossEntropy);
    seeds.train_for(&eager, &task)?;
    let data = grid()?;
    let (mut before, mut refusal, mut step) = (None, None, 0);
    for epoch in 1..=60 {
        if seeds.wants_batch(&eager) {
            seeds.inspect_batch(&eager, &data)?;
        }
        let mut squares = Vec::new();
        for _ in 0..STEPS_PER_EPOCH {
            squares.push(descend(seeds.model(), &data)?);
            step += 1;
            seeds.finish_step(&mut eager, StepIndex(step))?;
        }
        let state = seeds.export_seed_states(&eager)?.into_iter().next();
        if let Some(state) = &state {
            let counterfactual = Some(gain(seeds.model(), state.seed_id, &data)?);
            let (seed, epoch, gradient) = (state.seed_id, EpochIndex(epoch), health(&squares));
            seeds.record_evidence(&eager, &[Evidence { seed, epoch, counterfactual, gradient }])?;
        }
        seeds.finish_epoch(&mut eager, EpochIndex(epoch))?;

        let now = (mean(&losses(seeds.model(), &data, &[])?), seeds.model().layout().num_elements());
        let operation = match state.map(|state| (state.stage, state.seed_id)) {
            None if epoch < 10 => continue,
            None => Operation::germinate(SlotId::new("input")?, BlueprintId::new("mlp")?),
            Some((SeedStage::Germinated, seed)) => Operation::StartTraining { seed },
            Some((SeedStage::Training, seed)) => {
                let ramp = AlphaRamp { target: Alpha::ONE, steps: STEPS_PER_EPOCH, curve: AlphaCurve::Cosine };
                Operation::StartBlending { seed, ramp }
            }
            Some((SeedStage::Blending, seed)) => Operation::Hold { seed },
            Some((SeedStage::Holding, seed)) => Operation::Fossilize { seed },
            Some(_) => {
                let (loss, num_elements) = before.ok_or("no seed was planted")?;
                return Ok(Growth { loss: (loss, now.0), num_elements: (num_elements, now.1), num_epochs: epoch });
            }
        };
        before.get_or_insert(now);
        // A gate that is not open yet refuses; the next epoch asks again.
        refusal = seeds.apply(&mut eager, &Order::new(operation, "its turn")).err();
    }
    Err(format!("the seed did not become permanent: {refusal:?}").into())
}

/// A grid of points, and which of four classes each is of: whether it is far from the one axis, and from the other.
fn grid() -> Result<Batch> {
    let at = |i: u32| (f64::from(i) - 7.5) as f32 / 4.0;
    let points: Vec<[f32; 2]> = (0..256).map(|i| [at(i % 16), at(i / 16)]).collect();
    let class = |[x, y]: &[f32; 2]| u32::from(x.abs() > 1.0) * 2 + u32::from(y.abs() > 1.0);
    let targets: Vec<u32> = points.iter().map(class).collect();
    let inputs = Tensor::from_vec(points.concat(), (points.len(), 2), &Device::Cpu)?;
    Ok(Batch { inputs, targets: Tensor::new(targets, &Device::Cpu)? })
}

/// A step of gradient descent on the main loss, and on the side loss of a seed that trains in the shadow. The squared norm of
/// the gradient of what seeds own.
fn descend(model: &GraftedModel, data: &Batch) -> Result<f64> {
    let outputs = model.forward(&data.inputs, Pass::Train)?;
    let mut square = 0.0;
    let mut losses = vec![cross_entropy(&outputs.logits, &data.targets)?];
    for shadow in &outputs.shadows {
        losses.push(cross_entropy(&shadow.logits, &shadow.targets(&data.targets)?)?);
    }
    for loss in losses {
        let gradients = loss.backward()?;
        for parameter in model.parameters() {
            if let Some(gradient) = gradients.get(&parameter.var) {
                parameter.var.set(&(parameter.var.as_tensor() - (gradient * LEARNING_RATE)?)?)?;
                if parameter.name.starts_with("seed.") {
                    square += f64::from(gradient.sqr()?.sum_all()?.to_scalar::<f32>()?);
                }
            }
        }
    }
    Ok(square)
}

fn losses(model: &GraftedModel, data: &Batch, overrides: &[AlphaOverride]) -> Result<Vec<f32>> {
    let logits = model.forward(&data.inputs, Pass::Evaluate { overrides })?.logits;
    Ok(CrossEntropy.losses(&logits, &data.targets)?.to_vec1()?)
}

/// What the loss is lower by with the seed than without, sample by sample.
fn gain(model: &GraftedModel, seed: SeedId, data: &Batch) -> Result<Counterfactual> {
    let at = |alpha| losses(model, data, &[AlphaOverride { seed, alpha }]);
    let (on, off) = (at(Alpha::ONE)?, at(Alpha::ZERO)?);
    let gains: Vec<f32> = off.iter().zip(&on).map(|(off, on)| off - on).collect();
    let (n, mean) = (gains.len() as f64, f64::from(mean(&gains)));
    let variance = gains.iter().map(|gain| (f64::from(*gain) - mean).powi(2)).sum::<f64>() / (n - 1.0);
    let std_error = (variance / n).sqrt();
    Ok(Counterfactual { loss_gain: mean, std_error, accuracy_gain_pp: None, num_samples: gains.len() as u64 })
}

/// How the gradient of the seed was over the steps of an epoch.
fn health(squares: &[f64]) -> Option<GradientHealth> {
    let (n, healthy) = (squares.len() as f64, squares.iter().filter(|square| square.is_finite() && **square > 0.0));
    let norm = (squares.iter().sum::<f64>() / n).sqrt();
    Some(GradientHealth { norm, host_ratio: None, health: healthy.count() as f64 / n })
}

fn mean(values: &[f32]) -> f32 {
    values.iter().sum::<f32>() / values.len() as f32
}
