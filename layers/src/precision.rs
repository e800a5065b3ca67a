//! In which type a layer computes.

use candle_core::{DType, Error, Result, Tensor};

/// The type in which a layer computes on operands of this type: half precision is widened to `f32`.
///
/// # Errors
/// For a type that is no float type of a model.
pub(crate) fn compute_type(op: &'static str, dtype: DType) -> Result<DType> {
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 => Ok(DType::F32),
        DType::F64 => Ok(DType::F64),
        _ => Err(Error::UnsupportedDTypeForOp(dtype, op).bt()),
    }
}

/// Confirms that operands have one type and one device.
///
/// # Errors
/// When they differ.
pub(crate) fn expect_alike(op: &'static str, first: &Tensor, others: &[&Tensor]) -> Result<()> {
    for other in others {
        if other.dtype() != first.dtype() {
            return Err(Error::DTypeMismatchBinaryOp { lhs: first.dtype(), rhs: other.dtype(), op }.bt());
        }
        expect_same_device(op, first, other)?;
    }
    Ok(())
}

/// Confirms that two operands are on one device.
///
/// # Errors
/// When they are not.
pub(crate) fn expect_same_device(op: &'static str, first: &Tensor, other: &Tensor) -> Result<()> {
    if first.device().same_device(other.device()) {
        return Ok(());
    }
    Err(Error::DeviceMismatchBinaryOp { lhs: first.device().location(), rhs: other.device().location(), op }.bt())
}
