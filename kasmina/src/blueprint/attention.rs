//! Seeds for sequences that look at all positions.

use candle_core::{Result, Tensor};

use crate::blueprint::Blueprint;
use crate::blueprint::norm::normalize;
use crate::host::{SlotShape, self_attention};
use crate::weight::{Init, WeightSpec};

/// f(h) = U·attention(V·normalize(h)): multi-head self-attention of `width` features inside; U is zero at birth.
///
/// The heads are four, two or one: as many as divide `width`.
///
/// # Source
/// Vaswani et al. 2017 (arXiv 1706.03762), section 3.2, over normalized values as in Xiong et al. 2020 (arXiv 2002.04745),
/// without gain and offset: V contains them.
#[derive(Debug, Clone, Copy, Default)]
pub struct Attention;

impl Attention {
    pub(super) fn num_heads(width: usize) -> usize {
        if width.is_multiple_of(4) {
            4
        } else if width.is_multiple_of(2) {
            2
        } else {
            1
        }
    }
}

impl Blueprint for Attention {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn fits(&self, slot: SlotShape) -> bool {
        match slot {
            SlotShape::Vector { .. }
            | SlotShape::Around { .. }
            | SlotShape::Signal { .. }
            | SlotShape::Image { .. }
            | SlotShape::Causal { .. } => false,
            // A single position sees itself whatever it asks for, and one feature normalized across itself is always 0.
            SlotShape::Sequence { length, features } => length >= 2 && features >= 2,
        }
    }

    fn weights(&self, slot: SlotShape, width: usize) -> Vec<WeightSpec> {
        let channels = slot.channels();
        let init = Init::kaiming(channels);
        vec![
            WeightSpec::new("qkv.weight", [channels, 3 * width], init),
            WeightSpec::new("qkv.bias", [3 * width], Init::Zeros),
            WeightSpec::new("out.weight", [width, channels], Init::Zeros),
            WeightSpec::new("out.bias", [channels], Init::Zeros),
        ]
    }

    fn delta(&self, weights: &[Tensor], h: &Tensor) -> Result<Tensor> {
        let width = weights[2].dim(0)?;
        // A view of a sequence: the features of a position lie together.
        let x = normalize(&h.transpose(1, 2)?)?;
        self_attention(&x, weights, Self::num_heads(width), false)?.transpose(1, 2)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::blueprint::testing::{assert_gradients, awake, numbers, read, tensor};

    const SLOT: SlotShape = SlotShape::Sequence { length: 5, features: 3 };

    #[test]
    fn the_heads_divide_the_width() {
        for (width, heads) in [(1, 1), (2, 2), (3, 1), (4, 4), (6, 2), (8, 4), (32, 4), (33, 1)] {
            assert_eq!(Attention::num_heads(width), heads, "{width}");
        }
    }

    #[test]
    fn permuted_positions_give_the_same_results_permuted() {
        let order = Tensor::new(&[3_u32, 0, 4, 1, 2], &Device::Cpu).unwrap();
        for width in [1, 2, 4, 6] {
            let weights = awake(&Attention, SLOT, width);
            let h = tensor(&numbers(1, 30), &[2, 3, 5]);
            let permuted = Attention.delta(&weights, &h.index_select(&order, 2).unwrap()).unwrap();
            let expected =
                Attention.delta(&weights, &h).unwrap().contiguous().unwrap().index_select(&order, 2).unwrap();
            assert!(read(&expected).iter().any(|value| value.abs() > 0.1));
            for (found, expected) in read(&permuted).iter().zip(read(&expected)) {
                assert!((found - expected).abs() < 1e-12, "width {width}: {found} against {expected}");
            }
        }
    }

    #[test]
    fn each_position_sees_every_other_one_of_its_sample_and_none_of_another() {
        let weights = awake(&Attention, SLOT, 4);
        let start = numbers(1, 30);
        let mut moved = start.clone();
        // Channel 0 of position 2 of sample 0.
        moved[2] += 1.0;
        let delta = |h: &[f64]| read(&Attention.delta(&weights, &tensor(h, &[2, 3, 5])).unwrap());
        let (before, after) = (delta(&start), delta(&moved));
        for (index, (before, after)) in before.iter().zip(&after).enumerate() {
            let is_first_sample = index < 15;
            assert_eq!((before - after).abs() > 1e-9, is_first_sample, "element {index}: {before} → {after}");
        }
    }

    #[test]
    fn gradients_agree_with_differences() {
        for (length, features, width) in [(2, 2, 1), (3, 2, 2), (2, 3, 4), (4, 2, 6)] {
            assert_gradients(&Attention, SlotShape::Sequence { length, features }, width);
        }
    }
}
