//! Seeds for signals and images that look at neighboring positions of one channel at a time.

use candle_core::{Result, Tensor};
use esper_layers::{Activation, relu};

use crate::blueprint::Blueprint;
use crate::blueprint::conv::num_taps;
use crate::host::{SlotShape, Window, depthwise1d, depthwise2d, from_rows, image_from_rows, linear};
use crate::weight::{Init, WeightSpec};

/// f(h) = P·relu(D ∗ h + b₁) + b₂: a depthwise convolution D over three positions along each side, then a pointwise layer
/// P: C → C. As large as h; the width of bottlenecks plays no part.
///
/// # Source
/// Howard et al. 2017 (arXiv 1704.04861), section 3.1, without batch normalization.
#[derive(Debug, Clone, Copy, Default)]
pub struct Depthwise;

impl Depthwise {
    const KERNEL: usize = 3;
}

impl Blueprint for Depthwise {
    fn name(&self) -> &'static str {
        "depthwise"
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

    fn weights(&self, slot: SlotShape, _width: usize) -> Vec<WeightSpec> {
        let (channels, taps) = (slot.channels(), num_taps(slot, Self::KERNEL));
        let depth = Init::kaiming(taps);
        vec![
            WeightSpec::new("depth.weight", [taps, channels], depth),
            WeightSpec::new("depth.bias", [channels], depth),
            WeightSpec::new("point.weight", [channels, channels], Init::Zeros),
            WeightSpec::new("point.bias", [channels], Init::Zeros),
        ]
    }

    fn delta(&self, weights: &[Tensor], h: &Tensor) -> Result<Tensor> {
        let window = Window::centered(Self::KERNEL);
        let is_image = h.rank() == 4;
        let hidden = if is_image {
            depthwise2d(h, &weights[0], &weights[1], [window; 2])?
        } else {
            depthwise1d(h, &weights[0], &weights[1], window)?
        };
        let rows = linear(&relu(&hidden)?, &weights[2], &weights[3], Activation::None)?;
        if is_image { image_from_rows(&rows, (h.dim(2)?, h.dim(3)?)) } else { from_rows(&rows, h.dim(2)?) }
    }
}
