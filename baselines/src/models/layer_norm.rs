//! Layer normalization, from basic operations or fused.
//!
//! The fused operation of `candle-nn` has no gradient and does not say so.

use candle_core::{D, DType, Tensor, Var};

use super::{Draw, Form, Precision, Variables, Variant};

const EPS: f64 = 1e-5;

/// Normalizes each row, then scales and shifts it (Ba et al. 2016, arXiv 1607.06450).
#[derive(Debug, Clone)]
pub(super) struct LayerNorm {
    variant: Variant,
    scale: Var,
    shift: Var,
}

impl LayerNorm {
    pub(super) fn new(
        name: &str,
        width: usize,
        variant: Variant,
        draw: &Draw,
        variables: &mut Variables,
    ) -> candle_core::Result<Self> {
        let scale = Var::ones(width, draw.dtype(), draw.device())?;
        let shift = Var::zeros(width, draw.dtype(), draw.device())?;
        variables.push((format!("{name}.scale"), scale.clone()));
        variables.push((format!("{name}.shift"), shift.clone()));
        Ok(Self { variant, scale, shift })
    }

    /// `x + addend`, and that normalized.
    pub(super) fn forward_sum(&self, x: &Tensor, addend: &Tensor) -> candle_core::Result<(Tensor, Tensor)> {
        if self.variant.form == Form::Layers {
            return esper_layers::add_layer_norm(x, addend, &self.scale, &self.shift, EPS, self.dtype(x));
        }
        let sum = (x + addend.to_dtype(x.dtype())?)?;
        let normal = self.forward(&sum)?;
        Ok((sum, normal))
    }

    /// What products multiply in `bf16`, and give on to each other, as with PyTorch's autocast.
    fn dtype(&self, x: &Tensor) -> DType {
        if self.variant.precision == Precision::Bf16 { DType::BF16 } else { x.dtype() }
    }

    /// Shape (…, width) stays.
    pub(super) fn forward(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        debug_assert!(matches!(x.dtype(), DType::F32 | DType::F64 | DType::BF16));
        if self.variant.form == Form::Layers {
            return esper_layers::layer_norm_to(x, &self.scale, &self.shift, EPS, self.dtype(x));
        }
        let centered = x.broadcast_sub(&x.mean_keepdim(D::Minus1)?)?;
        let variance = centered.sqr()?.mean_keepdim(D::Minus1)?;
        let deviation = (variance + EPS)?.sqrt()?;
        centered.broadcast_div(&deviation)?.broadcast_mul(&self.scale)?.broadcast_add(&self.shift)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;
    use tolaria::host_read::{HostReads, read_vec_f64};

    use super::*;

    #[test]
    fn rows_get_mean_0_and_variance_1_before_scale_and_shift() {
        for form in Form::ALL {
            check(form);
        }
    }

    fn check(form: Form) {
        let mut draw = Draw::new(0, &Device::Cpu).with_dtype(DType::F64);
        let mut variables = Variables::new();
        let norm = LayerNorm::new("norm", 16, Variant::of(form), &draw, &mut variables).unwrap();
        norm.shift.set(&Tensor::full(3.0, 16, &Device::Cpu).unwrap()).unwrap();
        norm.scale.set(&Tensor::full(2.0, 16, &Device::Cpu).unwrap()).unwrap();
        let rows = norm.forward(&draw.uniform((5, 16), 4.0).unwrap()).unwrap();
        for row in read_vec_f64(&rows, "rows", &mut HostReads::default()).unwrap().chunks(16) {
            let mean = row.iter().sum::<f64>() / 16.0;
            let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 16.0;
            assert!((mean - 3.0).abs() < 1e-12, "{mean}");
            // EPS against a variance of about 5 takes off 1e-5 of it.
            assert!((variance - 4.0).abs() < 1e-4, "{variance}");
        }
    }
}
