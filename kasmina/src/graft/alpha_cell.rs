//! α of one seed as a device scalar.

use candle_core::{DType, Device, Tensor, Var};
use leyline::unit::Alpha;

/// A device tensor of shape (1,) that holds α, and the value last written to it.
#[derive(Debug, Clone)]
pub(crate) struct AlphaCell {
    var: Var,
    // Shares the variable's storage but is no variable: the backward pass must not treat α as a parameter.
    tensor: Tensor,
    value: f32,
}

impl AlphaCell {
    pub(crate) fn new(alpha: Alpha, device: &Device) -> candle_core::Result<Self> {
        let var = Var::zeros(1, DType::F32, device)?;
        let mut cell = Self { tensor: var.as_detached_tensor(), var, value: 0.0 };
        cell.write(alpha)?;
        Ok(cell)
    }

    /// Writes α in place; nothing is written when it is there already.
    #[expect(clippy::cast_possible_truncation, reason = "the network computes in f32")]
    pub(crate) fn write(&mut self, alpha: Alpha) -> candle_core::Result<()> {
        let value = alpha.get() as f32;
        if value.to_bits() != self.value.to_bits() {
            self.var.set(&Tensor::from_slice(&[value], 1, self.var.device())?)?;
            self.value = value;
        }
        Ok(())
    }

    pub(crate) fn tensor(&self) -> &Tensor {
        &self.tensor
    }

    /// Whether α is zero as the network sees it: a tiny number may be zero in `f32`.
    pub(crate) fn is_zero(&self) -> bool {
        self.value <= 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host_read::read_f32;

    #[test]
    fn a_tensor_taken_before_a_write_sees_it() {
        let mut cell = AlphaCell::new(Alpha::ZERO, &Device::Cpu).unwrap();
        let before = cell.tensor().clone();
        assert!(cell.is_zero());
        cell.write(Alpha::new(0.25).unwrap()).unwrap();
        assert_eq!(read_f32(&before).unwrap(), [0.25]);
        assert!(!cell.is_zero());
        cell.write(Alpha::new(1e-60).unwrap()).unwrap();
        assert!(cell.is_zero(), "the network would multiply by zero");
    }
}
