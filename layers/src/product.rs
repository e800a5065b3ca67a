//! Products of matrices as layers form them, for who forms products without layers.

#[cfg(feature = "cuda")]
use candle_core::Device;
use candle_core::{DType, Result, Tensor};

/// The product of two matrices (…, m, k) and (…, k, n) as (…, m, n) of `f32`, contiguous, where layers have a shorter way to it than candle; none
/// elsewhere: on the CPU, of another `dtype`, of more than one matrix, where a matrix lies neither as it is nor transposed.
///
/// On GPUs of compute capability 9.0 products of `f32` with 32 rows and columns or more are formed on tensor cores with the error of `f32`, unless both
/// matrices lie transposed; and in TF32 those of wide results whose left matrix alone does, from factors that are transposed first. Where the
/// library has one, sums of factors of `bf16` or `f16` can be had in `f32`, not rounded. Bits differ from candle's.
///
/// # Errors
/// When the library fails.
/// # Sync
/// none
///
/// # Examples
/// ```
/// use candle_core::{DType, Device, Tensor};
///
/// let ones = Tensor::ones((2, 2), DType::F32, &Device::Cpu)?;
/// assert!(esper_layers::product(&ones, &ones.t()?, DType::F32)?.is_none());
/// # Ok::<(), candle_core::Error>(())
/// ```
#[cfg_attr(not(feature = "cuda"), expect(unused_variables, reason = "only a GPU has other products"))]
pub fn product(left: &Tensor, right: &Tensor, dtype: DType) -> Result<Option<Tensor>> {
    #[cfg(feature = "cuda")]
    if let Device::Cuda(gpu) = left.device()
        && left.device().same_device(right.device())
    {
        return crate::device::product_of_tensors(gpu, left, right, dtype);
    }
    Ok(None)
}
