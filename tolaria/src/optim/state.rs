//! What an optimizer remembers about a parameter.

use candle_core::{DType, Tensor};
use leyline::layout::{Owner, Segment};
use leyline::model::Parameter;

use super::rounding::{Draw, DrawKey, Rounding};
use crate::error::Error;

#[derive(Debug, Clone)]
pub(super) struct ParameterState {
    /// Whose parameter it was in the latest update.
    pub(super) owner: Owner,
    /// Updates so far.
    pub(super) steps: u64,
    /// Shape (moments, elements): the velocity, or the first and second moments; absent where the rule keeps none. Of `f32`, and of
    /// `bf16` as the parameter where that is rounded at random.
    pub(super) moments: Option<Tensor>,
    /// Of a parameter of `bf16`: the lower halves of its numbers, (elements) of `i16`; absent where it is rounded at random.
    pub(super) rest: Option<Tensor>,
    pub(super) key: DrawKey,
}

/// How it is made: by the moments of the rule and by what becomes of the rest of `bf16`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Form {
    pub(super) num_moments: usize,
    pub(super) rounding: Rounding,
}

/// Type and shape of a tensor of so many dimensions, where there is one.
type Kind<const RANK: usize> = Option<(DType, [usize; RANK])>;

impl Form {
    /// Whether anything is remembered of a parameter.
    pub(super) fn remembers(self, parameter: &Parameter) -> bool {
        self.num_moments > 0 || parameter.var.dtype() == DType::BF16
    }

    /// Of the moments and of the rest, in this order.
    fn shapes(self, parameter: &Parameter, segment: &Segment) -> (Kind<2>, Kind<1>) {
        let is_half = parameter.var.dtype() == DType::BF16;
        let (of_moments, has_rest) = match self.rounding {
            Rounding::Compensated => (DType::F32, is_half),
            Rounding::Stochastic => (parameter.var.dtype(), false),
        };
        let moments = (self.num_moments > 0).then_some((of_moments, [self.num_moments, segment.len]));
        (moments, has_rest.then_some((DType::I16, [segment.len])))
    }

    /// Of a parameter that was never updated.
    pub(super) fn new_state(self, parameter: &Parameter, segment: &Segment) -> Result<ParameterState, Error> {
        let (moments, rest) = self.shapes(parameter, segment);
        let device = parameter.var.device();
        let moments = moments.map(|(dtype, dims)| Tensor::zeros(&dims, dtype, device)).transpose()?;
        let rest = rest.map(|(dtype, dims)| Tensor::zeros(&dims, dtype, device)).transpose()?;
        let (owner, key) = (segment.spec.owner, DrawKey::of(&parameter.name));
        Ok(ParameterState { owner, steps: 0, moments, rest, key })
    }

    /// Confirms that what is remembered of the parameter has its size. Each step asks, of each parameter, so that nothing is allocated
    /// where it has.
    pub(super) fn check(self, state: &ParameterState, parameter: &Parameter, segment: &Segment) -> Result<(), Error> {
        let (moments, rest) = self.shapes(parameter, segment);
        let expected = [
            moments.as_ref().map(|(dtype, dims)| (*dtype, dims.as_slice())),
            rest.as_ref().map(|(dtype, dims)| (*dtype, dims.as_slice())),
        ];
        let found =
            [&state.moments, &state.rest].map(|tensor| tensor.as_ref().map(|tensor| (tensor.dtype(), tensor.dims())));
        if found == expected {
            return Ok(());
        }
        // How numbers of `bf16` were rounded, where it is the other way.
        let is_other = parameter.var.dtype() == DType::BF16 && found[1].is_some() != expected[1].is_some();
        let told = |shapes: [Option<(DType, &[usize])>; 2]| {
            let all: Vec<_> = shapes.iter().flatten().map(|(dtype, dims)| format!("{dtype:?} {dims:?}")).collect();
            let all = if all.is_empty() { "none".to_owned() } else { all.join(" and ") };
            let precision = if shapes[1].is_some() { " (`bf16_pure`)" } else { " (`bf16_stochastic`)" };
            if is_other { all + precision } else { all }
        };
        Err(Error::mismatch(format!("optimizer state of `{}`", parameter.name), told(expected), told(found)))
    }
}

impl ParameterState {
    pub(super) fn tensors_mut(&mut self) -> impl Iterator<Item = &mut Tensor> {
        self.moments.iter_mut().chain(&mut self.rest)
    }

    /// What is drawn for update `steps` of a parameter that is rounded at random.
    pub(super) fn draw(&self, parameter: &Parameter, steps: u64, rounding: Rounding) -> Option<Draw> {
        let is_drawn = parameter.var.dtype() == DType::BF16 && rounding == Rounding::Stochastic;
        is_drawn.then(|| self.key.draw(steps))
    }
}
