//! How much of a seed acts.

use candle_core::{Result, Tensor};

/// How much of a seed acts.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Strength<'a> {
    /// In full.
    Full,
    /// As the device scalar of shape (1,) says.
    Cell(&'a Tensor),
    /// A fixed α of an evaluation, in (0, 1).
    Fixed(f64),
}

impl Strength<'_> {
    /// α as a tensor of shape (1,), in the type and on the device of `like`; none for α = 1.
    ///
    /// A fixed α becomes a tensor as well, so that it is rounded as the device scalar is and gives the same bits.
    pub(super) fn alpha(self, like: &Tensor) -> Result<Option<Tensor>> {
        match self {
            Self::Full => Ok(None),
            Self::Cell(alpha) => alpha.to_dtype(like.dtype()).map(Some),
            Self::Fixed(alpha) => Tensor::full(alpha, 1, like.device())?.to_dtype(like.dtype()).map(Some),
        }
    }
}

/// a·x; x itself for α = 1.
pub(super) fn scaled(x: Tensor, alpha: Option<&Tensor>) -> Result<Tensor> {
    alpha.map_or(Ok(x.clone()), |alpha| x.broadcast_mul(alpha))
}

/// (1 − w)·h + w·f for a `weight` that broadcasts to the shape of `h`.
pub(super) fn toward(h: &Tensor, f: &Tensor, weight: &Tensor) -> Result<Tensor> {
    h.broadcast_mul(&weight.affine(-1.0, 1.0)?)? + f.broadcast_mul(weight)?
}
