//! Where samples, channels and positions lie in the value of a slot.

use candle_core::{Result, Tensor};

use crate::host::{SlotShape, wide};

/// The mean over the positions, (B, C), of a value at a slot of this shape; of a causal one every position is by itself, (B, L, C):
/// a mean would tell it what comes after.
///
/// In the type in which its values are summed: what follows is as exact.
pub(super) fn pooled(x: &Tensor, slot: SlotShape) -> Result<Tensor> {
    let x = x.to_dtype(wide(x.dtype()))?;
    match slot {
        SlotShape::Vector { .. } | SlotShape::Around { .. } | SlotShape::Causal { .. } => Ok(x),
        SlotShape::Signal { .. } => x.mean(2),
        SlotShape::Image { .. } => x.mean((2, 3)),
        SlotShape::Sequence { .. } => x.mean(1),
    }
}

/// The shape in which one weight per channel broadcasts to the value of a slot.
pub(super) fn per_channel(slot: SlotShape) -> Vec<usize> {
    match slot {
        SlotShape::Vector { features: channels }
        | SlotShape::Around { features: channels, .. }
        | SlotShape::Sequence { features: channels, .. }
        | SlotShape::Causal { features: channels, .. } => vec![channels],
        SlotShape::Signal { channels, .. } => vec![channels, 1],
        SlotShape::Image { channels, .. } => vec![channels, 1, 1],
    }
}

/// One weight per sample, (B, 1), or per position of a causal slot, (B, L, 1), in the shape in which it broadcasts to `like`, and in its type.
pub(super) fn per_sample(weight: &Tensor, like: &Tensor) -> Result<Tensor> {
    let mut shape = weight.dims().to_vec();
    shape.resize(like.rank(), 1);
    weight.reshape(shape)?.to_dtype(like.dtype())
}
