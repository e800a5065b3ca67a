//! Seeds for signals that look at neighboring positions.

use candle_core::{Result, Tensor};
use esper_layers::Activation;

use crate::blueprint::Blueprint;
use crate::blueprint::pointwise::bottleneck_weights;
use crate::host::{SlotShape, conv1d, from_rows};
use crate::weight::WeightSpec;

/// f(h) = K₂ ∗ relu(K₁ ∗ h + b₁) + b₂: C → width → C, each over three positions, as long as h.
#[derive(Debug, Clone, Copy, Default)]
pub struct Conv;

impl Conv {
    const KERNEL: usize = 3;
}

impl Blueprint for Conv {
    fn name(&self) -> &'static str {
        "conv"
    }

    fn fits(&self, slot: SlotShape) -> bool {
        match slot {
            SlotShape::Vector { .. } => false,
            // A single position has no neighbors.
            SlotShape::Signal { channels: _, length } => length >= 2,
        }
    }

    fn weights(&self, slot: SlotShape, width: usize) -> Vec<WeightSpec> {
        bottleneck_weights(slot, width, Self::KERNEL)
    }

    fn delta(&self, weights: &[Tensor], h: &Tensor) -> Result<Tensor> {
        let (padding, num_samples) = (Self::KERNEL / 2, h.dim(0)?);
        let hidden = from_rows(&conv1d(h, &weights[0], &weights[1], (padding, 1), Activation::Relu)?, num_samples)?;
        from_rows(&conv1d(&hidden, &weights[2], &weights[3], (padding, 1), Activation::None)?, num_samples)
    }
}
