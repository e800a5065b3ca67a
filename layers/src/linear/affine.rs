//! The linear layer as one function of its weights.

use candle_core::{DType, Result, Tensor, bail};

use super::compose::compose;
use super::cpu;
use super::options::{Activation, LinearOptions, WeightOrder};
use crate::operations::count;

/// activation(x·W + b), with gradients for all three.
///
/// On the CPU contiguous `f32` goes to one operation with the bits of candle's, but for [`Activation::Gelu`](super::Activation::Gelu), which
/// computes the gradients that are asked for and no others. On a GPU `f32` and `bf16` go to fused products (see [`Precision`](super::Precision) and candle's switch
/// for TF32 products, which applies here too); with a weight (out, in), up to 16 outputs of up to 4096 rows, inputs in multiples of 4,
/// and one row without a bias, to kernels of their own, whose sums are those of `f32`, for TF32 too; so does the gradient of such a weight,
/// up to 32 rows. Other types, layouts and devices go to candle's operations. The first product
/// on a GPU creates the handle of its library, which is not possible while a graph is recorded: run the step once before.
/// Gradients of gradients exist on the last of these ways only.
///
/// # Shapes
/// `x` (…, in); `weight` (in, out) or (out, in), see [`WeightOrder`]; `bias` (out) → (…, out)
/// # Errors
/// When shapes or types do not fit together: `weight` has the type of `x`, or is `f32` for an `x` of `bf16`, and then so
/// are the gradients of weight and bias; `bias` has the type of `weight`.
/// # Sync
/// none
///
/// # Examples
/// ```
/// use candle_core::{Device, Tensor, Var};
/// use esper_layers::{Activation, LinearOptions, linear};
///
/// let weight = Var::new(&[[1.0_f32, 0.0], [0.0, -1.0]], &Device::Cpu)?;
/// let (x, bias) = (Tensor::new(&[[1.0_f32, 2.0]], &Device::Cpu)?, Tensor::new(&[0.5_f32, 0.5], &Device::Cpu)?);
/// let options = LinearOptions { activation: Activation::Relu, ..LinearOptions::default() };
/// let y = linear(&x, &weight, Some(&bias), &options)?;
/// assert_eq!(y.to_vec2::<f32>()?, [[1.5, 0.0]]);
/// let gradients = y.sum_all()?.backward()?;
/// assert_eq!(gradients.get(&weight).expect("a gradient").to_vec2::<f32>()?, [[1.0, 0.0], [2.0, 0.0]]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, options: &LinearOptions) -> Result<Tensor> {
    let num_outputs = check(x, weight, bias, options.order)?;
    let num_inputs = x.dim(candle_core::D::Minus1)?;
    let rows = if x.rank() == 2 { x.clone() } else { x.reshape(((), num_inputs))? };
    count([x, weight], x.elem_count() * num_outputs);
    let output = evaluate(&rows, weight, bias, options)?;
    if x.rank() == 2 {
        return Ok(output);
    }
    let mut shape = x.dims().to_vec();
    shape.pop();
    shape.push(num_outputs);
    output.reshape(shape)
}

fn evaluate(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, options: &LinearOptions) -> Result<Tensor> {
    let has_one_way = options.activation == Activation::Gelu || options.precision.half(x.dtype()).is_some();
    if x.device().is_cpu() && x.dtype() == DType::F32 && has_one_way {
        // One way to round, and one `gelu`, whatever the layout.
        let (x, weight) = (x.contiguous()?, weight.contiguous()?);
        let bias = bias.map(Tensor::contiguous).transpose()?;
        if cpu::is_fused(&x, &weight, bias.as_ref()) {
            return cpu::fused(&x, &weight, bias.as_ref(), options);
        }
    }
    if cpu::is_fused(x, weight, bias) {
        return cpu::fused(x, weight, bias, options);
    }
    #[cfg(feature = "cuda")]
    if x.device().is_cuda()
        && matches!(x.dtype(), DType::F32 | DType::BF16)
        && x.elem_count() > 0
        && weight.elem_count() > 0
    {
        return super::fused::fused(x, weight, bias, options);
    }
    compose(x, weight, bias, options)
}

/// Number of outputs.
fn check(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, order: WeightOrder) -> Result<usize> {
    let (num_inputs, num_outputs) = match (order, weight.dims()) {
        (WeightOrder::InOut, &[num_inputs, num_outputs]) | (WeightOrder::OutIn, &[num_outputs, num_inputs]) => {
            (num_inputs, num_outputs)
        }
        (_, dims) => bail!("a linear layer has a weight of two dimensions, not {dims:?}"),
    };
    if x.dims().last() != Some(&num_inputs) {
        bail!("a linear layer with {num_inputs} inputs was given {:?}", x.dims())
    }
    let (input, found) = (x.dtype(), weight.dtype());
    if found != input && (found, input) != (DType::F32, DType::BF16) {
        bail!("a linear layer with weights of {found:?} was given {input:?}")
    }
    if let Some(bias) = bias {
        if bias.dims() != [num_outputs] {
            bail!("a linear layer with {num_outputs} outputs has a bias of shape {:?}", bias.dims())
        }
        if bias.dtype() != found {
            bail!("a linear layer with weights of {found:?} has a bias of {:?}", bias.dtype())
        }
    }
    Ok(num_outputs)
}

#[cfg(test)]
mod tests;
