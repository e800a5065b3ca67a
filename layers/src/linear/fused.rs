//! A linear layer of fused products, on a GPU.

use std::sync::{Mutex, PoisonError};

use candle_core::backend::BackendStorage as _;
use candle_core::{
    CpuStorage, CudaDevice, CudaStorage, CustomOp2, CustomOp3, Device, Layout, Result, Shape, Tensor, bail,
};
use esper_graph::precision::{rounded_once, working_copy};

use super::kernels::{activate, activation_gradient, add_bias, column_sums, gradient_and_sums, round, row_product};
use super::options::{Activation, LinearOptions, WeightOrder};
use super::thin::{thin_gradient, thin_product, thin_weight_gradient};
use crate::device::{Array, Epilogue, Scalar, multiply, unwritten, unwritten_tensor};
use crate::matrix::Product;

/// activation(x·W + b) for `x` (N, in) of `f32` or `bf16`, already checked and not empty.
pub(super) fn fused(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, options: &LinearOptions) -> Result<Tensor> {
    let (x, weight) = (x.contiguous()?, weight.contiguous()?);
    let is_tracked = x.track_op() || weight.track_op() || bias.is_some_and(Tensor::track_op);
    let dtype = options.precision.half(x.dtype()).unwrap_or(x.dtype());
    let multiplied = Scalar::of(dtype)?;
    let round_weight = |weight: &Tensor| round_tensor(weight, multiplied);
    let rounds = multiplied != Scalar::F32 && Scalar::of(weight.dtype())? != multiplied;
    let copy_or_round = || match working_copy(&weight, dtype) {
        Some(copy) => Ok(copy),
        None => rounded_once(&weight, dtype, round_weight),
    };
    let rounded_weight = rounds.then(copy_or_round).transpose()?;
    let copied_bias = bias.filter(|bias| bias.dtype() != x.dtype()).and_then(|bias| working_copy(bias, x.dtype()));
    let layer =
        Layer { options: *options, multiplied, rounded_weight, copied_bias, is_tracked, kept: Mutex::default() };
    match bias {
        Some(bias) => x.apply_op3(&weight, &bias.contiguous()?, layer),
        None => x.apply_op2(&weight, layer),
    }
}

/// One evaluation of the layer, which the tensor library keeps for the way back.
#[derive(Debug)]
struct Layer {
    options: LinearOptions,
    /// The type of what is multiplied.
    multiplied: Scalar,
    /// The weight as it is multiplied, if not as it came.
    rounded_weight: Option<Tensor>,
    /// The bias as it is added, if not as it came and somebody has it.
    copied_bias: Option<Tensor>,
    /// A gradient may be asked for.
    is_tracked: bool,
    kept: Mutex<Kept>,
}

/// What the way back needs besides arguments and output. It lives as long as the graph of operations.
#[derive(Debug, Default, Clone)]
struct Kept {
    /// `x` as it was multiplied, if not as it came.
    x: Option<Tensor>,
    /// x·W + b, for activations whose derivative does not follow from their output.
    pre_activation: Option<Tensor>,
}

type Argument<'a> = (&'a CudaStorage, &'a Layout);

impl Layer {
    fn product(&self, x: &Shape, weight: &Shape) -> Result<Product> {
        let (num_rows, num_inputs) = x.dims2()?;
        let (first, second) = weight.dims2()?;
        let is_out_in = self.options.order == WeightOrder::OutIn;
        Ok(Product::forward(num_rows, num_inputs, if is_out_in { first } else { second }, is_out_in))
    }

    fn forward(
        &self,
        x: Argument<'_>,
        weight: Argument<'_>,
        bias: Option<Argument<'_>>,
    ) -> Result<(CudaStorage, Shape)> {
        let device = x.0.device();
        let product = self.product(x.1.shape(), weight.1.shape())?;
        let (x, weight) = (Array::of(x.0, x.1)?, Array::of(weight.0, weight.1)?);
        let scalar = x.scalar();
        let rounded_x = rounded(device, x, self.multiplied)?;
        let bias = bias.map(|(storage, layout)| Array::of(storage, layout)).transpose()?;
        let rounded_bias = match (&self.copied_bias, bias) {
            (Some(copy), _) => Some(copy.clone()),
            (None, Some(bias)) => rounded(device, bias, scalar)?,
            (None, None) => None,
        };
        let bias = either(rounded_bias.as_ref(), bias)?;
        let operands = (
            either(rounded_x.as_ref(), Some(x))?.unwrap_or(x),
            either(self.rounded_weight.as_ref(), Some(weight))?.unwrap_or(weight),
        );

        let shape = Shape::from((product.m, product.n));
        let output = unwritten(device, shape.elem_count(), scalar)?;
        let layout = Layout::contiguous(&shape);
        let result = Array::of(&output, &layout)?;
        let pre_activation = self.evaluate(device, &product, operands, bias, result)?;

        if self.is_tracked {
            let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            *kept = Kept { x: rounded_x, pre_activation };
        }
        Ok((output, shape))
    }

    /// Writes the output; returns what was before the activation if the way back needs it.
    fn evaluate(
        &self,
        device: &CudaDevice,
        product: &Product,
        operands: (Array<'_>, Array<'_>),
        bias: Option<Array<'_>>,
        result: Array<'_>,
    ) -> Result<Option<Tensor>> {
        let activation = self.options.activation;
        let is_done = match activation {
            Activation::None => {
                affine(device, product, operands, bias, result)?;
                true
            }
            Activation::Relu => multiply(device, product, operands, result, &Epilogue::Relu(bias))?,
            Activation::Gelu if !self.is_tracked => {
                multiply(device, product, operands, result, &Epilogue::Gelu { bias, pre_activation: None })?
            }
            Activation::Gelu | Activation::GeluErf => false,
        };
        if is_done {
            return Ok(None);
        }
        let before = unwritten_tensor(device, (product.m, product.n), result.scalar())?;
        let place = Array::of_tensor(&before)?;
        let epilogue = Epilogue::Gelu { bias, pre_activation: Some(place) };
        let is_done = activation == Activation::Gelu
            && self.is_tracked
            && multiply(device, product, operands, result, &epilogue)?;
        if !is_done {
            affine(device, product, operands, bias, place)?;
            activate(device, place, result, activation)?;
        }
        let is_needed = self.is_tracked && activation != Activation::Relu;
        Ok(is_needed.then_some(before))
    }

    /// Gradients of `x`, `weight` and `bias`, of those that somebody asks for.
    fn backward(
        &self,
        (x, weight, bias): (&Tensor, &Tensor, Option<&Tensor>),
        output: &Tensor,
        gradient: &Tensor,
    ) -> Result<[Option<Tensor>; 3]> {
        let Device::Cuda(device) = x.device() else { bail!("a layer on the GPU was given a tensor of another device") };
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let product = self.product(x.shape(), weight.shape())?;
        let gradient = gradient.contiguous()?;
        let scalar = Scalar::of(x.dtype())?;

        let of_bias = match bias.filter(|bias| bias.track_op()) {
            Some(bias) => Some(unwritten_tensor(device, bias.shape(), Scalar::of(bias.dtype())?)?),
            None => None,
        };
        let sums = of_bias.as_ref().map(Array::of_tensor).transpose()?;
        let (before, is_summed) = self.before_activation(device, &kept, output, &gradient, sums)?;
        let dz = Array::of_tensor(before.as_ref().unwrap_or(&gradient))?;
        let x_operand = Array::of_tensor(kept.x.as_ref().unwrap_or(x))?;
        let weight_operand = Array::of_tensor(self.rounded_weight.as_ref().unwrap_or(weight))?;

        let of_x = if x.track_op() {
            let target = unwritten_tensor(device, x.shape(), scalar)?;
            let result = Array::of_tensor(&target)?;
            if !thin_gradient(device, &product, (dz, weight_operand), result)? {
                plain(device, &product.input_gradient(), (dz, weight_operand), result)?;
            }
            Some(target)
        } else {
            None
        };
        let of_weight = if weight.track_op() {
            Some(unwritten_tensor(device, weight.shape(), Scalar::of(weight.dtype())?)?)
        } else {
            None
        };
        let result = of_weight.as_ref().map(Array::of_tensor).transpose()?;
        self.weight_gradient(device, &product, (dz, x_operand), result, sums.filter(|_| !is_summed))?;
        Ok([of_x, of_weight, of_bias])
    }

    /// Writes the gradient of the weight to `result`, and the sums of the columns of dz, as far as they are asked for.
    fn weight_gradient(
        &self,
        device: &CudaDevice,
        product: &Product,
        (dz, x): (Array<'_>, Array<'_>),
        result: Option<Array<'_>>,
        sums: Option<Array<'_>>,
    ) -> Result<()> {
        if let Some(result) = result
            && thin_weight_gradient(device, product, (dz, x), result, sums)?
        {
            return Ok(());
        }
        // cuBLASLt's epilogue for these sums is a kernel of its own that waits for the product.
        if let Some(sums) = sums {
            column_sums(device, dz, sums)?;
        }
        let Some(result) = result else { return Ok(()) };
        let operands = match self.options.order {
            WeightOrder::InOut => (x, dz),
            WeightOrder::OutIn => (dz, x),
        };
        plain(device, &product.weight_gradient(), operands, result)
    }

    /// The gradient before the activation, in the type that is multiplied; none if it is `gradient` itself. Whether the sums
    /// of its columns were written with it.
    fn before_activation(
        &self,
        device: &CudaDevice,
        kept: &Kept,
        output: &Tensor,
        gradient: &Tensor,
        sums: Option<Array<'_>>,
    ) -> Result<(Option<Tensor>, bool)> {
        let (source, activation) = (Array::of_tensor(gradient)?, self.options.activation);
        let decides = match activation {
            Activation::None if !rounds(source, self.multiplied) => return Ok((None, false)),
            Activation::None => None,
            Activation::Relu => Some(output),
            Activation::Gelu | Activation::GeluErf => match &kept.pre_activation {
                Some(before) => Some(before),
                None => bail!("a linear layer was not evaluated before its gradient was taken"),
            },
        };
        let decides = decides.map(Array::of_tensor).transpose()?;
        let target = unwritten_tensor(device, gradient.shape(), self.multiplied)?;
        let result = Array::of_tensor(&target)?;
        if let Some(sums) = sums
            && gradient_and_sums(device, (decides, activation), source, result, sums)?
        {
            return Ok((Some(target), true));
        }
        match decides {
            Some(decides) => activation_gradient(device, decides, source, result, activation)?,
            None => round(device, source, result)?,
        }
        Ok((Some(target), false))
    }
}

/// The same numbers in half precision, of the same shape.
fn round_tensor(tensor: &Tensor, multiplied: Scalar) -> Result<Tensor> {
    let Device::Cuda(device) = tensor.device() else {
        bail!("a layer on the GPU was given a tensor of another device")
    };
    let target = unwritten_tensor(device, tensor.shape(), multiplied)?;
    round(device, Array::of_tensor(tensor)?, Array::of_tensor(&target)?)?;
    Ok(target)
}

/// Whether half precision is multiplied and an array is not in it yet.
fn rounds(array: Array<'_>, multiplied: Scalar) -> bool {
    array.scalar() != multiplied && multiplied != Scalar::F32
}

/// An array rounded to half precision if that is what is multiplied and it is not yet.
fn rounded(device: &CudaDevice, array: Array<'_>, multiplied: Scalar) -> Result<Option<Tensor>> {
    if !rounds(array, multiplied) {
        return Ok(None);
    }
    let target = unwritten_tensor(device, array.len(), multiplied)?;
    round(device, array, Array::of_tensor(&target)?)?;
    Ok(Some(target))
}

fn either<'a>(rounded: Option<&'a Tensor>, array: Option<Array<'a>>) -> Result<Option<Array<'a>>> {
    match rounded {
        Some(tensor) => Array::of_tensor(tensor).map(Some),
        None => Ok(array),
    }
}

/// `result` = L·R + `bias`.
fn affine(
    device: &CudaDevice,
    product: &Product,
    operands: (Array<'_>, Array<'_>),
    bias: Option<Array<'_>>,
    result: Array<'_>,
) -> Result<()> {
    if thin_product(device, product, operands, bias, result)? {
        return Ok(());
    }
    if let Some(bias) = bias {
        if !multiply(device, product, operands, result, &Epilogue::Bias(bias))? {
            plain(device, product, operands, result)?;
            add_bias(device, result, bias)?;
        }
        return Ok(());
    }
    // The libraries' algorithms are made for many rows.
    let is_row = product.m == 1 && product.is_right_transposed && !product.is_left_transposed;
    if is_row && row_product(device, operands.0, operands.1, result)? {
        return Ok(());
    }
    plain(device, product, operands, result)
}

/// `result` = L·R.
fn plain(device: &CudaDevice, product: &Product, operands: (Array<'_>, Array<'_>), result: Array<'_>) -> Result<()> {
    if multiply(device, product, operands, result, &Epilogue::None)? {
        return Ok(());
    }
    bail!("cuBLASLt has no algorithm for {product:?} of {operands:?}")
}

const NAME: &str = "linear";

impl CustomOp2 for Layer {
    fn name(&self) -> &'static str {
        NAME
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        bail!("a fused linear layer runs on a GPU")
    }

    fn cuda_fwd(&self, x: &CudaStorage, xl: &Layout, w: &CudaStorage, wl: &Layout) -> Result<(CudaStorage, Shape)> {
        self.forward((x, xl), (w, wl), None)
    }

    fn bwd(
        &self,
        x: &Tensor,
        w: &Tensor,
        output: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let [x, w, _] = self.backward((x, w, None), output, gradient)?;
        Ok((x, w))
    }
}

impl CustomOp3 for Layer {
    fn name(&self) -> &'static str {
        NAME
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        bail!("a fused linear layer runs on a GPU")
    }

    fn cuda_fwd(
        &self,
        x: &CudaStorage,
        xl: &Layout,
        w: &CudaStorage,
        wl: &Layout,
        b: &CudaStorage,
        bl: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        self.forward((x, xl), (w, wl), Some((b, bl)))
    }

    fn bwd(
        &self,
        x: &Tensor,
        w: &Tensor,
        b: &Tensor,
        output: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let [x, w, b] = self.backward((x, w, Some(b)), output, gradient)?;
        Ok((x, w, b))
    }
}
