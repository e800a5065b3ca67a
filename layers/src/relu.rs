//! The rectifier.

use candle_core::backend::BackendStorage as _;
use candle_core::{CpuStorage, CudaStorage, CustomOp1, Layout, Result, Shape, Tensor, op};

/// max(0, x), whose derivative at 0 is 0 on every device, as PyTorch has it: candle's own `Tensor::relu` passes the
/// gradient on there. Where an element is not above 0 the gradient is 0, whatever comes from above. Of what is no number it makes 0, as
/// candle does: it hides that an input is none.
///
/// # Errors
/// When the device fails.
/// # Sync
/// none
///
/// # Examples
/// ```
/// use candle_core::{Device, Var};
/// use esper_layers::relu;
///
/// let x = Var::new(&[-1.0_f32, 0.0, 2.0], &Device::Cpu)?;
/// let y = relu(&x)?;
/// assert_eq!(y.to_vec1::<f32>()?, [0.0, 0.0, 2.0]);
/// assert_eq!(y.sum_all()?.backward()?.get(&x).expect("a gradient").to_vec1::<f32>()?, [0.0, 0.0, 1.0]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn relu(x: &Tensor) -> Result<Tensor> {
    x.apply_op1(Relu)
}

struct Relu;

impl CustomOp1 for Relu {
    fn name(&self) -> &'static str {
        "relu"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok((storage.unary_impl::<op::Relu>(layout)?, layout.shape().clone()))
    }

    fn cuda_fwd(&self, storage: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        Ok((storage.unary_impl::<op::Relu>(layout)?, layout.shape().clone()))
    }

    fn bwd(&self, _x: &Tensor, output: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        let zeros = output.zeros_like()?;
        output.gt(&zeros)?.where_cond(gradient, &zeros).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Var};

    use super::*;
    use crate::testing::read;

    #[test]
    fn the_derivative_at_zero_is_zero_and_outputs_are_candles() {
        for dtype in [DType::F32, DType::F64, DType::BF16] {
            let values = [-2.0_f64, -0.0, 0.0, 1e-30, 3.0, f64::NEG_INFINITY];
            let x = Var::from_tensor(&Tensor::new(&values, &Device::Cpu).unwrap().to_dtype(dtype).unwrap()).unwrap();
            let mix = Tensor::new(&[1.0_f64, 2.0, 3.0, 4.0, -5.0, 6.0], &Device::Cpu).unwrap().to_dtype(dtype).unwrap();
            let output = relu(&x).unwrap();
            assert_eq!(read(&output), read(&x.relu().unwrap()), "{dtype:?}");
            let gradients = (output * mix).unwrap().sum_all().unwrap().backward().unwrap();
            assert_eq!(read(gradients.get(&x).unwrap()), [0.0, 0.0, 0.0, 4.0, -5.0, 0.0], "{dtype:?}");
        }
    }

    #[test]
    fn what_is_no_number_becomes_zero_as_with_candle() {
        let x = Tensor::new(&[f32::NAN, 1.0], &Device::Cpu).unwrap();
        assert_eq!([read(&relu(&x).unwrap()), read(&x.relu().unwrap())], [[0.0, 1.0], [0.0, 1.0]]);
    }

    #[test]
    fn views_are_read_where_they_are() {
        let x = Var::new(&[[-1.0_f64, 2.0, 0.0], [3.0, -4.0, 5.0]], &Device::Cpu).unwrap();
        let output = relu(&x.t().unwrap()).unwrap();
        assert_eq!((output.dims(), read(&output)), (&[3, 2][..], vec![0.0, 3.0, 2.0, 0.0, 0.0, 5.0]));
        let gradients = output.sum_all().unwrap().backward().unwrap();
        assert_eq!(read(gradients.get(&x).unwrap()), [0.0, 1.0, 0.0, 1.0, 0.0, 1.0]);
    }
}
