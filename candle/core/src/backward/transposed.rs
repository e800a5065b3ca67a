//! Products of matrices that were transposed or rounded for them, as linear layers do with their weights: the gradient is computed as the
//! matrix itself lies, where candle computes that of the transposed one and turns it by a copy; and where somebody provides products of
//! halves in `f32`, it is that of the parameter before it was rounded, and not rounded itself.

use crate::op::Op;
use crate::{DType, Result, Tensor};

/// Whether [`gradients`] computes something else than candle.
pub(crate) fn is_replaced(lhs: &Tensor, rhs: &Tensor) -> bool {
    [lhs, rhs].into_iter().any(|operand| untransposed(operand).is_some() || parameter(operand).is_some())
}

/// What `operand` is the transpose of, or itself.
pub(crate) fn stored(operand: &Tensor) -> &Tensor {
    untransposed(operand).unwrap_or(operand)
}

/// Gradients of both operands of a product, of that of the product, each with what it is the gradient of: an operand, what that is
/// the transpose of, or the parameter that it was rounded from. Where gradients are `differentiable` that is left to candle: what is provided has
/// none of its own.
pub(crate) fn gradients<'a>(
    lhs: &'a Tensor,
    rhs: &'a Tensor,
    grad: &Tensor,
    differentiable: bool,
) -> Result<[(&'a Tensor, Tensor); 2]> {
    let product = |of, left: &Tensor, right: &Tensor| -> Result<(&'a Tensor, Tensor)> {
        if let Some(parameter) = parameter(of).filter(|_| !differentiable) {
            if let Some(found) = crate::provided::product(left, right, parameter.dtype())? {
                return Ok((parameter, found));
            }
        }
        Ok((of, left.matmul(right)?))
    };
    let left = match untransposed(lhs) {
        Some(of) => product(of, rhs, &grad.t()?)?,
        None => product(lhs, grad, &rhs.t()?)?,
    };
    let right = match untransposed(rhs) {
        Some(of) => product(of, &grad.t()?, lhs)?,
        None => product(rhs, &lhs.t()?, grad)?,
    };
    Ok([left, right])
}

/// By its last two dimensions.
fn untransposed(matrix: &Tensor) -> Option<&Tensor> {
    let Some(Op::Transpose(of, one, other)) = matrix.op() else { return None };
    let (first, second) = (one.min(other), one.max(other));
    (first + 2 == matrix.rank() && second + 1 == matrix.rank()).then_some(of)
}

/// The variable of `f32` that `matrix` was rounded from, to half precision.
fn parameter(matrix: &Tensor) -> Option<&Tensor> {
    let Some(Op::ToDType(of)) = matrix.op() else { return None };
    let is_half = matches!(matrix.dtype(), DType::BF16 | DType::F16);
    (is_half && of.is_variable() && of.dtype() == DType::F32).then_some(of)
}
