//! What attention needs to know besides its input.

use candle_core::{Result, Tensor};

/// How the columns of the input are divided into heads, and who sees whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionOptions {
    /// Heads, H. Each has its own weights.
    pub num_heads: usize,
    /// Whether a position sees only itself and the positions before it.
    pub causal: bool,
}

/// Sizes of a packed input (B, T, 3·H·d).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PackedShape {
    pub(super) batches: usize,
    pub(super) length: usize,
    pub(super) heads: usize,
    /// Coordinates of a head, d.
    pub(super) width: usize,
}

impl PackedShape {
    pub(super) fn of(qkv: &Tensor, options: &AttentionOptions) -> Result<Self> {
        let heads = options.num_heads;
        match *qkv.dims() {
            [batches, length, columns] if heads > 0 && columns > 0 && columns % (3 * heads) == 0 => {
                Ok(Self { batches, length, heads, width: columns / (3 * heads) })
            }
            _ => candle_core::bail!(
                "attention: expected qkv (B, T, 3·H·d) with H = {heads} heads, found {:?}",
                qkv.dims()
            ),
        }
    }

    /// 1/√d, by which scores are multiplied.
    pub(super) fn scale(&self) -> f64 {
        1.0 / (self.width as f64).sqrt()
    }

    /// The same in single precision.
    #[expect(clippy::cast_possible_truncation, reason = "kernels and operations of single precision compute in it")]
    pub(super) fn scale_f32(&self) -> f32 {
        self.scale() as f32
    }

    pub(super) fn output(&self) -> (usize, usize, usize) {
        (self.batches, self.length, self.heads * self.width)
    }
}
