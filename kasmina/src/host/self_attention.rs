//! Self-attention as a plain function of its weights.

use candle_core::{Result, Tensor};
use esper_layers::{Activation, AttentionOptions, attention};

use crate::host::linear;

/// Each position of `x` looks at all of them: queries, keys and values are linear in `x`, the result is linear in what was
/// found.
///
/// # Shapes
/// `x` (B, L, C); `weights`: (C, 3·D) with the columns of queries, keys and values, (3·D), (D, C), (C) → (B, L, C), where
/// `num_heads` divides D
/// # Source
/// Vaswani et al. 2017 (arXiv 1706.03762), section 3.2.
pub(crate) fn self_attention(x: &Tensor, weights: &[Tensor], num_heads: usize) -> Result<Tensor> {
    let qkv = linear(x, &weights[0], &weights[1], Activation::None)?;
    let seen = attention(&qkv, &AttentionOptions { num_heads, causal: false })?;
    linear(&seen, &weights[2], &weights[3], Activation::None)
}
