//! Seeds that treat each position by itself: a bottleneck of two pointwise layers, with or without normalization.

use candle_core::{Result, Tensor};
use esper_layers::Activation;

use crate::blueprint::norm::normalize;
use crate::blueprint::position::at_each_position;
use crate::blueprint::{Blueprint, DownLayer};
use crate::host::{SlotShape, linear};
use crate::weight::{Init, WeightSpec};

/// f(h) = W₂·relu(W₁·h + b₁) + b₂, pointwise: C → width → C.
#[derive(Debug, Clone, Copy, Default)]
pub struct Mlp;

impl Blueprint for Mlp {
    fn name(&self) -> &'static str {
        "mlp"
    }

    fn fits(&self, slot: SlotShape) -> bool {
        !matches!(slot, SlotShape::Around { .. })
    }

    fn weights(&self, slot: SlotShape, width: usize) -> Vec<WeightSpec> {
        bottleneck_weights(slot, width, 1)
    }

    fn down_layer(&self, _slot: SlotShape) -> Option<DownLayer> {
        Some(DownLayer { weight: 0, bias: Some(1), num_taps: 1 })
    }

    fn delta(&self, weights: &[Tensor], h: &Tensor) -> Result<Tensor> {
        at_each_position(h, |x| bottleneck(weights, x))
    }
}

/// The bottleneck of [`Mlp`] over h normalized across C to mean 0 and variance 1.
///
/// # Source
/// Ba et al. 2016 (arXiv 1607.06450), without gain and offset: the next layer contains them.
#[derive(Debug, Clone, Copy, Default)]
pub struct NormMlp;

impl Blueprint for NormMlp {
    fn name(&self) -> &'static str {
        "norm_mlp"
    }

    fn fits(&self, slot: SlotShape) -> bool {
        // One channel normalized across itself is always 0.
        slot.channels() >= 2 && !matches!(slot, SlotShape::Around { .. })
    }

    fn weights(&self, slot: SlotShape, width: usize) -> Vec<WeightSpec> {
        bottleneck_weights(slot, width, 1)
    }

    fn down_layer(&self, _slot: SlotShape) -> Option<DownLayer> {
        Some(DownLayer { weight: 0, bias: Some(1), num_taps: 1 })
    }

    fn down_inputs(&self, rows: &Tensor) -> Result<Tensor> {
        normalize(rows)
    }

    fn delta(&self, weights: &[Tensor], h: &Tensor) -> Result<Tensor> {
        at_each_position(h, |x| bottleneck(weights, &self.down_inputs(x)?))
    }
}

/// Weights of C → width → C over `kernel` positions; the way up starts at zero.
pub(super) fn bottleneck_weights(slot: SlotShape, width: usize, kernel: usize) -> Vec<WeightSpec> {
    let channels = slot.channels();
    let down = Init::kaiming(channels * kernel);
    vec![
        WeightSpec::new("down.weight", [kernel * channels, width], down),
        WeightSpec::new("down.bias", [width], down),
        WeightSpec::new("up.weight", [kernel * width, channels], Init::Zeros),
        WeightSpec::new("up.bias", [channels], Init::Zeros),
    ]
}

/// `x` (B, C) → (B, C).
fn bottleneck(weights: &[Tensor], x: &Tensor) -> Result<Tensor> {
    let hidden = linear(x, &weights[0], &weights[1], Activation::Relu)?;
    linear(&hidden, &weights[2], &weights[3], Activation::None)
}
