//! Seeds for signals and images that look at neighboring positions.

use candle_core::{Result, Tensor};
use esper_layers::Activation;

use crate::blueprint::pointwise::bottleneck_weights;
use crate::blueprint::{Blueprint, DownLayer};
use crate::host::{SlotShape, Window, conv1d, conv2d, from_rows};
use crate::weight::WeightSpec;

/// f(h) = K₂ ∗ relu(K₁ ∗ h + b₁) + b₂: C → width → C, each over three positions along each side, as large as h.
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
            SlotShape::Vector { .. }
            | SlotShape::Around { .. }
            | SlotShape::Sequence { .. }
            | SlotShape::Causal { .. } => false,
            // A single position has no neighbors.
            SlotShape::Signal { .. } | SlotShape::Image { .. } => slot.num_positions() >= 2,
        }
    }

    fn weights(&self, slot: SlotShape, width: usize) -> Vec<WeightSpec> {
        bottleneck_weights(slot, width, num_taps(slot, Self::KERNEL))
    }

    fn down_layer(&self, slot: SlotShape) -> Option<DownLayer> {
        Some(DownLayer { weight: 0, bias: Some(1), num_taps: num_taps(slot, Self::KERNEL) })
    }

    fn delta(&self, weights: &[Tensor], h: &Tensor) -> Result<Tensor> {
        if h.rank() == 4 {
            let windows = [Window::centered(Self::KERNEL); 2];
            let hidden = conv2d(h, &weights[0], &weights[1], windows, Activation::Relu)?;
            return conv2d(&hidden, &weights[2], &weights[3], windows, Activation::None);
        }
        let (padding, length) = (Self::KERNEL / 2, h.dim(2)?);
        let hidden = from_rows(&conv1d(h, &weights[0], &weights[1], (padding, 1), Activation::Relu)?, length)?;
        from_rows(&conv1d(&hidden, &weights[2], &weights[3], (padding, 1), Activation::None)?, length)
    }
}

/// Positions that a window of `kernel` along each side of the slot holds.
pub(super) fn num_taps(slot: SlotShape, kernel: usize) -> usize {
    match slot {
        SlotShape::Vector { .. } | SlotShape::Around { .. } => 1,
        SlotShape::Signal { .. } | SlotShape::Sequence { .. } | SlotShape::Causal { .. } => kernel,
        SlotShape::Image { .. } => kernel * kernel,
    }
}
