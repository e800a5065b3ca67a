//! A parameter without a gradient: whether the loss depends on it, and what to do.

use candle_core::{DType, Tensor, Var};
use leyline::error::BoxError;
use leyline::model::{Parameter, Pass, TrainableModel};
use leyline::policy::Policy;
use leyline::seed::SeedManager;

use crate::batch::to_device;
use crate::error::Error;
use crate::host_read;
use crate::trainer::run::Trainer;

/// How many samples are enough to see that a loss changes.
const NUM_SAMPLES: u32 = 8;

impl<S: SeedManager, P: Policy> Trainer<S, P> {
    /// Says of a missing gradient why it is missing; any other error stays as it is.
    ///
    /// # Sync
    /// two device-to-host copies, counted as `cut gradient`
    pub(super) fn explained(&mut self, error: Error) -> Error {
        let Error::MissingGradient { name } = error else { return error };
        match self.loss_depends_on(&name) {
            Ok(true) => Error::CutGradient { name },
            Ok(false) => Error::UnusedParameter { name },
            // What could not be found out is not claimed.
            Err(_) => Error::MissingGradient { name },
        }
    }

    /// Whether the loss of a few samples changes with the parameter, in a pass that changes nothing else. Where parameters
    /// have not moved since they were made, what comes after this one may be zero: all are moved for it, and put back.
    fn loss_depends_on(&mut self, name: &str) -> Result<bool, Error> {
        let parameters = self.parts.seeds.model().parameters().to_vec();
        let kept = parameters.iter().map(|parameter| parameter.var.as_detached_tensor().copy());
        let kept = kept.collect::<candle_core::Result<Vec<_>>>()?;
        let found = self.loss_moves_with(&parameters, name);
        for (parameter, kept) in parameters.iter().zip(&kept) {
            parameter.var.set(kept)?;
        }
        found
    }

    fn loss_moves_with(&mut self, parameters: &[Parameter], name: &str) -> Result<bool, Error> {
        for parameter in parameters {
            move_elsewhere(&parameter.var)?;
        }
        let before = self.loss_of_a_few()?;
        for parameter in parameters.iter().filter(|parameter| parameter.name == name) {
            move_elsewhere(&parameter.var)?;
        }
        Ok(self.loss_of_a_few()?.to_bits() != before.to_bits())
    }

    fn loss_of_a_few(&mut self) -> Result<f64, Error> {
        let data = &self.parts.data.train;
        let indices: Vec<u32> = (0..NUM_SAMPLES).take(data.len()).collect();
        let batch = to_device(data.gather(&indices)?, &self.parts.device)?;
        let outputs = self.parts.seeds.model().forward(&batch.inputs, Pass::Evaluate { overrides: &[] });
        let logits = outputs.map_err(|source| Error::Model(BoxError::new(source)))?.logits;
        let loss = self.parts.task.mean_loss(&logits, &batch.targets)?.detach();
        host_read::read_scalar(&loss, "cut gradient", &mut self.reads)
    }
}

/// Moves each element by another amount: many layers undo what is added to all elements or multiplies all of them.
fn move_elsewhere(var: &Var) -> candle_core::Result<()> {
    let place = Tensor::arange(0_u32, u32::try_from(var.elem_count()).unwrap_or(u32::MAX), var.device())?;
    let moved = ((place.to_dtype(DType::F32)?.sin()? * 0.25)? + 0.125)?.reshape(var.shape())?;
    var.set(&(var.as_detached_tensor() + moved.to_dtype(var.dtype())?)?)
}
