//! Attention whose queries, keys and values are columns of one tensor.

use candle_core::{D, DType, Device, Result, Tensor};

use super::options::{AttentionOptions, PackedShape};
use crate::operations::count;
use crate::precision::compute_type;

/// `softmax(q kᵀ / √d) v` for each head, with a gradient.
///
/// Half precision is computed in `f32`, but for `bf16` on a GPU: with heads of 8, 16, … 128 coordinates, tensor cores multiply
/// it and the weights rounded to it, and sum in `f32`. What is computed in `f32` is rounded to TF32 so, with heads of 4, 8, … 128
/// coordinates and from compute capability 8.0 on, while candle's switch for TF32 products (`set_gemm_reduced_precision_f32`) is on. No matrix of weights is stored, and the gradient is the same in every
/// run, on a CPU with any number of threads; for `f64`, and on a GPU for heads of more than 128 coordinates, it is composed of other operations,
/// the only ones that have gradients of gradients.
///
/// # Shapes
/// `qkv` (B, T, 3·H·d): the columns are q, then k, then v, in each of them one head after the other; the result is
/// (B, T, H·d)
/// # Errors
/// For other shapes, for integers, and when the device fails.
/// # Sync
/// none
/// # Source
/// Vaswani et al. 2017, "Attention is all you need", arXiv 1706.03762, equation 1; without a matrix of weights: Milakov
/// and Gimelshein 2018, arXiv 1805.02867, algorithm 3, Dao et al. 2022, arXiv 2205.14135, algorithms 1 and 4, and Dao
/// 2023, arXiv 2307.08691, section 3
///
/// # Examples
/// ```
/// use candle_core::{Device, Tensor};
/// use esper_layers::{AttentionOptions, attention};
///
/// // Two positions, one head of one coordinate: q = 0 weighs all that is seen alike.
/// let qkv = Tensor::new(&[[[0.0_f32, 0.0, 1.0], [0.0, 5.0, 3.0]]], &Device::Cpu)?;
/// let seen = attention(&qkv, &AttentionOptions { num_heads: 1, causal: true })?;
/// assert_eq!(seen.to_vec3::<f32>()?, [[[1.0], [2.0]]]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn attention(qkv: &Tensor, options: &AttentionOptions) -> Result<Tensor> {
    let shape = PackedShape::of(qkv, options)?;
    let dtype = compute_type("attention", qkv.dtype())?;
    if qkv.elem_count() == 0 {
        return Tensor::zeros(shape.output(), qkv.dtype(), qkv.device());
    }
    // Scores and their sums: positions against positions, in all coordinates.
    count([qkv, qkv], 2 * shape.batches * shape.heads * shape.length * shape.length * shape.width);
    #[cfg(feature = "cuda")]
    if qkv.device().is_cuda() && qkv.dtype() == DType::BF16 && super::cuda::takes_halves(&shape) {
        return super::cuda::attention(qkv, shape, options.causal);
    }
    run(&qkv.to_dtype(dtype)?, shape, options.causal)?.to_dtype(qkv.dtype())
}

fn run(qkv: &Tensor, shape: PackedShape, is_causal: bool) -> Result<Tensor> {
    if qkv.device().is_cpu() && qkv.dtype() == DType::F32 {
        return super::cpu::attention(&qkv.contiguous()?, shape, is_causal);
    }
    #[cfg(feature = "cuda")]
    if qkv.device().is_cuda() && qkv.dtype() == DType::F32 && super::cuda::takes(&shape) {
        return super::cuda::attention(qkv, shape, is_causal);
    }
    composed(qkv, shape, is_causal)
}

fn composed(qkv: &Tensor, shape: PackedShape, is_causal: bool) -> Result<Tensor> {
    let PackedShape { batches, length, heads, width } = shape;
    let parts = qkv.reshape((batches, length, 3, heads, width))?;
    let part = |index| parts.narrow(2, index, 1)?.squeeze(2)?.transpose(1, 2)?.contiguous();
    let (q, k, v): (Tensor, Tensor, Tensor) = (part(0)?, part(1)?, part(2)?);
    let mut scores = (q.matmul(&k.transpose(2, 3)?.contiguous()?)? * shape.scale())?;
    if is_causal {
        scores = scores.broadcast_add(&mask(length, qkv.device())?.to_dtype(qkv.dtype())?)?;
    }
    // A constant: the gradient does not depend on what is subtracted.
    let max = scores.max_keepdim(D::Minus1)?.detach();
    let weights = scores.broadcast_sub(&max)?.exp()?;
    let weights = weights.broadcast_div(&weights.sum_keepdim(D::Minus1)?)?;
    weights.matmul(&v)?.transpose(1, 2)?.reshape(shape.output())
}

/// (T, T): minus infinity where the position of the column is after that of the row, else 0.
fn mask(length: usize, device: &Device) -> Result<Tensor> {
    let rows =
        (0..length).flat_map(|row| (0..length).map(move |column| if column > row { f32::NEG_INFINITY } else { 0.0 }));
    Tensor::from_iter(rows, device)?.reshape((length, length))
}

#[cfg(test)]
mod tests;
