//! Products and rounded weights that another package computes in candle's place, once it was [`set`]. Nothing is, at first.

use std::sync::OnceLock;

use crate::{DType, Result, Tensor};

/// What is asked before candle computes; of each answer that is none candle computes as it did.
#[derive(Debug, Clone, Copy)]
pub struct Provided {
    /// The product of two matrices (…, m, k) and (…, k, n), all other dimensions of which are 1, as (…, m, n) of a type, contiguous. The type is
    /// theirs, or `f32` for the gradient of a parameter of `f32` that was rounded for a product.
    pub product: fn(&Tensor, &Tensor, DType) -> Result<Option<Tensor>>,
    /// A variable in another type, which nobody may write to but who gives it, nor read once that one may have.
    pub rounded: fn(&Tensor, DType) -> Option<Tensor>,
}

static PROVIDED: OnceLock<Provided> = OnceLock::new();

/// Has these asked from now on, in all threads; false if others were set before, which then stay.
///
/// # Examples
/// ```
/// use candle_core::provided::{Provided, set};
/// use candle_core::{DType, Device, Tensor, Var};
///
/// // Products of ones, and numbers that are rounded to 2.
/// let provided = Provided {
///     product: |left, right, dtype| Tensor::ones((left.dim(0)?, right.dim(1)?), dtype, left.device()).map(Some),
///     rounded: |variable, dtype| Tensor::full(2_f64, variable.dims(), variable.device()).ok().filter(|found| found.dtype() == dtype),
/// };
/// assert!(set(provided) && !set(provided));
/// let weight = Var::new(&[[3_f32]], &Device::Cpu)?;
/// assert_eq!(weight.matmul(&weight)?.to_vec2::<f32>()?, [[1.0]]);
/// assert_eq!(weight.to_dtype(DType::F64)?.to_vec2::<f64>()?, [[2.0]]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn set(provided: Provided) -> bool {
    PROVIDED.set(provided).is_ok()
}

pub(crate) fn product(left: &Tensor, right: &Tensor, dtype: DType) -> Result<Option<Tensor>> {
    let Some(provided) = PROVIDED.get() else { return Ok(None) };
    let mut dims = left.dims().to_vec();
    let batch = dims.len() - 2;
    if dims[..batch].iter().any(|&size| size != 1) {
        return Ok(None);
    }
    dims[batch + 1] = right.dims()[batch + 1];
    (provided.product)(left, right, dtype)?.map(|found| confirmed(found, &dims, dtype)).transpose()
}

pub(crate) fn rounded(variable: &Tensor, dtype: DType) -> Result<Option<Tensor>> {
    let provided = PROVIDED.get().filter(|_| variable.is_variable());
    let found = provided.and_then(|provided| (provided.rounded)(variable, dtype));
    found.map(|found| confirmed(found, variable.dims(), dtype)).transpose()
}

fn confirmed(found: Tensor, dims: &[usize], dtype: DType) -> Result<Tensor> {
    if (found.dims(), found.dtype(), found.is_contiguous()) != (dims, dtype, true) {
        crate::bail!("expected {dims:?} of {dtype:?}, contiguous, from who provides it: found {found:?}")
    }
    Ok(found)
}
