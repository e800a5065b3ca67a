//! Who is to blame for steps that cannot be used: a sample, a parameter, a seed.

use std::fmt;

use candle_core::{DType, Device, Tensor};
use leyline::batch::Batch;
use leyline::error::BoxError;
use leyline::id::SeedId;
use leyline::layout::Owner;
use leyline::model::{AlphaOverride, Parameter, Pass, TrainableModel};
use leyline::policy::Policy;
use leyline::region::Eager;
use leyline::seed::SeedManager;
use leyline::unit::Alpha;

use crate::batch::{Dataset, EpochOrder, to_device};
use crate::cpu;
use crate::error::Error;
use crate::host_read;
use crate::trainer::run::Trainer;

/// The first that is found, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Culprit {
    /// A training sample that is not finite, by its number.
    Sample(u32),
    /// A parameter of the host that is not finite, or whose moments or gradient are not; the first by name.
    Parameter(String),
    /// A seed: one of its parameters is, or without it the loss can be used, or it alone suffices to spoil it.
    Seed(SeedId),
    /// The loss, of finite parameters and samples.
    Loss,
    /// Nothing that is still there when it is looked for.
    Nothing,
}

impl fmt::Display for Culprit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sample(sample) => write!(f, "training sample {sample}"),
            Self::Parameter(name) => write!(f, "parameter `{name}`"),
            Self::Seed(seed) => write!(f, "{seed}"),
            Self::Loss => f.write_str("the loss"),
            Self::Nothing => f.write_str("nothing that can still be found"),
        }
    }
}

impl<S: SeedManager, P: Policy> Trainer<S, P> {
    /// Looks for the culprit of steps that left the parameters of the host as they were, the last of them with these samples.
    /// For when the run goes back or fails anyway: waits for the device, and takes about two steps.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn find_culprit(
        &mut self,
        eager: &Eager,
        window: Option<(&EpochOrder, usize)>,
    ) -> Result<Culprit, Error> {
        if let Some((order, index)) = window {
            for positions in order.windows[index].microbatches() {
                if let Some(sample) = bad_sample(&self.parts.data.train, &order.samples[positions])? {
                    return Ok(Culprit::Sample(sample));
                }
            }
        }
        if let Some(culprit) = self.bad_state()? {
            return Ok(culprit);
        }
        let Some((order, index)) = window else { return Ok(Culprit::Nothing) };
        for positions in order.windows[index].microbatches() {
            let batch = to_device(self.parts.data.train.gather(&order.samples[positions])?, &self.parts.device)?;
            let culprit = match self.is_usable(&batch, &[])? {
                true => self.bad_gradient(&batch)?,
                false => Some(self.bad_seed(eager, &batch)?.map_or(Culprit::Loss, Culprit::Seed)),
            };
            if let Some(culprit) = culprit {
                return Ok(culprit);
            }
        }
        Ok(Culprit::Nothing)
    }

    /// The first sample of the validation data that is not finite.
    pub(super) fn bad_validation_sample(&self) -> Result<Option<u32>, Error> {
        let data = &self.parts.data.validation;
        let samples: Vec<u32> = (0..data.len()).map_while(|sample| u32::try_from(sample).ok()).collect();
        for samples in samples.chunks(self.config.eval_batch_size.get()) {
            if let Some(sample) = bad_sample(data, samples)? {
                return Ok(Some(sample));
            }
        }
        Ok(None)
    }

    /// A seed without which the loss can be used; where several are to blame, the first that suffices to spoil it.
    fn bad_seed(&mut self, eager: &Eager, batch: &Batch) -> Result<Option<SeedId>, Error> {
        let seeds = self.export_seeds(eager)?.into_iter();
        let acting: Vec<SeedId> =
            seeds.filter(|seed| seed.stage.acts_on_output() && !seed.paused).map(|seed| seed.seed_id).collect();
        let off = |seed: &SeedId| AlphaOverride { seed: *seed, alpha: Alpha::ZERO };
        for seed in &acting {
            if self.is_usable(batch, &[off(seed)])? {
                return Ok(Some(*seed));
            }
        }
        let all: Vec<AlphaOverride> = acting.iter().map(off).collect();
        if acting.is_empty() || !self.is_usable(batch, &all)? {
            return Ok(None);
        }
        for seed in acting {
            let others: Vec<AlphaOverride> = all.iter().copied().filter(|other| other.seed != seed).collect();
            if !self.is_usable(batch, &others)? {
                return Ok(Some(seed));
            }
        }
        Ok(None)
    }

    fn bad_gradient(&mut self, batch: &Batch) -> Result<Option<Culprit>, Error> {
        let outputs = self.forward(batch, Pass::Train)?;
        let gradients = self.parts.task.mean_loss(&outputs, &batch.targets)?.backward()?;
        let of = |parameter: &Parameter| match gradients.get(&parameter.var) {
            Some(gradient) => nothing(gradient),
            None => nothing(&parameter.var),
        };
        let sums = self.parts.seeds.model().parameters().iter().map(of).collect::<candle_core::Result<_>>()?;
        self.first_bad(sums, "culprit")
    }

    fn forward(&self, batch: &Batch, pass: Pass<'_>) -> Result<Tensor, Error> {
        let outputs = self.parts.seeds.model().forward(&batch.inputs, pass);
        Ok(outputs.map_err(|source| Error::Model(BoxError::new(source)))?.logits)
    }

    /// Whether the loss of a batch is finite, and within its bound.
    fn is_usable(&mut self, batch: &Batch, overrides: &[AlphaOverride]) -> Result<bool, Error> {
        let logits = self.forward(batch, Pass::Evaluate { overrides })?;
        let loss = self.parts.task.mean_loss(&logits, &batch.targets)?.detach();
        let loss = host_read::read_scalar(&loss, "culprit", &mut self.reads)?;
        Ok(loss.is_finite() && self.recovery.guard.bound.is_none_or(|bound| loss <= bound))
    }

    /// A parameter that is not finite, or whose moments are not. A loss need not show it: a rectifier makes 0 of no number.
    ///
    /// # Sync
    /// one device-to-host copy, counted as `known good`
    pub(super) fn bad_state(&mut self) -> Result<Option<Culprit>, Error> {
        let of = |parameter: &Parameter| match self.optimizer.moments_of(&parameter.name) {
            Some(moments) => nothing(&parameter.var)? + nothing(moments)?.to_device(parameter.var.device())?,
            None => nothing(&parameter.var),
        };
        let sums = self.parts.seeds.model().parameters().iter().map(of).collect::<candle_core::Result<_>>()?;
        self.first_bad(sums, "known good")
    }

    /// The first parameter of which the sum is not 0, or the seed that has it.
    fn first_bad(&mut self, sums: Vec<Tensor>, what: &'static str) -> Result<Option<Culprit>, Error> {
        if sums.is_empty() {
            return Ok(None);
        }
        let sums = host_read::read_vec(&Tensor::stack(&sums, 0)?, what, &mut self.reads)?;
        let Some(index) = sums.iter().position(|sum| *sum != 0.0) else { return Ok(None) };
        let model = self.parts.seeds.model();
        Ok(Some(match model.layout().segments()[index].spec.owner {
            Owner::Seed(seed) => Culprit::Seed(seed),
            Owner::Host => Culprit::Parameter(model.parameters()[index].name.clone()),
        }))
    }
}

/// The first of these samples with an input or a target that is not finite.
fn bad_sample(data: &Dataset, samples: &[u32]) -> Result<Option<u32>, Error> {
    let batch = data.gather(samples)?;
    if all_finite(&batch.inputs)? && all_finite(&batch.targets)? {
        return Ok(None);
    }
    for (row, sample) in samples.iter().enumerate() {
        if !(all_finite(&batch.inputs.get(row)?)? && all_finite(&batch.targets.get(row)?)?) {
            return Ok(Some(*sample));
        }
    }
    Ok(None)
}

/// 0 where every element is finite, else no number.
fn nothing(tensor: &Tensor) -> candle_core::Result<Tensor> {
    (tensor * 0.0)?.sum_all()?.to_dtype(DType::F32)
}

fn all_finite(tensor: &Tensor) -> Result<bool, Error> {
    Ok(cpu::all_elements(&tensor.to_device(&Device::Cpu)?.contiguous()?, f64::is_finite)?)
}
