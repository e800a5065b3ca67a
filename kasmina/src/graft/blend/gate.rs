//! A gate that a seed learns: how far it is let through, for each sample.

use candle_core::{Result, Tensor};
use esper_layers::Activation;

use super::axes::pooled;
use crate::host::{SlotShape, linear};
use crate::weight::{Init, WeightSpec};

/// The least number of hidden units.
const MIN_HIDDEN: usize = 8;
/// Channels per hidden unit.
const REDUCTION: usize = 4;

/// The tensors of a gate over `channels`, in the order of [`evaluate`]'s `weights`.
pub(super) fn weights(channels: usize) -> Vec<WeightSpec> {
    let hidden = (channels / REDUCTION).max(MIN_HIDDEN);
    let down = Init::kaiming(channels);
    vec![
        WeightSpec::new("down.weight", [channels, hidden], down),
        WeightSpec::new("down.bias", [hidden], down),
        WeightSpec::new("up.weight", [hidden, 1], Init::Zeros),
        WeightSpec::new("up.bias", [1], Init::Zeros),
    ]
}

/// The gate of each sample, (B, 1), in the type of the weights, for the host's value `h`.
pub(super) fn evaluate(weights: &[Tensor], h: &Tensor, slot: SlotShape) -> Result<Tensor> {
    let x = pooled(h, slot)?.to_dtype(weights[0].dtype())?;
    let hidden = linear(&x, &weights[0], &weights[1], Activation::Relu)?;
    sigmoid(&linear(&hidden, &weights[2], &weights[3], Activation::None)?)
}

/// σ(x) = ½·(1 + tanh(x/2)): unlike 1 / (1 + exp(−x)) it has a finite gradient for every finite x.
pub(super) fn sigmoid(x: &Tensor) -> Result<Tensor> {
    x.affine(0.5, 0.0)?.tanh()?.affine(0.5, 0.5)
}
