//! Products of matrices that were transposed for them, as every linear layer transposes its weight: the gradient is computed as the
//! matrix itself lies, where candle computes that of the transposed one and turns it by a copy.

use crate::op::Op;
use crate::{Result, Tensor};

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
        Some(of) => (of, grad.t()?.matmul(lhs)?),
        None => (rhs, lhs.t()?.matmul(grad)?),
    };
    Ok([left, right])
}
