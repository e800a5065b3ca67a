//! A linear map of low rank at each position.

use candle_core::{Result, Tensor};
use esper_layers::LinearOptions;

use crate::blueprint::Blueprint;
use crate::blueprint::position::at_each_position;
use crate::host::SlotShape;
use crate::weight::{Init, WeightSpec};

/// f(h) = U·(V·h) at each position: C → width → C without activation; U is zero at birth.
///
/// # Source
/// Hu et al. 2021 (arXiv 2106.09685), section 4.1, where the map stands beside a weight; here it stands beside a value.
#[derive(Debug, Clone, Copy, Default)]
pub struct LowRank;

impl Blueprint for LowRank {
    fn name(&self) -> &'static str {
        "low_rank"
    }

    fn fits(&self, slot: SlotShape) -> bool {
        !matches!(slot, SlotShape::Around { .. })
    }

    fn weights(&self, slot: SlotShape, width: usize) -> Vec<WeightSpec> {
        let channels = slot.channels();
        vec![
            WeightSpec::new("down.weight", [channels, width], Init::kaiming(channels)),
            WeightSpec::new("up.weight", [width, channels], Init::Zeros),
        ]
    }

    fn delta(&self, weights: &[Tensor], h: &Tensor) -> Result<Tensor> {
        let map = |x: &Tensor, weight| esper_layers::linear(x, weight, None, &LinearOptions::default());
        at_each_position(h, |x| map(&map(x, &weights[0])?, &weights[1]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blueprint::testing::{assert_gradients, numbers, read, tensor};

    #[test]
    fn an_awake_seed_is_linear() {
        let weights = [tensor(&numbers(1, 6), &[3, 2]), tensor(&numbers(2, 6), &[2, 3])];
        let (a, b) = (tensor(&numbers(3, 24), &[2, 3, 4]), tensor(&numbers(4, 24), &[2, 3, 4]));
        let delta = |h: &Tensor| LowRank.delta(&weights, h).unwrap();
        let together = read(&delta(&(&a + &b).unwrap()));
        let apart = read(&(delta(&a) + delta(&b)).unwrap());
        assert!(together.iter().any(|value| value.abs() > 0.1));
        for (together, apart) in together.iter().zip(apart) {
            assert!((together - apart).abs() < 1e-12, "{together} against {apart}");
        }
    }

    #[test]
    fn gradients_agree_with_differences() {
        for slot in [
            SlotShape::Vector { features: 3 },
            SlotShape::Signal { channels: 1, length: 1 },
            SlotShape::Signal { channels: 2, length: 3 },
            SlotShape::Image { channels: 2, height: 2, width: 3 },
            SlotShape::Sequence { length: 3, features: 2 },
        ] {
            assert_gradients(&LowRank, slot, 2);
        }
    }
}
