//! What candle's forward pass on the CPU takes for something else: one matrix for a batch whose own matrices lie transposed.

use candle_core::{Device, Result, Tensor};

fn numbers(shape: &[usize]) -> Result<Tensor> {
    let count = u32::try_from(shape.iter().product::<usize>()).expect("a few");
    Tensor::arange(0, count, &Device::Cpu)?.to_dtype(candle_core::DType::F64)?.reshape(shape)
}

fn values(tensor: &Tensor) -> Result<Vec<f64>> {
    tensor.flatten_all()?.to_vec1()
}

#[test]
fn a_permuted_batch_is_multiplied_as_it_is_read() -> Result<()> {
    let batch = numbers(&[2, 3, 5])?.transpose(1, 2)?;
    let shared = numbers(&[3, 4])?.broadcast_as((2, 3, 4))?;
    assert_eq!(values(&batch.matmul(&shared)?)?, values(&batch.contiguous()?.matmul(&shared.contiguous()?)?)?);
    Ok(())
}

#[test]
fn a_transposed_convolution_of_two_samples_is_that_of_each() -> Result<()> {
    let (samples, kernel) = (numbers(&[2, 3, 5])?, numbers(&[3, 2, 2])?);
    let of = |samples: &Tensor| samples.conv_transpose1d(&kernel, 0, 0, 1, 1, 1);
    let each = Tensor::cat(&[of(&samples.narrow(0, 0, 1)?)?, of(&samples.narrow(0, 1, 1)?)?], 0)?;
    assert_eq!(values(&of(&samples)?)?, values(&each)?);
    Ok(())
}
