//! Rotary embeddings: pairs of features turned by an angle. The gradient is turned back.

use super::{wanted, wide};
use candle::{Result, Tensor, D};

/// Which features are a pair, and where the time is.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Layout {
    /// (B, H, T, D): the first half and the second.
    Halves,
    /// (B, H, T, D): neighbors.
    Pairs,
    /// (B, T, H, D): the first half and the second.
    HalvesByTime,
}

impl Layout {
    pub(crate) fn backward(
        self,
        x: &Tensor,
        cos: &Tensor,
        sin: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let of_x = wanted(x, || {
            let (grad, cos, back) = (grad.contiguous()?, cos.detach(), sin.detach().neg()?);
            match self {
                Self::Halves => crate::rotary_emb::rope(&grad, &cos, &back),
                Self::Pairs => crate::rotary_emb::rope_i(&grad, &cos, &back),
                Self::HalvesByTime => crate::rotary_emb::rope_thd(&grad, &cos, &back),
            }
        })?;
        if !cos.track_op() && !sin.track_op() {
            return Ok((of_x, None, None));
        }
        let ((x1, x2), (g1, g2)) = (self.split(&wide(x)?)?, self.split(&wide(grad)?)?);
        let of_cos = wanted(cos, || self.angles(&((&g1 * &x1)? + (&g2 * &x2)?)?, cos))?;
        let of_sin = wanted(sin, || self.angles(&((&g2 * &x1)? - (&g1 * &x2)?)?, sin))?;
        Ok((of_x, of_cos, of_sin))
    }

    /// Both features of each pair, (…, D/2).
    fn split(self, x: &Tensor) -> Result<(Tensor, Tensor)> {
        let half = x.dim(D::Minus1)? / 2;
        if let Self::Pairs = self {
            let mut dims = x.dims().to_vec();
            dims.pop();
            dims.extend([half, 2]);
            let pairs = x.contiguous()?.reshape(dims)?;
            let of = |index| pairs.narrow(D::Minus1, index, 1)?.squeeze(D::Minus1)?.contiguous();
            return Ok((of(0)?, of(1)?));
        }
        let of = |start| x.narrow(D::Minus1, start, half)?.contiguous();
        Ok((of(0)?, of(half)?))
    }

    /// Sums over what shares an angle, to the shape of `like`: (T, D/2) or (B, T, D/2).
    fn angles(self, x: &Tensor, like: &Tensor) -> Result<Tensor> {
        let by_batch = x.sum(if let Self::HalvesByTime = self { 2 } else { 1 })?;
        let sum = if like.rank() == 2 { by_batch.sum(0)? } else { by_batch };
        // Only the first angles were used where there are more.
        let missing = like.dim(D::Minus2)? - sum.dim(D::Minus2)?;
        sum.pad_with_zeros(D::Minus2, 0, missing)
    }
}
