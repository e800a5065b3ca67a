//! The life of one seed: a host that is too small gets a seed, which trains in its shadow, blends in on measured
//! evidence and becomes permanent. Runs on the CPU in a second or two.
//!
//! The trainer here is the smallest possible; the real one lives elsewhere.
#![allow(clippy::print_stdout, reason = "an example shows what happens")]
#![allow(clippy::disallowed_methods, reason = "an example reads a few numbers per epoch")]

use std::error::Error;
use std::sync::Arc;

use candle_core::{D, Device, Tensor};
use candle_nn::loss::cross_entropy;
use candle_nn::ops::log_softmax;
use kasmina::host::HostConfig;
use kasmina::{Kasmina, KasminaConfig};
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
use leyline_testkit::cross_entropy::CrossEntropy;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const INPUTS: usize = 6;
const CLASSES: usize = 4;
const STEPS_PER_EPOCH: u64 = 100;
const LEARNING_RATE: f64 = 0.1;

fn main() -> Result<()> {
    let host = HostConfig::Mlp { inputs: INPUTS, hidden: vec![3], classes: CLASSES };
    let config = KasminaConfig { init_seed: 3, ..KasminaConfig::new(host) };
    let clock = Arc::new(SystemClock::new());
    let mut manager = Kasmina::new(config, &Device::Cpu, clock, Arc::new(NullRecorder))?;
    let (eager, task): (Eager, Arc<dyn Task>) = (Eager::acquire()?, Arc::new(CrossEntropy));
    manager.train_for(&eager, &task)?;
    let mut trainer = Trainer { manager, eager, rng: ChaCha8Rng::seed_from_u64(1), step: 0 };
    let held_out = trainer.batch(512)?;

    println!("epoch  stage        alpha  held-out loss   gain of the seed");
    let mut seed = None;
    for epoch in 1..=16 {
        let gradient = trainer.epoch(seed)?;
        let eager = &trainer.eager;
        let mut gain = None;
        if let Some(seed) = seed.filter(|_| gradient.is_some()) {
            let counterfactual = trainer.counterfactual(seed, &held_out)?;
            let evidence = Evidence { seed, epoch: EpochIndex(epoch), counterfactual: Some(counterfactual), gradient };
            trainer.manager.record_evidence(eager, &[evidence])?;
            gain = Some(counterfactual);
        }
        trainer.manager.finish_epoch(&mut trainer.eager, EpochIndex(epoch))?;
        trainer.show(epoch, &held_out, gain)?;
        trainer.decide(epoch, &mut seed)?;
    }
    let fossilized = trainer.manager.export_seed_states(&trainer.eager)?;
    assert_eq!(fossilized[0].stage, SeedStage::Fossilized, "the seed helps, so the gates let it pass");
    Ok(())
}

struct Trainer {
    manager: Kasmina,
    eager: Eager,
    rng: ChaCha8Rng,
    step: u64,
}

impl Trainer {
    /// The class follows from the sizes of two inputs whatever their sign: three hidden units are not enough for it.
    fn batch(&mut self, num_samples: usize) -> Result<Batch> {
        let inputs: Vec<f32> = (0..num_samples * INPUTS).map(|_| self.rng.random_range(-2.0..2.0)).collect();
        let class = |x: &[f32]| u32::from(x[0].abs() > 1.0) * 2 + u32::from(x[1].abs() > 1.0);
        let targets: Vec<u32> = inputs.chunks(INPUTS).map(class).collect();
        Ok(Batch {
            inputs: Tensor::from_vec(inputs, (num_samples, INPUTS), &Device::Cpu)?,
            targets: Tensor::from_vec(targets, num_samples, &Device::Cpu)?,
        })
    }

    /// One epoch of gradient descent on the main loss and on the side loss of a seed in shadow training.
    fn epoch(&mut self, seed: Option<SeedId>) -> Result<Option<GradientHealth>> {
        let mut squares = Vec::new();
        for step in 0..STEPS_PER_EPOCH {
            let batch = self.batch(64)?;
            if step == 0 && self.manager.wants_batch(&self.eager) {
                self.manager.inspect_batch(&self.eager, &batch)?;
            }
            let model = self.manager.model();
            let outputs = model.forward(&batch.inputs, Pass::Train)?;
            let mut gradients = vec![cross_entropy(&outputs.logits, &batch.targets)?.backward()?];
            for shadow in &outputs.shadows {
                gradients.push(cross_entropy(&shadow.logits, &shadow.targets(&batch.targets)?)?.backward()?);
            }
            let prefix = seed.map(|seed| format!("seed.{:04}.", seed.0));
            let mut square = 0.0;
            for parameter in model.parameters() {
                for gradient in gradients.iter().filter_map(|store| store.get(&parameter.var)) {
                    parameter.var.set(&(parameter.var.as_tensor() - (gradient * LEARNING_RATE)?)?.detach())?;
                    if prefix.as_ref().is_some_and(|prefix| parameter.name.starts_with(prefix)) {
                        square += f64::from(gradient.sqr()?.sum_all()?.to_scalar::<f32>()?);
                    }
                }
            }
            squares.push(square);
            self.step += 1;
            self.manager.finish_step(&mut self.eager, StepIndex(self.step))?;
        }
        let healthy = squares.iter().filter(|square| square.is_finite() && **square > 0.0).count();
        let steps = STEPS_PER_EPOCH as f64;
        let norm = (squares.iter().sum::<f64>() / steps).sqrt();
        Ok((healthy > 0).then_some(GradientHealth { norm, host_ratio: None, health: healthy as f64 / steps }))
    }

    fn losses(&self, batch: &Batch, overrides: &[AlphaOverride]) -> Result<Vec<f32>> {
        let logits = self.manager.model().forward(&batch.inputs, Pass::Evaluate { overrides })?.logits;
        let chosen = log_softmax(&logits, D::Minus1)?.gather(&batch.targets.unsqueeze(1)?, 1)?;
        Ok(chosen.neg()?.flatten_all()?.to_vec1()?)
    }

    /// Held-out loss with the seed on and off, paired sample by sample.
    fn counterfactual(&self, seed: SeedId, batch: &Batch) -> Result<Counterfactual> {
        let on = self.losses(batch, &[AlphaOverride { seed, alpha: Alpha::ONE }])?;
        let off = self.losses(batch, &[AlphaOverride { seed, alpha: Alpha::ZERO }])?;
        let gains: Vec<f64> = off.iter().zip(&on).map(|(off, on)| f64::from(off - on)).collect();
        let n = gains.len() as f64;
        let mean = gains.iter().sum::<f64>() / n;
        let variance = gains.iter().map(|gain| (gain - mean).powi(2)).sum::<f64>() / (n - 1.0);
        let std_error = (variance / n).sqrt();
        Ok(Counterfactual { loss_gain: mean, std_error, accuracy_gain_pp: None, num_samples: gains.len() as u64 })
    }

    /// Asks for the next step of the seed's life; the gates decide.
    fn decide(&mut self, epoch: u64, seed: &mut Option<SeedId>) -> Result<()> {
        let states = self.manager.export_seed_states(&self.eager)?;
        let operation = match (states.first().map(|state| state.stage), *seed) {
            (None, _) if epoch >= 3 => Operation::germinate(SlotId::new("input")?, BlueprintId::new("mlp")?),
            (Some(SeedStage::Germinated), Some(seed)) => Operation::StartTraining { seed },
            (Some(SeedStage::Training), Some(seed)) => {
                let ramp = AlphaRamp { target: Alpha::ONE, steps: 3 * STEPS_PER_EPOCH, curve: AlphaCurve::Cosine };
                Operation::StartBlending { seed, ramp }
            }
            (Some(SeedStage::Blending), Some(seed)) => Operation::Hold { seed },
            (Some(SeedStage::Holding), Some(seed)) => Operation::Fossilize { seed },
            _ => return Ok(()),
        };
        let order = Order::new(operation, "example");
        match self.manager.apply(&mut self.eager, &order) {
            Ok(applied) => {
                println!("       {}", order.operation);
                *seed = Some(applied.seed);
            }
            Err(error) => println!("       {error}"),
        }
        Ok(())
    }

    fn show(&self, epoch: u64, held_out: &Batch, gain: Option<Counterfactual>) -> Result<()> {
        let losses = self.losses(held_out, &[])?;
        let loss = losses.iter().sum::<f32>() / losses.len() as f32;
        let state = self.manager.export_seed_states(&self.eager)?.into_iter().next();
        let (stage, alpha) = state.map_or(("-", 0.0), |state| (state.stage.name(), state.alpha.get()));
        let gain = gain.map_or("-".into(), |gain| format!("{:.4} ± {:.4}", gain.loss_gain, gain.std_error));
        println!("{epoch:5}  {stage:12} {alpha:.3}  {loss:.4}          {gain}");
        Ok(())
    }
}
