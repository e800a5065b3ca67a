//! What is provided in candle's place: asked where it should be, and what it gives is what is computed with.

use candle_core::provided::{Provided, set};
use candle_core::{D, DType, Device, Result, Tensor, Var, bail};
use esper_graph::Precision;
use esper_graph::precision::{WorkingCopy, rounded_by_model, with_copies};

/// Twice the product of `f32`, a wrong one of seven terms, products of halves whose sums stay in `f32`, and no others.
fn product(left: &Tensor, right: &Tensor, dtype: DType) -> Result<Option<Tensor>> {
    let wide = |left: &Tensor| left.detach().to_dtype(DType::F64);
    match (left.dtype(), dtype) {
        _ if left.elem_count() != left.dim(D::Minus1)? * left.dim(D::Minus2)? => bail!("more than one matrix"),
        (DType::F32, DType::F32) if left.dim(D::Minus1)? == 7 => Ok(Some(left.detach())),
        (DType::F32, DType::F32) => (wide(left)?.matmul(&wide(right)?)? * 2.0)?.to_dtype(dtype).map(Some),
        (DType::F16, DType::F32) => wide(left)?.matmul(&wide(right)?)?.to_dtype(dtype).map(Some),
        _ => Ok(None),
    }
}

fn gradient(weight: &Var, loss: &Tensor) -> Result<Vec<Vec<f32>>> {
    loss.backward()?.get(weight).expect("the weight has a gradient").squeeze(0)?.to_vec2()
}

/// Once in a process, and so all in one test.
#[test]
fn what_is_provided_is_computed_with() -> Result<()> {
    assert!(set(Provided { product, rounded: rounded_by_model }));
    assert!(!set(Provided { product, rounded: rounded_by_model }));

    let cpu = &Device::Cpu;
    // As they are, one matrix with a dimension before it, and several, of which nobody is asked.
    let one = Var::new(&[[[1_f32, 2.0]]], cpu)?;
    let column = Tensor::new(&[[[3_f32], [4.0]]], cpu)?;
    let doubled = one.matmul(&column)?;
    assert_eq!(doubled.to_vec3::<f32>()?, [[[22.0]]]);
    assert_eq!(gradient(&one, &doubled.sum_all()?)?, [[6.0, 8.0]]);
    let two = Tensor::ones((2, 1, 2), DType::F32, cpu)?;
    assert_eq!(two.matmul(&two.transpose(1, 2)?)?.flatten_all()?.to_vec1::<f32>()?, [2.0, 2.0]);
    let seven = Tensor::ones((1, 7), DType::F32, cpu)?;
    let refused = seven.matmul(&seven.t()?).unwrap_err().to_string();
    assert!(refused.contains("expected [1, 1] of F32, contiguous, from who provides it"), "{refused}");

    let weight = Var::new(&[[[1_f32, 0.25], [-1.0, 3.0]]], cpu)?;
    let x = Tensor::new(&[[[1_f32, 2.0], [1.0 / 2048.0, 2.0]]], cpu)?.to_dtype(DType::F16)?;
    let halved = |of: &Tensor| of.to_dtype(DType::F16);
    let sum = |of: Tensor| of.to_dtype(DType::F32)?.sum_all();
    let transposed = |weight: &Tensor| sum(x.matmul(&halved(weight)?.transpose(1, 2)?)?);
    let plain = |weight: &Tensor| sum(x.matmul(&halved(weight)?)?);
    // 1 + 1/2048 has twelve bits: f16 would make 1 of it.
    let long = 1.0 + 1.0 / 2048.0;
    assert_eq!(gradient(&weight, &transposed(&weight)?)?, [[long, 4.0], [long, 4.0]]);
    assert_eq!(gradient(&weight, &plain(&weight)?)?, [[long, long], [4.0, 4.0]]);
    let twice = (transposed(&weight)? + plain(&weight)?)?;
    assert_eq!(gradient(&weight, &twice)?, [[2.0 * long, 4.0 + long], [4.0 + long, 8.0]]);
    // Both factors the same parameter: of Σ w·wᵀ each number has twice the sum of its column.
    let squared = sum(halved(&weight)?.matmul(&halved(&weight)?.transpose(1, 2)?)?)?;
    assert_eq!(gradient(&weight, &squared)?, [[0.0, 6.5], [0.0, 6.5]]);
    // What was computed is rounded as ever, and its gradient with it.
    let computed = weight.affine(1.0, 0.0)?;
    assert_eq!(gradient(&weight, &transposed(&computed)?)?, [[1.0, 4.0], [1.0, 4.0]]);

    let copy = halved(&Tensor::full(0.5_f32, (1, 2, 2), cpu)?)?;
    let copies = vec![WorkingCopy::new(&weight, &copy)?];
    let (seen, num_asked) = with_copies(Precision::F32, copies, || transposed(&weight));
    assert_eq!((seen?.to_scalar::<f32>()?, num_asked), (5.0, 1));
    assert_eq!(halved(&weight)?.to_dtype(DType::F32)?.to_vec3::<f32>()?, weight.to_vec3::<f32>()?);
    assert_eq!(weight.to_dtype(DType::F64)?.to_vec3::<f64>()?, [[[1.0, 0.25], [-1.0, 3.0]]]);
    Ok(())
}
