//! Averages of parameters over steps: what is evaluated and exported in their place.
//!
//! `a += (1 - decay) (p - a)` after each update of a parameter, on its device and within the step; the first step makes it the
//! parameter, as PyTorch's `AveragedModel` does. A step that changes nothing leaves it, also the first one: then it starts from
//! there. It belongs to a parameter's name, as moments do.

use std::collections::BTreeMap;

use candle_core::{DType, Tensor, Var};
use leyline::durable::SavedState;
use leyline::layout::Owner;
use leyline::model::Parameter;

use super::rules::{self, Element};
use crate::cpu::to_f32;
use crate::error::Error;

/// Before the name of a parameter, in a saved optimizer.
pub(super) const PREFIX: &str = "average of ";
/// Before the name of a parameter, or of its average, in a saved optimizer.
pub(super) const REST: &str = "rest of ";

#[derive(Debug, Clone)]
pub(super) struct Average {
    pub(super) owner: Owner,
    /// Updates so far.
    pub(super) steps: u64,
    /// Of the shape and type of the parameter.
    pub(super) value: Var,
    /// The lower halves of its numbers, where it is of `bf16`.
    pub(super) rest: Option<Tensor>,
}

/// Averages by the names of their parameters.
#[derive(Debug, Clone)]
pub(super) struct Averages {
    decay: f64,
    pub(super) of: BTreeMap<String, Average>,
}

impl Averages {
    pub(super) fn new(decay: f64) -> Self {
        Self { decay, of: BTreeMap::new() }
    }

    /// What the update after the next `ahead` moves the average by; makes it where there is none.
    pub(super) fn prepare(&mut self, parameter: &Parameter, owner: Owner, ahead: u64) -> Result<f32, Error> {
        let var = &parameter.var;
        if !self.of.contains_key(&parameter.name) {
            let value = Var::from_tensor(&var.as_detached_tensor().copy()?)?;
            let is_halved = var.dtype() == DType::BF16;
            let rest = is_halved.then(|| Tensor::zeros(var.elem_count(), DType::I16, var.device())).transpose()?;
            self.of.insert(parameter.name.clone(), Average { owner, steps: 0, value, rest });
        }
        let average = self.of.get_mut(&parameter.name).expect("it was inserted above");
        average.owner = owner;
        // A restored one comes back on the CPU.
        if !average.value.device().same_device(var.device()) {
            average.value = Var::from_tensor(&average.value.to_device(var.device())?)?;
            average.rest = average.rest.as_ref().map(|rest| rest.to_device(var.device())).transpose()?;
        }
        let wanted = (var.dtype() == DType::BF16).then(|| var.elem_count());
        let fits = average.rest.as_ref().map(Tensor::elem_count) == wanted;
        if average.value.shape() != var.shape() || average.value.dtype() != var.dtype() || !fits {
            let kind = |tensor: &Tensor| format!("{:?} {:?}", tensor.dtype(), tensor.dims());
            return Err(Error::mismatch(format!("average of `{}`", parameter.name), kind(var), kind(&average.value)));
        }
        Ok(if average.steps + ahead == 0 { 1.0 } else { to_f32(1.0 - self.decay) })
    }

    pub(super) fn value(&self, name: &str) -> Option<&Var> {
        self.of.get(name).map(|average| &average.value)
    }

    /// Exchanges the values of parameters and averages, in place; lower halves stay with their numbers. A restored average is on the CPU
    /// until the next update.
    pub(super) fn exchange(&self, parameters: &[Parameter]) -> Result<(), Error> {
        for parameter in parameters {
            if let Some(average) = self.value(&parameter.name) {
                let kept = parameter.var.copy()?;
                parameter.var.set(&average.to_device(parameter.var.device())?)?;
                average.set(&kept.to_device(average.device())?)?;
            }
        }
        Ok(())
    }

    /// Adds copies to a saved optimizer; the updates of each.
    pub(super) fn save(&self, tensors: &mut BTreeMap<String, Tensor>) -> Result<BTreeMap<String, u64>, Error> {
        for (name, average) in &self.of {
            tensors.insert(format!("{PREFIX}{name}"), average.value.as_detached_tensor().copy()?);
            if let Some(rest) = &average.rest {
                tensors.insert(format!("{REST}{PREFIX}{name}"), rest.copy()?);
            }
        }
        Ok(self.of.iter().map(|(name, average)| (name.clone(), average.steps)).collect())
    }
}

/// Parameters as an average reads them, in `f32`: themselves, or what they are without their lower halves.
pub(super) fn numbers<'a>(parameters: impl Iterator<Item = &'a Parameter>) -> candle_core::Result<Vec<Tensor>> {
    parameters.map(|parameter| parameter.var.as_detached_tensor().to_dtype(DType::F32)).collect()
}

/// The update of an average.
pub(super) fn element(weight: f32) -> Element {
    Element::Average(rules::Average { keep: 0.0, step_size: 0.0, root_correction: 0.0, weight })
}

/// The averages in a saved optimizer, each with the name of its parameter; none where it keeps none.
pub fn averages(saved: &SavedState) -> impl Iterator<Item = (&str, &Tensor)> {
    saved.tensors.iter().filter_map(|(name, tensor)| Some((parameter_of(name)?, tensor)))
}

/// The parameter of which a tensor of this name is the average.
pub(super) fn parameter_of(name: &str) -> Option<&str> {
    name.strip_prefix(PREFIX)
}
