//! From the last block of convolutions to the logits: pooling, then a linear layer.

use std::sync::Arc;

use candle_core::{Result as TensorResult, Tensor};
use esper_layers::Activation;

use crate::error::Error;
use crate::host::build::Builder;
use crate::host::network::HostLayer;
use crate::host::{Pool, SlotShape, in_wide};
use crate::weight::View;

/// Adds the last segment, for values of `shape`.
pub(super) fn pooled_head(
    builder: &mut Builder<'_, '_>,
    shape: SlotShape,
    pool: Pool,
    classes: usize,
) -> Result<(), Error> {
    let (pooling, features): (Arc<dyn HostLayer>, _) = match pool {
        Pool::Mean => (Arc::new(MeanPool), shape.channels()),
        Pool::Flatten => (Arc::new(Flatten), shape.channels() * shape.num_positions()),
    };
    let head = builder.linear("host.head", features, classes, Activation::None)?;
    builder.segment(vec![pooling, head]);
    Ok(())
}

/// Mean over positions: (B, C, L) or (B, C, H, W) → (B, C).
#[derive(Debug)]
struct MeanPool;

impl HostLayer for MeanPool {
    fn forward(&self, h: &Tensor, _view: View) -> TensorResult<Tensor> {
        in_wide(h, |h| if h.rank() == 3 { h.mean(2) } else { h.mean((2, 3)) })
    }
}

/// (B, C, L) → (B, C·L), (B, C, H, W) → (B, C·H·W).
#[derive(Debug)]
struct Flatten;

impl HostLayer for Flatten {
    fn forward(&self, h: &Tensor, _view: View) -> TensorResult<Tensor> {
        h.flatten_from(1)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;
    use crate::host_read::read_f32;

    #[test]
    fn the_mean_over_many_positions_is_not_lost_to_rounding() {
        for dims in [&[2, 3, 1024][..], &[2, 3, 32, 32]] {
            let h = Tensor::ones(dims, DType::BF16, &Device::Cpu).unwrap();
            let mean = MeanPool.forward(&h, View::Live).unwrap();
            assert_eq!((mean.dtype(), mean.dims()), (DType::BF16, [2, 3].as_slice()));
            assert_eq!(read_f32(&mean).unwrap(), [1.0; 6]);
        }
    }
}
