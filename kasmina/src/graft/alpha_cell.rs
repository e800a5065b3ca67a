//! α of one seed as a device scalar.

use candle_core::{DType, Device, Tensor, Var};
use leyline::unit::Alpha;

/// A device tensor of shape (1,) that holds α, and the value last written to it.
#[derive(Debug, Clone)]
pub(crate) struct AlphaCell {
    var: Var,
    // Shares the variable's storage but is no variable: the backward pass must not treat α as a parameter.
    tensor: Tensor,
    value: f64,
}

impl AlphaCell {
    pub(crate) fn new(alpha: Alpha, dtype: DType, device: &Device) -> candle_core::Result<Self> {
        let var = Var::zeros(1, dtype, device)?;
        let mut cell = Self { tensor: var.as_detached_tensor(), var, value: 0.0 };
        cell.write(alpha)?;
        Ok(cell)
    }

    /// Writes α in place; nothing is written when it is there already.
    pub(crate) fn write(&mut self, alpha: Alpha) -> candle_core::Result<()> {
        let value = rounded(alpha.get(), self.var.dtype());
        if value.to_bits() != self.value.to_bits() {
            // Converted on the host: the device gets one element and runs nothing.
            let cell = Tensor::from_slice(&[value], 1, &Device::Cpu)?.to_dtype(self.var.dtype())?;
            self.var.set(&cell.to_device(self.var.device())?)?;
            self.value = value;
        }
        Ok(())
    }

    pub(crate) fn tensor(&self) -> &Tensor {
        &self.tensor
    }

    /// Whether α is zero as the network sees it: a tiny number may be zero in its type.
    pub(crate) fn is_zero(&self) -> bool {
        self.value <= 0.0
    }

    /// Whether another α would be zero as the network sees it.
    pub(crate) fn rounds_to_zero(&self, alpha: Alpha) -> bool {
        rounded(alpha.get(), self.var.dtype()) <= 0.0
    }
}

/// `alpha` as a device scalar of `dtype` holds it: rounded to `f32` first where that is wider.
#[expect(clippy::cast_possible_truncation, reason = "rounding is what it is for")]
pub(crate) fn rounded(alpha: f64, dtype: DType) -> f64 {
    match dtype {
        DType::F64 => alpha,
        DType::BF16 => {
            // To the nearest value with 16 bits fewer, ties to the even one; α is at most 1, so nothing overflows.
            let bits = (alpha as f32).to_bits();
            let bits = (bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff_0000;
            f64::from(f32::from_bits(bits))
        }
        _ => f64::from(alpha as f32),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host_read::read_f64;

    #[test]
    fn a_tensor_taken_before_a_write_sees_it() {
        for (dtype, tiny) in [(DType::F32, 1e-60), (DType::BF16, 1e-42), (DType::F64, 0.0)] {
            let mut cell = AlphaCell::new(Alpha::ZERO, dtype, &Device::Cpu).unwrap();
            let before = cell.tensor().clone();
            assert!(cell.is_zero());
            cell.write(Alpha::new(0.25).unwrap()).unwrap();
            assert_eq!(before.dtype(), dtype);
            assert_eq!(read_f64(&before).unwrap(), [0.25]);
            assert!(!cell.is_zero());
            cell.write(Alpha::new(tiny).unwrap()).unwrap();
            assert!(cell.is_zero(), "the network would multiply by zero");
        }
    }

    /// The network would multiply by zero, and then a seed of NaN must not act.
    #[test]
    fn an_alpha_is_zero_exactly_when_the_type_of_the_network_rounds_it_to_zero() {
        for dtype in [DType::F32, DType::BF16, DType::F64] {
            for exponent in [-160, -151, -150, -149, -135, -134, -133, -127, -26, -25, -24, -3] {
                for factor in [0.999, 1.0, 1.001] {
                    let alpha = Alpha::new(factor * 2.0_f64.powi(exponent)).unwrap();
                    let cell = AlphaCell::new(alpha, dtype, &Device::Cpu).unwrap();
                    let written = read_f64(cell.tensor()).unwrap()[0];
                    assert_eq!(cell.is_zero(), written <= 0.0, "{alpha} in {dtype:?} is {written:e}");
                    assert_eq!(cell.rounds_to_zero(alpha), written <= 0.0);
                }
            }
        }
    }

    #[test]
    fn the_value_kept_is_the_value_written() {
        for dtype in [DType::F32, DType::F64, DType::BF16] {
            for alpha in [0.1, 0.3, 1.0 / 3.0, 0.501_953_125, 0.505_859_375, 0.999_999_999, 1.0, 1e-40] {
                let cell = AlphaCell::new(Alpha::new(alpha).unwrap(), dtype, &Device::Cpu).unwrap();
                let written = read_f64(cell.tensor()).unwrap()[0];
                assert_eq!(written.to_bits(), cell.value.to_bits(), "{alpha} as {dtype:?}");
                let direct = Tensor::new(&[alpha], &Device::Cpu).unwrap().to_dtype(dtype).unwrap();
                assert!((read_f64(&direct).unwrap()[0] - written).abs() <= 0.004 * alpha, "{alpha} as {dtype:?}");
            }
        }
    }
}
