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
    let dtype = check(x, scale, shift)?;
    if x.elem_count() == 0 {
        return x.to_dtype(result);
    }
    if let Some(fused) = fused(x, scale, shift, epsilon, result)? {
        return Ok(fused);
    }
    let (wide, scale, shift) = (x.to_dtype(dtype)?, scale.to_dtype(dtype)?, shift.to_dtype(dtype)?);
    let normal = match fused(&wide, &scale, &shift, epsilon, dtype)? {
        Some(normal) => normal,
        None => composed(&wide, &scale, &shift, epsilon)?,
    };
    normal.to_dtype(result)
}

/// `x + addend`, and [`layer_norm_to`] of it: what follows a residual connection. On a GPU one kernel computes both where the addend
/// has the type of the result, and `x` that or `f32`.
///
/// # Shapes
/// `x` and `addend` (…, D), `scale` (D), `shift` (D); both results have the shape of `x`, and the sum has its type
/// # Errors
/// As [`layer_norm`]; for an addend of another shape.
/// # Sync
/// none
///
/// # Examples
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use esper_layers::add_layer_norm;
///
/// let (one, nothing) = (Tensor::ones(2, DType::F32, &Device::Cpu)?, Tensor::zeros(2, DType::F32, &Device::Cpu)?);
/// let of = |row: [f32; 2]| Tensor::new(&[row], &Device::Cpu);
/// let (sum, y) = add_layer_norm(&of([1.0, 3.0])?, &of([1.0, 5.0])?, &one, &nothing, 0.0, DType::F32)?;
/// assert_eq!(sum.to_vec2::<f32>()?, [[2.0, 8.0]]);
/// assert_eq!(y.to_vec2::<f32>()?, [[-1.0, 1.0]]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn add_layer_norm(
    x: &Tensor,
    addend: &Tensor,
    scale: &Tensor,
    shift: &Tensor,
    epsilon: f64,
    result: DType,
) -> Result<(Tensor, Tensor)> {
    check(x, scale, shift)?;
    if addend.shape() != x.shape() {
        candle_core::bail!("layer norm: expected an addend of {:?}, found {:?}", x.dims(), addend.dims())
    }
    #[cfg(feature = "cuda")]
    if x.elem_count() > 0
        && let Some(both) = super::cuda::add_layer_norm([x, addend], scale, shift, epsilon, result)?
    {
        return Ok(both);
    }
    let sum = (x + addend.to_dtype(x.dtype())?)?;
    let normal = layer_norm_to(&sum, scale, shift, epsilon, result)?;
    Ok((sum, normal))
}

/// The type to compute in.
fn check(x: &Tensor, scale: &Tensor, shift: &Tensor) -> Result<DType> {
    match x.dims() {
        [.., width] if scale.dims() == [*width] && shift.dims() == [*width] => {}
        dims => candle_core::bail!(
            "layer norm: expected x (…, D), scale (D) and shift (D), found {dims:?}, {:?} and {:?}",
            scale.dims(),
            shift.dims()
        ),
    }
    expect_alike("layer norm", x, &[scale, shift])?;
    compute_type("layer norm", x.dtype())
}

#[cfg(feature = "cuda")]
use super::cuda::layer_norm as fused;

#[cfg(not(feature = "cuda"))]
#[expect(clippy::unnecessary_wraps, reason = "as on a GPU")]
fn fused(_: &Tensor, _: &Tensor, _: &Tensor, _: f64, _: DType) -> Result<Option<Tensor>> {
    Ok(None)
}

fn composed(x: &Tensor, scale: &Tensor, shift: &Tensor, epsilon: f64) -> Result<Tensor> {
    let centered = x.broadcast_sub(&x.mean_keepdim(D::Minus1)?)?;
    let variance = centered.sqr()?.mean_keepdim(D::Minus1)?;
    let normal = centered.broadcast_div(&(variance + epsilon)?.sqrt()?)?;
    normal.broadcast_mul(scale)?.broadcast_add(shift)
}

#[cfg(test)]
mod tests;
