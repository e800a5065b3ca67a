//! Products of matrices as layers form them, for who forms products without layers.

#[cfg(feature = "cuda")]
use candle_core::Device;
use candle_core::{DType, Result, Tensor};

/// The product of two matrices (m, k) and (k, n) as (m, n) of `dtype`, contiguous, where layers have a shorter way to it than candle; none
/// elsewhere, on the CPU among others. Dimensions of 1 may come before; either matrix may lie transposed.
///
/// On GPUs of compute capability 9.0 products of `f32` are formed on tensor cores with the error of `f32`, and in TF32 the factors of wide
/// results lie transposed first. Of factors of `bf16` or `f16` the sums can be had in `f32`, not rounded. Bits differ from candle's.
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
