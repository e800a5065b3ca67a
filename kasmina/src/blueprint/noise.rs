//! A harmful seed for control experiments: gates must keep it out.

use candle_core::{Result, Tensor};

use crate::blueprint::Blueprint;
use crate::host::SlotShape;
use crate::weight::{Init, WeightSpec};

/// f(h) = c, a random constant per channel that does not start at zero.
///
/// Its gradient is reversed: training moves c uphill, so the seed has a healthy gradient and yet never becomes useful.
/// Only a measurement of its effect can tell it from a good one.
#[derive(Debug, Clone, Copy, Default)]
pub struct Noise;

impl Blueprint for Noise {
    fn name(&self) -> &'static str {
        "noise"
    }

    fn fits(&self, _slot: SlotShape) -> bool {
        true
    }

    fn weights(&self, slot: SlotShape, _width: usize) -> Vec<WeightSpec> {
        let shape = match slot {
            SlotShape::Vector { features } | SlotShape::Around { features, .. } => vec![features],
            SlotShape::Signal { channels, .. }
            | SlotShape::Sequence { features: channels, .. }
            | SlotShape::Causal { features: channels, .. } => vec![channels, 1],
            SlotShape::Image { channels, .. } => vec![channels, 1, 1],
        };
        vec![WeightSpec::new("constant", shape, Init::Uniform { bound: 2.0 })]
    }

    fn delta(&self, weights: &[Tensor], h: &Tensor) -> Result<Tensor> {
        let constant = &weights[0];
        // Value 2c − c = c, gradient −1.
        let reversed = (constant.detach().affine(2.0, 0.0)? - constant)?;
        // One position is as wide as the slot; around a layer h is not.
        if constant.rank() == 1 {
            reversed.broadcast_as((h.dim(0)?, constant.dim(0)?))
        } else {
            reversed.broadcast_as(h.shape())
        }
    }
}
