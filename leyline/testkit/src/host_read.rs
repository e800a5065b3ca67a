//! The only reads of tensor values in this crate.

use candle_core::{DType, Result, Tensor};

/// All elements in row-major order, converted to `f32`.
///
/// # Errors
/// When the tensor cannot be converted or read.
/// # Sync
/// One device-to-host copy.
#[expect(clippy::disallowed_methods, reason = "the one counted place; tests compare values")]
pub fn values(tensor: &Tensor) -> Result<Vec<f32>> {
    tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1()
}

/// As [`values`], in `f64`.
#[expect(clippy::disallowed_methods, reason = "as there")]
pub(crate) fn values_f64(tensor: &Tensor) -> Result<Vec<f64>> {
    tensor.to_dtype(DType::F64)?.flatten_all()?.to_vec1()
}

/// Bit patterns of all elements, so that equality is exact and a NaN equals itself.
pub(crate) fn bits(tensor: &Tensor) -> Result<Vec<u32>> {
    Ok(values(tensor)?.into_iter().map(f32::to_bits).collect())
}
