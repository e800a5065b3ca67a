//! Normalizations of the last dimension: softmax, RMS norm, layer norm. On a GPU the gradients of layer norm are kernels of the candle-core beside.

use super::{wanted, wide};
use candle::{Result, Tensor, D};

/// The input of a norm as rows that lie side by side, which is copied for it where bits may be others than candle's: its own forward pass of
/// other inputs is eleven operations, that of rows one.
pub(crate) fn in_rows(x: &Tensor) -> Result<Tensor> {
    if x.device().is_cuda() && candle::grouped::is_direct() {
        return x.contiguous();
    }
    Ok(x.clone())
}

/// y (g − Σ g y) for y = softmax(x).
pub(crate) fn softmax(result: &Tensor, grad: &Tensor) -> Result<Tensor> {
    let (y, g) = (wide(result)?, wide(grad)?);
    let part = (&g * &y)?.sum_keepdim(D::Minus1)?;
    (y * g.broadcast_sub(&part)?)?.to_dtype(result.dtype())
}

/// Sum over all but the last dimension.
fn rows(x: &Tensor) -> Result<Tensor> {
    let width = x.dim(D::Minus1)?;
    x.contiguous()?.reshape(((), width))?.sum(0)
}

/// With n = x r and r = 1 / √(mean x² + ε): r (g α − n mean(g α n)) for x, Σ g n for α.
pub(crate) fn rms_norm(
    x: &Tensor,
    alpha: &Tensor,
    grad: &Tensor,
    eps: f32,
) -> Result<(Option<Tensor>, Option<Tensor>)> {
    let (wide_x, g) = (wide(x)?, wide(grad)?);
    let r = (wide_x.sqr()?.mean_keepdim(D::Minus1)? + eps as f64)?.sqrt()?.recip()?;
    let n = wide_x.broadcast_mul(&r)?;
    let of_x = wanted(x, || {
        let a = g.broadcast_mul(&wide(alpha)?)?;
        let along = n.broadcast_mul(&(&a * &n)?.mean_keepdim(D::Minus1)?)?;
        (a - along)?.broadcast_mul(&r)
    })?;
    Ok((of_x, wanted(alpha, || rows(&(&g * &n)?))?))
}

/// With n = (x − mean x) r and r = 1 / √(var x + ε): r (g α − mean(g α) − n mean(g α n)) for x, Σ g n for α, Σ g for β.
pub(crate) fn layer_norm(
    x: &Tensor,
    alpha: &Tensor,
    beta: &Tensor,
    grad: &Tensor,
    eps: f32,
) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
    #[cfg(feature = "cuda")]
    if let Some((of_x, of_weights)) = candle::norm::gradients(x, alpha, grad, eps, alpha.track_op() || beta.track_op())?
    {
        let part = |of: &Tensor, index| of_weights.as_ref().filter(|_| of.track_op()).map(|found| found.get(index));
        return Ok((x.track_op().then_some(of_x), part(alpha, 0).transpose()?, part(beta, 1).transpose()?));
    }
    let (wide_x, g) = (wide(x)?, wide(grad)?);
    let centered = wide_x.broadcast_sub(&wide_x.mean_keepdim(D::Minus1)?)?;
    let r = (centered.sqr()?.mean_keepdim(D::Minus1)? + eps as f64)?.sqrt()?.recip()?;
    let n = centered.broadcast_mul(&r)?;
    let of_x = wanted(x, || {
        let a = g.broadcast_mul(&wide(alpha)?)?;
        let along = n.broadcast_mul(&(&a * &n)?.mean_keepdim(D::Minus1)?)?;
        let level = a.mean_keepdim(D::Minus1)?;
        (a.broadcast_sub(&level)? - along)?.broadcast_mul(&r)
    })?;
    Ok((of_x, wanted(alpha, || rows(&(&g * &n)?))?, wanted(beta, || rows(&g))?))
}
