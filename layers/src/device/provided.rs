//! Products of tensors that are not layers'.

use candle_core::cuda_backend::gemm_reduced_precision_f32;
use candle_core::{CudaDevice, D, DType, Result, Tensor};

use super::array::{Array, Scalar, unwritten_tensor};
use super::product::{Epilogue, multiply};
use super::split::kernel;
use super::transpose::is_better_transposed;
use crate::matrix::Product;

/// See [`crate::product()`]; both are on `device`.
pub(crate) fn product_of_tensors(
    device: &CudaDevice,
    left: &Tensor,
    right: &Tensor,
    dtype: DType,
) -> Result<Option<Tensor>> {
    let is_half = matches!(left.dtype(), DType::BF16 | DType::F16);
    let is_known = left.dtype() == right.dtype() && dtype == DType::F32 && (is_half || left.dtype() == DType::F32);
    let mut shape = left.dims().to_vec();
    let (Some([m, k]), Some([inner, n])) = (matrix(left), matrix(right)) else { return Ok(None) };
    if !is_known || inner != k || m * n * k == 0 {
        return Ok(None);
    }
    shape.splice(shape.len() - 2.., [m, n]);
    let (Some((left, is_left_transposed)), Some((right, is_right_transposed))) =
        (as_it_lies(left)?, as_it_lies(right)?)
    else {
        return Ok(None);
    };
    let product = Product { m, n, k, is_left_transposed, is_right_transposed };
    let is_better = if is_half {
        true
    } else if gemm_reduced_precision_f32() {
        is_better_transposed(device, &product)?
    } else {
        kernel(device, &product)?.is_some()
    };
    if !is_better {
        return Ok(None);
    }
    let factors = (Array::of_tensor(&left)?, Array::of_tensor(&right)?);
    let result = unwritten_tensor(device, shape, Scalar::F32)?;
    let is_written = multiply(device, &product, factors, Array::of_tensor(&result)?, &Epilogue::None)?;
    Ok(is_written.then_some(result))
}

/// Rows and columns; none of more matrices than one.
fn matrix(tensor: &Tensor) -> Option<[usize; 2]> {
    let (&[rows, columns], batch) = tensor.dims().split_last_chunk::<2>().map(|(batch, last)| (last, batch))?;
    batch.iter().all(|&size| size == 1).then_some([rows, columns])
}

/// The matrix with its elements side by side, and whether that is its transpose.
fn as_it_lies(tensor: &Tensor) -> Result<Option<(Tensor, bool)>> {
    let tensor = tensor.detach();
    if tensor.is_contiguous() {
        return Ok(Some((tensor, false)));
    }
    let transposed = tensor.transpose(D::Minus2, D::Minus1)?;
    Ok(transposed.is_contiguous().then_some((transposed, true)))
}
