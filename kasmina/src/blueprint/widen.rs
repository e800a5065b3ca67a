//! More units of a hidden layer.

use candle_core::{Result, Tensor};
use esper_layers::{Activation, LinearOptions};

use crate::blueprint::{Blueprint, DownLayer};
use crate::host::{SlotShape, linear};
use crate::weight::{Init, WeightSpec};

/// f(x) = relu(x·W₁ + b₁)·W₂ around a hidden layer, where x is what the layer sees: `width` more of its units. W₂ is zero at birth, so that the
/// network computes what it did; with f in full it is the one whose layer is so much wider.
///
/// # Source
/// Evci et al. 2022 (arXiv 2201.05125), section 3: new units whose outgoing weights are zero.
#[derive(Debug, Clone, Copy, Default)]
pub struct Widen;

impl Blueprint for Widen {
    fn name(&self) -> &'static str {
        "widen"
    }

    fn fits(&self, slot: SlotShape) -> bool {
        matches!(slot, SlotShape::Around { .. })
    }

    /// No bias behind W₂: the host has it.
    fn weights(&self, slot: SlotShape, width: usize) -> Vec<WeightSpec> {
        let inputs = slot.seen_channels();
        let down = Init::kaiming(inputs);
        vec![
            WeightSpec::new("down.weight", [inputs, width], down),
            WeightSpec::new("down.bias", [width], down),
            WeightSpec::new("up.weight", [width, slot.channels()], Init::Zeros),
        ]
    }

    fn down_layer(&self, _slot: SlotShape) -> Option<DownLayer> {
        Some(DownLayer { weight: 0, bias: Some(1), num_taps: 1 })
    }

    fn delta(&self, weights: &[Tensor], x: &Tensor) -> Result<Tensor> {
        let hidden = linear(x, &weights[0], &weights[1], Activation::Relu)?;
        esper_layers::linear(&hidden, &weights[2], None, &LinearOptions::default())
    }
}
