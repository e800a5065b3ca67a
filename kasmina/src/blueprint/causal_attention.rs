//! Seeds for sequences that look at the positions so far.

use candle_core::{Result, Tensor};

use crate::blueprint::norm::normalize;
use crate::blueprint::{Attention, Blueprint};
use crate::host::{Past, SlotShape, next_attention, self_attention};
use crate::weight::WeightSpec;

/// As [`Attention`], where no position sees those after it: of slots where nothing may flow back.
#[derive(Debug, Clone, Copy, Default)]
pub struct CausalAttention;

impl Blueprint for CausalAttention {
    fn name(&self) -> &'static str {
        "causal_attention"
    }

    fn fits(&self, slot: SlotShape) -> bool {
        match slot {
            SlotShape::Vector { .. }
            | SlotShape::Around { .. }
            | SlotShape::Signal { .. }
            | SlotShape::Image { .. }
            | SlotShape::Sequence { .. } => false,
            // As for attention over all positions.
            SlotShape::Causal { length, features } => length >= 2 && features >= 2,
        }
    }

    fn weights(&self, slot: SlotShape, width: usize) -> Vec<WeightSpec> {
        Attention.weights(slot, width)
    }

    fn delta(&self, weights: &[Tensor], h: &Tensor) -> Result<Tensor> {
        let num_heads = Attention::num_heads(weights[2].dim(0)?);
        self_attention(&normalize(&h.transpose(1, 2)?)?, weights, num_heads, true)?.transpose(1, 2)
    }

    fn delta_next(&self, weights: &[Tensor], h: &Tensor, past: &mut Past) -> Result<Tensor> {
        let num_heads = Attention::num_heads(weights[2].dim(0)?);
        next_attention(&normalize(&h.transpose(1, 2)?)?, weights, num_heads, past)?.transpose(1, 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blueprint::Registry;
    use crate::blueprint::testing::{assert_gradients, awake, numbers, read, tensor};

    #[test]
    fn gradients_agree_with_differences() {
        for (length, features, width) in [(2, 2, 1), (3, 2, 2), (4, 2, 4)] {
            assert_gradients(&CausalAttention, SlotShape::Causal { length, features }, width);
        }
    }

    /// What every blueprint that is offered at a causal slot promises, and the reason for such slots.
    #[test]
    fn no_seed_of_a_causal_slot_sees_what_comes_after() {
        let slot = SlotShape::Causal { length: 5, features: 3 };
        let registry = Registry::all();
        let offers = registry.offers(slot, 4, 0);
        let names: Vec<_> = offers.iter().map(|offer| offer.blueprint.as_str()).collect();
        assert_eq!(names, ["causal_attention", "low_rank", "mlp", "noise", "norm", "norm_mlp"]);
        for offer in offers {
            let blueprint = registry.get(&offer.blueprint).unwrap();
            let weights = awake(&**blueprint, slot, 4);
            let start = numbers(1, 30);
            let delta = |h: &[f64]| read(&blueprint.delta(&weights, &tensor(h, &[2, 3, 5])).unwrap());
            let before = delta(&start);
            for moved_position in 0..5 {
                let mut moved = start.clone();
                // Not alike in all channels, which normalization would take away.
                [3.0, 2.0, 1.0]
                    .into_iter()
                    .enumerate()
                    .for_each(|(channel, by)| moved[5 * channel + moved_position] += by);
                for (index, (before, after)) in before.iter().zip(delta(&moved)).enumerate() {
                    let is_earlier = index >= 15 || index % 5 < moved_position;
                    let difference = (before - after).abs();
                    assert!(!is_earlier || difference < 1e-12, "{}: {index} of {moved_position}", offer.blueprint);
                    let must_see = offer.blueprint.as_str() == "causal_attention" && !is_earlier;
                    assert!(!must_see || difference > 1e-9, "{index} does not see {moved_position}");
                }
            }
        }
    }
}
