//! How much of a seed acts.

use candle_core::{Result, Tensor};

use crate::graft::rounded;

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
    /// A fixed α becomes a tensor as well, of the number that the device scalar would hold: it gives the same bits.
    pub(super) fn alpha(self, like: &Tensor) -> Result<Option<Tensor>> {
        match self {
            Self::Full => Ok(None),
            Self::Cell(alpha) => alpha.to_dtype(like.dtype()).map(Some),
            Self::Fixed(alpha) => {
                Tensor::full(rounded(alpha, like.dtype()), 1, like.device())?.to_dtype(like.dtype()).map(Some)
            }
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

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};
    use leyline::unit::Alpha;

    use super::*;
    use crate::graft::AlphaCell;
    use crate::host_read::read_f64;

    /// A tie between two elements is broken after the rounding to 24 bits, which may have made it.
    #[test]
    fn a_fixed_alpha_is_rounded_as_the_device_scalar_is() {
        for dtype in [DType::BF16, DType::F32, DType::F64] {
            let like = Tensor::zeros(1, dtype, &Device::Cpu).unwrap();
            for (exponent, significand) in [(-8, 128), (-8, 129), (-8, 200), (-8, 201), (-20, 255), (-130, 131)] {
                // Between the element with this significand of 8 bits and the next one.
                let tie = (f64::from(significand) + 0.5) * 2.0_f64.powi(exponent);
                for offset in [-0.25, -1e-7, -1e-9, -1e-12, 0.0, 1e-12, 1e-9, 1e-7, 0.25] {
                    let alpha = (tie * (1.0 + offset / 256.0)).min(0.999);
                    let cell = AlphaCell::new(Alpha::new(alpha).unwrap(), dtype, &Device::Cpu).unwrap();
                    let fixed = Strength::Fixed(alpha).alpha(&like).unwrap().unwrap();
                    assert_eq!((fixed.dtype(), fixed.dims()), (dtype, [1].as_slice()));
                    let [fixed, cell] = [&fixed, cell.tensor()].map(|alpha| read_f64(alpha).unwrap()[0].to_bits());
                    assert_eq!(fixed, cell, "{alpha:e} in {dtype:?}");
                }
            }
        }
    }
}
