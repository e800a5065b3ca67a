//! Normalization over the channels of each position.

use candle_core::{D, Result, Tensor};
use esper_layers::layer_norm;

use crate::blueprint::Blueprint;
use crate::blueprint::position::at_each_position;
use crate::host::{SlotShape, in_wide};
use crate::weight::{Init, WeightSpec};

/// Keeps the division finite where all channels agree.
const EPSILON: f64 = 1e-5;

/// f(h) = γ ⊙ normalize(h) + β: h brought to mean 0 and variance 1 across C at each position, γ and β zero at birth.
///
/// # Source
/// Ba et al. 2016 (arXiv 1607.06450), equation 4.
#[derive(Debug, Clone, Copy, Default)]
pub struct Norm;

impl Blueprint for Norm {
    fn name(&self) -> &'static str {
        "norm"
    }

    fn fits(&self, slot: SlotShape) -> bool {
        // One channel normalized across itself is always 0.
        slot.channels() >= 2 && !matches!(slot, SlotShape::Around { .. })
    }

    fn weights(&self, slot: SlotShape, _width: usize) -> Vec<WeightSpec> {
        let channels = slot.channels();
        vec![WeightSpec::new("scale", [channels], Init::Zeros), WeightSpec::new("shift", [channels], Init::Zeros)]
    }

    fn delta(&self, weights: &[Tensor], h: &Tensor) -> Result<Tensor> {
        at_each_position(h, |x| layer_norm(x, &weights[0], &weights[1], EPSILON))
    }
}

/// Mean 0 and variance 1 across the last dimension, without gain and offset.
pub(super) fn normalize(x: &Tensor) -> Result<Tensor> {
    in_wide(x, |x| {
        let centered = x.broadcast_sub(&x.mean_keepdim(D::Minus1)?)?;
        let deviation = centered.sqr()?.mean_keepdim(D::Minus1)?.affine(1.0, EPSILON)?.sqrt()?;
        centered.broadcast_div(&deviation)
    })
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;
    use crate::blueprint::testing::{assert_gradients, numbers, read, tensor};

    #[test]
    fn an_awake_seed_gives_each_channel_its_mean_and_deviation_over_channels() {
        let h = tensor(&[1.0, 3.0, -1.0, 1.0, 10.0, 10.0], &[1, 2, 3]);
        let weights = [tensor(&[2.0, 1.0], &[2]), tensor(&[0.5, 0.0], &[2])];
        let found = read(&Norm.delta(&weights, &h).unwrap());
        // Channels (1, 1), (3, 10), (−1, 10): each pair is brought to (−1, 1), or to 0 where it agrees.
        let expected = [0.5, -1.5, -1.5, 0.0, 1.0, 1.0];
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-4, "{found} against {expected}");
        }
    }

    #[test]
    fn gradients_agree_with_differences() {
        for slot in [
            SlotShape::Vector { features: 3 },
            SlotShape::Signal { channels: 2, length: 3 },
            SlotShape::Image { channels: 2, height: 2, width: 1 },
            SlotShape::Sequence { length: 1, features: 2 },
        ] {
            assert_gradients(&Norm, slot, 4);
        }
    }

    #[test]
    fn normalized_rows_have_mean_0_and_variance_1() {
        let rows = read(&normalize(&tensor(&numbers(3, 24), &[4, 6])).unwrap());
        for row in rows.chunks(6) {
            let mean = row.iter().sum::<f64>() / 6.0;
            let variance = row.iter().map(|value| value * value).sum::<f64>() / 6.0;
            assert!(mean.abs() < 1e-12 && (variance - 1.0).abs() < 1e-4, "{mean} {variance}");
        }
    }
    #[test]
    fn the_mean_over_many_channels_is_not_lost_to_rounding() {
        let rows = normalize(&Tensor::ones((2, 1024), DType::BF16, &Device::Cpu).unwrap()).unwrap();
        assert_eq!(rows.dtype(), DType::BF16);
        assert!(read(&rows).iter().all(|value| value.abs() <= 0.0));
    }
}
