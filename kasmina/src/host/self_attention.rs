//! Self-attention as a plain function of its weights.

use candle_core::{Result, Tensor};
use esper_layers::{Activation, AttentionOptions, attention};

use crate::host::{Past, linear};

/// Each position of `x` looks at all of them, or where it is `causal` at those up to itself: queries, keys and values are linear in `x`, the result is linear in what was
/// found.
///
/// # Shapes
/// `x` (B, L, C); `weights`: (C, 3·D) with the columns of queries, keys and values, (3·D), (D, C), (C) → (B, L, C), where
/// `num_heads` divides D
/// # Source
/// Vaswani et al. 2017 (arXiv 1706.03762), section 3.2.
pub(crate) fn self_attention(x: &Tensor, weights: &[Tensor], num_heads: usize, causal: bool) -> Result<Tensor> {
    let qkv = linear(x, &weights[0], &weights[1], Activation::None)?;
    let seen = attention(&qkv, &AttentionOptions { num_heads, causal })?;
    linear(&seen, &weights[2], &weights[3], Activation::None)
}

/// The same for tokens that follow those of `past`, each of which looks at all before it.
///
/// # Shapes
/// as [`self_attention`], with `x` (1, n, C)
pub(crate) fn next_attention(x: &Tensor, weights: &[Tensor], num_heads: usize, past: &mut Past) -> Result<Tensor> {
    let (count, width) = (x.dim(1)?, weights[2].dim(0)?);
    let qkv = linear(x, &weights[0], &weights[1], Activation::None)?;
    let qkv = qkv.reshape((count, 3, num_heads, width / num_heads))?.transpose(0, 2)?;
    let part = |index| qkv.narrow(1, index, 1)?.transpose(0, 1);
    let seen = past.attend(&part(0)?, &part(1)?, &part(2)?)?;
    linear(&seen.transpose(1, 2)?.reshape((1, count, width))?, &weights[2], &weights[3], Activation::None)
}
