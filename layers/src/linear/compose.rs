//! A linear layer of candle's operations: the definition of what [`linear`](super::linear) computes.

use candle_core::{DType, Result, Tensor};

use super::options::{Activation, LinearOptions, WeightOrder};
use crate::relu::relu;

/// activation(x·W + b) for `x` (N, in), already checked.
pub(super) fn compose(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, options: &LinearOptions) -> Result<Tensor> {
    let result = x.dtype();
    let half = options.precision.half(result).or_else(|| (result == DType::BF16).then_some(result));
    let Some(half) = half else { return affine(x, weight, bias, options) };
    // Products of half precision are added as `f32`, and there are none of `bf16` on the CPU.
    let sums = if result == DType::BF16 { DType::F32 } else { result };
    let round = |tensor: &Tensor| tensor.to_dtype(half)?.to_dtype(sums);
    let bias = bias.map(|bias| if result == DType::BF16 { round(bias) } else { bias.to_dtype(sums) }).transpose()?;
    affine(&round(x)?, &round(weight)?, bias.as_ref(), options)?.to_dtype(result)
}

fn affine(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, options: &LinearOptions) -> Result<Tensor> {
    let product = match options.order {
        WeightOrder::InOut => x.matmul(weight)?,
        WeightOrder::OutIn => x.matmul(&weight.t()?)?,
    };
    let sum = match bias {
        Some(bias) => product.broadcast_add(bias)?,
        None => product,
    };
    match options.activation {
        Activation::None => Ok(sum),
        Activation::Relu => relu(&sum),
        Activation::Gelu => sum.gelu(),
        Activation::GeluErf => sum.gelu_erf(),
    }
}
