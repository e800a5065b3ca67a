//! Upsampling to any size. It is a product with a matrix along each dimension; the gradient is the product with its transpose.
//!
//! The matrix is what the operation itself makes of unit vectors, so both agree on every rule of rounding.

use std::sync::Arc;

use crate::op::{BackpropOp, Op};
use crate::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};

/// Rows are unit vectors (size, size), made on the device.
fn units(size: usize, like: &Tensor) -> Result<Tensor> {
    let (dtype, device) = (like.dtype(), like.device());
    let one = Tensor::ones((size, 1), dtype, device)?;
    let rows = Tensor::cat(&[&one, &Tensor::zeros((size, size), dtype, device)?], 1)?;
    rows.flatten_all()?.narrow(0, 0, size * size)?.reshape((size, size))
}

/// `grad` (…, target) times the transpose of `matrix` (size, target): (…, size).
fn shrink(grad: &Tensor, matrix: &Tensor) -> Result<Tensor> {
    let (size, target) = matrix.dims2()?;
    let mut dims = grad.dims().to_vec();
    let rows = grad.contiguous()?.reshape(((), target))?.matmul(&matrix.t()?.contiguous()?)?;
    if let Some(last) = dims.last_mut() {
        *last = size;
    }
    rows.reshape(dims)
}

/// The gradient of `arg` (N, C, H, W), where `up` upsamples one dimension: of `(1, H, H, 1)` the third, of `(1, W, 1, W)` the fourth.
fn separable(arg: &Tensor, grad: &Tensor, up: impl Fn(&Tensor, bool) -> Result<Tensor>) -> Result<Tensor> {
    let (_, _, height, width) = arg.dims4()?;
    let (_, _, tall, wide) = grad.dims4()?;
    let down = up(&units(height, arg)?.reshape((1, height, height, 1))?, true)?.reshape((height, tall))?;
    let right = up(&units(width, arg)?.reshape((1, width, 1, width))?, false)?.reshape((width, wide))?;
    shrink(&shrink(grad, &right)?.transpose(2, 3)?, &down)?.transpose(2, 3)?.contiguous()
}

pub(crate) fn nearest1d(arg: &Tensor, grad: &Tensor, target: usize) -> Result<Tensor> {
    let (_, _, size) = arg.dims3()?;
    let matrix = units(size, arg)?.reshape((1, size, size))?.upsample_nearest1d(target)?.reshape((size, target))?;
    shrink(grad, &matrix)
}

pub(crate) fn nearest2d(arg: &Tensor, grad: &Tensor, tall: usize, wide: usize) -> Result<Tensor> {
    separable(arg, grad, |x, down| if down { x.upsample_nearest2d(tall, 1) } else { x.upsample_nearest2d(1, wide) })
}

pub(crate) fn bilinear2d(arg: &Tensor, grad: &Tensor, tall: usize, wide: usize, corners: bool) -> Result<Tensor> {
    separable(arg, grad, |x, down| {
        if down {
            x.upsample_bilinear2d(tall, 1, corners)
        } else {
            x.upsample_bilinear2d(1, wide, corners)
        }
    })
}

/// Bilinear upsampling by factors, which candle's own record of it leaves out.
struct ByScale(f64, f64, bool);

pub(crate) fn by_scale(arg: &Tensor, down: f64, right: f64, corners: bool) -> BackpropOp {
    BackpropOp::new1(arg, |arg| Op::CustomOp1(arg, Arc::new(Box::new(ByScale(down, right, corners)))))
}

impl CustomOp1 for ByScale {
    fn name(&self) -> &'static str {
        "upsample-bilinear2d-with-scale"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        crate::bail!("{} is recorded only", self.name())
    }

    fn bwd(&self, arg: &Tensor, _: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        let Self(down, right, corners) = *self;
        separable(arg, grad, |x, is_down| {
            let (down, right) = if is_down { (down, 1.0) } else { (1.0, right) };
            x.upsample_bilinear2d_with_scale(down, right, corners)
        })
        .map(Some)
    }
}
