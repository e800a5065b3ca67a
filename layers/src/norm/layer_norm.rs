//! Layer normalization.

use candle_core::{D, DType, Result, Tensor};

use crate::precision::{compute_type, expect_alike};

/// Each row of `x` brought to mean 0 and variance 1, times `scale` plus `shift`, with gradients for all three.
///
/// The variance divides by D; `epsilon` is added to it. Half precision is computed in `f32`.
///
/// # Shapes
/// `x` (…, D), `scale` (D), `shift` (D), of one float type; the result has the shape of `x`
/// # Errors
/// For other shapes, for types that differ or are no float types, and when the device fails.
/// # Sync
/// none
/// # Source
/// Ba, Kiros, Hinton 2016, "Layer normalization", arXiv 1607.06450, equation 4
///
/// # Examples
/// ```
/// use candle_core::{Device, Tensor};
/// use esper_layers::layer_norm;
///
/// let row = |values: [f32; 2]| Tensor::new(&values, &Device::Cpu);
/// let x = Tensor::new(&[[1.0_f32, 3.0]], &Device::Cpu)?;
/// let y = layer_norm(&x, &row([1.0, 2.0])?, &row([0.0, 10.0])?, 0.0)?;
/// assert_eq!(y.to_vec2::<f32>()?, [[-1.0, 12.0]]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn layer_norm(x: &Tensor, scale: &Tensor, shift: &Tensor, epsilon: f64) -> Result<Tensor> {
    layer_norm_to(x, scale, shift, epsilon, x.dtype())
}

/// [`layer_norm`] with a result of another type, such as the `bf16` that a product multiplies: on a GPU it is rounded where it
/// is computed, and its gradient is read so.
///
/// # Errors
/// As [`layer_norm`].
/// # Sync
/// none
///
/// # Examples
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use esper_layers::layer_norm_to;
///
/// let (one, nothing) = (Tensor::ones(2, DType::F32, &Device::Cpu)?, Tensor::zeros(2, DType::F32, &Device::Cpu)?);
/// let x = Tensor::new(&[[1.0_f32, 3.0]], &Device::Cpu)?;
/// let y = layer_norm_to(&x, &one, &nothing, 0.0, DType::BF16)?;
/// assert_eq!(y.dtype(), DType::BF16);
/// assert_eq!(y.to_dtype(DType::F32)?.to_vec2::<f32>()?, [[-1.0, 1.0]]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn layer_norm_to(x: &Tensor, scale: &Tensor, shift: &Tensor, epsilon: f64, result: DType) -> Result<Tensor> {
    let width = match x.dims() {
        [.., width] if scale.dims() == [*width] && shift.dims() == [*width] => *width,
        dims => candle_core::bail!(
            "layer norm: expected x (…, D), scale (D) and shift (D), found {dims:?}, {:?} and {:?}",
            scale.dims(),
            shift.dims()
        ),
    };
    expect_alike("layer norm", x, &[scale, shift])?;
    let dtype = compute_type("layer norm", x.dtype())?;
    if width == 0 || x.elem_count() == 0 {
        return x.to_dtype(result);
    }
    let (wide, scale, shift) = (x.to_dtype(dtype)?, scale.to_dtype(dtype)?, shift.to_dtype(dtype)?);
    run(&wide, &scale, &shift, epsilon, result)?.to_dtype(result)
}

#[cfg(feature = "cuda")]
fn run(x: &Tensor, scale: &Tensor, shift: &Tensor, epsilon: f64, result: DType) -> Result<Tensor> {
    if x.device().is_cuda() && x.dtype() == DType::F32 {
        return super::cuda::layer_norm(x, scale, shift, epsilon, result == DType::BF16);
    }
    composed(x, scale, shift, epsilon)
}

#[cfg(not(feature = "cuda"))]
fn run(x: &Tensor, scale: &Tensor, shift: &Tensor, epsilon: f64, _: DType) -> Result<Tensor> {
    composed(x, scale, shift, epsilon)
}

fn composed(x: &Tensor, scale: &Tensor, shift: &Tensor, epsilon: f64) -> Result<Tensor> {
    let centered = x.broadcast_sub(&x.mean_keepdim(D::Minus1)?)?;
    let variance = centered.sqr()?.mean_keepdim(D::Minus1)?;
    let normal = centered.broadcast_div(&(variance + epsilon)?.sqrt()?)?;
    normal.broadcast_mul(scale)?.broadcast_add(shift)
}

#[cfg(test)]
mod tests;
