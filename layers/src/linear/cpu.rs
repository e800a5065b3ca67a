//! A linear layer as one operation on the CPU: product, bias and rectifier into one buffer, and on the way back only the
//! gradients that somebody asks for.
//!
//! Composed of candle's operations, a layer is up to four nodes forward; the way back forms the gradient of `x` even where
//! `x` is data, and copies gradients from node to node. All sums are formed in the order of the composition, so that outputs
//! and gradients have its bits, but for the gradient of a weight of [`WeightOrder::OutIn`], whose product is formed transposed, and for
//! [`Activation::Gelu`], which is one pass each way (`cpu/gelu.rs`).

use std::borrow::Cow;

use candle_core::{CpuStorage, CustomOp2, CustomOp3, DType, Device, Layout, Result, Shape, Tensor};
use esper_graph::backward::apart;
use esper_graph::precision::rounded_once;

use super::options::{Activation, LinearOptions, WeightOrder};
use crate::cpu::{Matrix, elements, multiply, with_elements};
use gelu::gelu;

mod gelu;

/// Whether [`fused`] takes the operands: contiguous `f32` of the CPU with elements.
pub(super) fn is_fused(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> bool {
    let fits = |tensor: &Tensor| {
        tensor.dtype() == DType::F32 && tensor.device().is_cpu() && tensor.is_contiguous() && tensor.elem_count() > 0
    };
    fits(x) && fits(weight) && bias.is_none_or(fits)
}

/// activation(x·W + b) for operands that [`is_fused`] accepts, `x` (N, in), already checked.
pub(super) fn fused(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, options: &LinearOptions) -> Result<Tensor> {
    let rounded = options.precision.half(x.dtype()).map(|half| Rounded::new(x, weight, half)).transpose()?;
    let layer = Layer { order: options.order, rectifies: options.activation == Activation::Relu, rounded };
    let output = match bias {
        Some(bias) => x.apply_op3(weight, bias, layer)?,
        None => x.apply_op2(weight, layer)?,
    };
    match options.activation {
        Activation::None | Activation::Relu => Ok(output),
        Activation::Gelu => gelu(&output),
        Activation::GeluErf => output.gelu_erf(),
    }
}

/// The layer, which the tensor library keeps for the way back.
#[derive(Debug)]
struct Layer {
    order: WeightOrder,
    rectifies: bool,
    rounded: Option<Rounded>,
}

/// Factors with the numbers of half precision, in `f32`: their products are exact there, and added as on a GPU.
#[derive(Debug)]
struct Rounded {
    half: DType,
    x: Tensor,
    weight: Tensor,
}

impl Rounded {
    fn new(x: &Tensor, weight: &Tensor, half: DType) -> Result<Self> {
        let round = |tensor: &Tensor| round(&tensor.detach(), half);
        Ok(Self { half, x: round(x)?, weight: rounded_once(weight, half, round)? })
    }
}

fn round(tensor: &Tensor, half: DType) -> Result<Tensor> {
    tensor.to_dtype(half)?.to_dtype(DType::F32)
}

/// Rows, inputs and outputs.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    rows: usize,
    inputs: usize,
    outputs: usize,
}

impl Layer {
    fn sizes(&self, x: &Shape, weight: &Shape) -> Result<Sizes> {
        let (rows, inputs) = x.dims2()?;
        let (first, second) = weight.dims2()?;
        Ok(Sizes { rows, inputs, outputs: if self.order == WeightOrder::OutIn { first } else { second } })
    }

    /// `weight` as (in, out).
    fn weight<'a>(&self, values: &'a [f32], sizes: Sizes) -> Matrix<'a> {
        match self.order {
            WeightOrder::InOut => Matrix::new(values, sizes.inputs, sizes.outputs),
            WeightOrder::OutIn => Matrix::new(values, sizes.outputs, sizes.inputs).transposed(),
        }
    }

    fn forward(
        &self,
        x: (&CpuStorage, &Layout),
        weight: (&CpuStorage, &Layout),
        bias: Option<(&CpuStorage, &Layout)>,
    ) -> Result<(CpuStorage, Shape)> {
        let sizes = self.sizes(x.1.shape(), weight.1.shape())?;
        let product =
            |x: &[f32], weight: &[f32]| multiply(Matrix::new(x, sizes.rows, sizes.inputs), self.weight(weight, sizes));
        let mut output = match &self.rounded {
            None => product(elements(x)?, elements(weight)?),
            Some(rounded) => {
                with_elements(&rounded.x, |x| with_elements(&rounded.weight, |weight| Ok(product(x, weight))))?
            }
        };
        let bias = bias.map(elements).transpose()?;
        for row in output.chunks_exact_mut(sizes.outputs) {
            if let Some(bias) = bias {
                row.iter_mut().zip(bias).for_each(|(sum, bias)| *sum += bias);
            }
            if self.rectifies {
                row.iter_mut().for_each(|z| *z = z.max(0.0));
            }
        }
        Ok((CpuStorage::F32(output), Shape::from((sizes.rows, sizes.outputs))))
    }

    /// The gradient of x·W + b from that of the output, as it is multiplied.
    fn before_product<'a>(&self, output: &Tensor, upstream: &'a [f32]) -> Result<Cow<'a, [f32]>> {
        let gradient = self.before_rectifier(output, upstream)?;
        let Some(Rounded { half, .. }) = self.rounded else { return Ok(gradient) };
        let gradient = round(&Tensor::from_slice(&gradient, gradient.len(), &Device::Cpu)?, half)?;
        with_elements(&gradient, |gradient| Ok(Cow::Owned(gradient.to_vec())))
    }

    /// Where the output is 0, the rectifier passes nothing on.
    fn before_rectifier<'a>(&self, output: &Tensor, upstream: &'a [f32]) -> Result<Cow<'a, [f32]>> {
        if !self.rectifies {
            return Ok(Cow::Borrowed(upstream));
        }
        with_elements(output, |output| {
            let passed = upstream.iter().zip(output).map(|(&gradient, &z)| if z > 0.0 { gradient } else { 0.0 });
            Ok(Cow::Owned(passed.collect()))
        })
    }

    /// Gradients of `x`, `weight` and `bias`, as far as they are tracked.
    fn backward(
        &self,
        (x, weight, bias): (&Tensor, &Tensor, Option<&Tensor>),
        output: &Tensor,
        upstream: &Tensor,
    ) -> Result<Gradients> {
        let sizes = self.sizes(x.shape(), weight.shape())?;
        let (x_factor, weight_factor) =
            self.rounded.as_ref().map_or((x, weight), |rounded| (&rounded.x, &rounded.weight));
        let upstream = upstream.contiguous()?;
        with_elements(&upstream, |upstream| {
            let gradient = self.before_product(output, upstream)?;
            let of_outputs = Matrix::new(&gradient, sizes.rows, sizes.outputs);
            let of_x = || {
                let product =
                    with_elements(weight_factor, |w| Ok(multiply(of_outputs, self.weight(w, sizes).transposed())))?;
                Tensor::from_vec(product, x.shape(), x.device())
            };
            let of_weight = || {
                let product = with_elements(x_factor, |x| {
                    let x = Matrix::new(x, sizes.rows, sizes.inputs);
                    Ok(match self.order {
                        WeightOrder::InOut => multiply(x.transposed(), of_outputs),
                        WeightOrder::OutIn => multiply(of_outputs.transposed(), x),
                    })
                })?;
                Tensor::from_vec(product, weight.shape(), weight.device())
            };
            let of_bias = || {
                let mut sum = vec![0.0_f32; sizes.outputs];
                for row in gradient.chunks_exact(sizes.outputs) {
                    sum.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
                }
                Tensor::from_vec(sum, sizes.outputs, weight.device())
            };
            Ok((
                x.track_op().then(of_x).transpose()?,
                weight.track_op().then(of_weight).transpose()?.and_then(|gradient| apart(output, weight, gradient)),
                bias.is_some_and(Tensor::track_op).then(of_bias).transpose()?,
            ))
        })
    }
}

/// Of `x`, `weight` and `bias`; absent where nobody asks.
type Gradients = (Option<Tensor>, Option<Tensor>, Option<Tensor>);

impl CustomOp2 for Layer {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.forward((x, x_layout), (weight, weight_layout), None)
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        output: &Tensor,
        upstream: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let (x, weight, _) = self.backward((x, weight, None), output, upstream)?;
        Ok((x, weight))
    }
}

impl CustomOp3 for Layer {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
        bias: &CpuStorage,
        bias_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.forward((x, x_layout), (weight, weight_layout), Some((bias, bias_layout)))
    }

    fn bwd(&self, x: &Tensor, weight: &Tensor, bias: &Tensor, output: &Tensor, upstream: &Tensor) -> Result<Gradients> {
        self.backward((x, weight, Some(bias)), output, upstream)
    }
}

#[cfg(test)]
mod tests;
