//! What is provided in candle's place: asked where it should be, and what it gives is what is computed with.

use candle_core::provided::{Provided, set};
use candle_core::{DType, Device, Result, Tensor, Var};
use esper_graph::Precision;
use esper_graph::precision::{WorkingCopy, rounded, with_copies};

/// Products of halves whose sums stay in `f32`, and no others.
fn product(left: &Tensor, right: &Tensor, dtype: DType) -> Result<Option<Tensor>> {
    if left.dtype() != DType::F16 || dtype != DType::F32 {
        return Ok(None);
    }
    left.to_dtype(dtype)?.matmul(&right.to_dtype(dtype)?).map(Some)
}

fn gradient(weight: &Var, loss: &Tensor) -> Result<Vec<Vec<f32>>> {
    loss.backward()?.get(weight).expect("the weight has a gradient").to_vec2()
}

#[test]
fn weights_are_copies_and_their_gradients_are_not_rounded() -> Result<()> {
    assert!(set(Provided { product, rounded }));
    let weight = Var::new(&[[1_f32, 0.25], [-1.0, 3.0]], &Device::Cpu)?;
    let x = Tensor::new(&[[1_f32, 2.0], [1.0 / 2048.0, 2.0]], &Device::Cpu)?.to_dtype(DType::F16)?;
    let transposed = |weight: &Tensor| x.matmul(&weight.to_dtype(DType::F16)?.t()?)?.to_dtype(DType::F32)?.sum_all();
    let plain = |weight: &Tensor| x.matmul(&weight.to_dtype(DType::F16)?)?.to_dtype(DType::F32)?.sum_all();

    // 1 + 1/2048 has twelve bits: f16 would make 1 of it.
    let sum = 1.0 + 1.0 / 2048.0;
    assert_eq!(gradient(&weight, &transposed(&weight)?)?, [[sum, 4.0], [sum, 4.0]]);
    assert_eq!(gradient(&weight, &plain(&weight)?)?, [[sum, sum], [4.0, 4.0]]);
    let twice = (transposed(&weight)? + plain(&weight)?)?;
    assert_eq!(gradient(&weight, &twice)?, [[2.0 * sum, 4.0 + sum], [4.0 + sum, 8.0]]);
    // What was computed is rounded as ever, and its gradient with it.
    let computed = weight.affine(1.0, 0.0)?;
    assert_eq!(gradient(&weight, &transposed(&computed)?)?, [[1.0, 4.0], [1.0, 4.0]]);

    let copy = Tensor::full(0.5_f32, (2, 2), &Device::Cpu)?.to_dtype(DType::F16)?;
    let copies = vec![WorkingCopy::new(&weight, &copy)?];
    let (seen, num_asked) = with_copies(Precision::F32, copies, || weight.to_dtype(DType::F16));
    assert_eq!((seen?.to_dtype(DType::F32)?.to_vec2::<f32>()?, num_asked), (vec![vec![0.5; 2]; 2], 1));
    assert_eq!(weight.to_dtype(DType::F16)?.to_dtype(DType::F32)?.to_vec2::<f32>()?, weight.to_vec2::<f32>()?);
    assert_eq!(weight.to_dtype(DType::F64)?.to_vec2::<f64>()?, [[1.0, 0.25], [-1.0, 3.0]]);
    Ok(())
}
