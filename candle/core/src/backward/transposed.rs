//! Products of matrices that were transposed for them, as every linear layer transposes its weight: the gradient is computed as the
//! matrix itself lies, where candle computes that of the transposed one and turns it by a copy.

use crate::op::Op;
use crate::{Result, Tensor};

/// Operations of a product per number that is moved, beside which transposing both factors is short, as for layers (`tiles.rs`).
#[cfg(feature = "cuda")]
const MIN_OPERATIONS: usize = 800;

/// What `matrix` is the transpose of, by its last two dimensions.
pub(crate) fn untransposed(matrix: &Tensor) -> Option<&Tensor> {
    let Some(Op::Transpose(of, one, other)) = matrix.op() else { return None };
    let (first, second) = (one.min(other), one.max(other));
    (first + 2 == matrix.rank() && second + 1 == matrix.rank()).then_some(of)
}

/// Gradients of both operands of a product, of that of the product, each with what it is the gradient of: an operand, or what that is
/// the transpose of.
pub(crate) fn gradients<'a>(lhs: &'a Tensor, rhs: &'a Tensor, grad: &Tensor) -> Result<[(&'a Tensor, Tensor); 2]> {
    let left = match untransposed(lhs) {
        Some(of) => (of, rhs.matmul(&grad.t()?)?),
        None => (lhs, grad.matmul(&rhs.t()?)?),
    };
    let right = match untransposed(rhs) {
        Some(of) => (of, across(grad, lhs)?),
        None => (rhs, lhs.t()?.matmul(grad)?),
    };
    Ok([left, right])
}

/// leftᵀ·right. In TF32 the library's kernels for it take about twice as long as those for factors that are transposed before, which the
/// tensor cores of compute capability 9.0 read as they lie.
fn across(left: &Tensor, right: &Tensor) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if is_slow(left, right)? {
        return left.t()?.contiguous()?.matmul(&right.t()?.contiguous()?.t()?);
    }
    // Of one matrix for all of a batch on the right, candle on the CPU takes what lies transposed on the left for rows.
    if right.stride()[..right.rank() - 2].contains(&0) {
        return right.t()?.matmul(left)?.t();
    }
    left.t()?.matmul(right)
}

#[cfg(feature = "cuda")]
fn is_slow(left: &Tensor, right: &Tensor) -> Result<bool> {
    let crate::Device::Cuda(device) = left.device() else { return Ok(false) };
    let is_tf32 = left.dtype() == crate::DType::F32 && crate::cuda_backend::gemm_reduced_precision_f32();
    let (&[_, rows], &[_, columns]) = (left.dims(), right.dims()) else { return Ok(false) };
    if !is_tf32 || rows.saturating_mul(columns) / (rows + columns).max(1) < MIN_OPERATIONS {
        return Ok(false);
    }
    let capability = device.cuda_stream().context().compute_capability();
    Ok(capability.map_err(crate::cuda_backend::CudaError::from)? == (9, 0))
}
