//! A convolutional network for images, with candle's own convolution.

use candle_core::{Tensor, Var};
use leyline::model::HostNumbers;
use tolaria::plain::PlainModel;

use super::{Draw, Linear, Variables, Variant};

/// Sizes of the network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Conv2dConfig {
    /// Channels of an image.
    pub(crate) inputs: usize,
    /// Rows and columns of an image.
    pub(crate) size: usize,
    /// Channels of each block; a block halves rows and columns, rounded up.
    pub(crate) channels: Vec<usize>,
    /// Classes.
    pub(crate) classes: usize,
}

const KERNEL: usize = 3;
const STRIDE: usize = 2;

/// Convolutions with `ReLU` after each, then an affine map of all positions.
#[derive(Debug, Clone)]
pub(crate) struct Conv2d {
    blocks: Vec<Convolution>,
    head: Linear,
    variables: Variables,
}

#[derive(Debug, Clone)]
struct Convolution {
    weight: Var,
    /// Shape (1, channels, 1, 1).
    bias: Var,
}

impl Conv2d {
    /// Draws the weights. `variant` is that of the affine map; convolutions are candle's in each.
    pub(crate) fn new(config: &Conv2dConfig, variant: Variant, draw: &mut Draw) -> candle_core::Result<Self> {
        let mut variables = Variables::new();
        let (mut inputs, mut size) = (config.inputs, config.size);
        let mut blocks = Vec::new();
        for (index, &outputs) in config.channels.iter().enumerate() {
            let bound = 1.0 / ((inputs * KERNEL * KERNEL) as f32).sqrt();
            let weight = Var::from_tensor(&draw.uniform((outputs, inputs, KERNEL, KERNEL), bound)?)?;
            let bias = Var::from_tensor(&draw.uniform((1, outputs, 1, 1), bound)?)?;
            variables.push((format!("blocks.{index}.weight"), weight.clone()));
            variables.push((format!("blocks.{index}.bias"), bias.clone()));
            blocks.push(Convolution { weight, bias });
            (inputs, size) = (outputs, size.div_ceil(STRIDE));
        }
        let head = Linear::new("head", [inputs * size * size, config.classes], draw, &mut variables)?;
        Ok(Self { blocks, head: head.in_variant(variant), variables })
    }

    /// Logits of images (B, channels, rows, columns), shape (B, classes).
    pub(crate) fn forward(&self, images: &Tensor) -> candle_core::Result<Tensor> {
        let mut x = images.clone();
        for Convolution { weight, bias } in &self.blocks {
            x = x.conv2d(weight, KERNEL / 2, STRIDE, 1, 1)?.broadcast_add(bias)?.relu()?;
        }
        self.head.forward(&x.flatten_from(1)?)
    }

    /// The network for a trainer.
    pub(crate) fn into_model(self) -> Result<PlainModel, tolaria::Error> {
        Ok(PlainModel::new(self.variables.clone(), move |x: &Tensor| self.forward(x))?
            .with_host_numbers(HostNumbers::Fixed))
    }
}

/// Largest difference of a gradient from the difference quotient of the loss, relative to the larger of 1 and the quotient,
/// over up to 40 elements of each variable. `device` computes the gradient, in `f32`; the quotients are of the CPU, in
/// `f64`.
///
/// # Errors
/// When a variable has no gradient; when a device fails.
/// # Sync
/// one device-to-host copy per variable
pub(crate) fn largest_gradient_error(device: &candle_core::Device) -> Result<f64, crate::error::Error> {
    use candle_core::{DType, Device};
    use tolaria::host_read::{HostReads, read_scalar, read_vec, read_vec_f64};

    const STEP: f64 = 1e-5;
    const ELEMENTS: usize = 40;
    let mut reads = HostReads::default();
    let config = Conv2dConfig { inputs: 2, size: 9, channels: vec![4, 6], classes: 3 };
    let build = |device: &Device, dtype| {
        let mut draw = Draw::new(17, device).with_dtype(dtype);
        let network = Conv2d::new(&config, Variant::default(), &mut draw)?;
        let images = draw.uniform((5, config.inputs, config.size, config.size), 1.0)?;
        let targets = Tensor::from_vec(vec![0_u32, 2, 1, 1, 0], 5, device)?;
        Ok::<_, candle_core::Error>((network, images, targets))
    };
    let (network, images, targets) = build(device, DType::F32)?;
    let gradients = tolaria::loss::cross_entropy(&network.forward(&images)?, &targets)?.backward()?;
    let (exact, images, targets) = build(&Device::Cpu, DType::F64)?;
    let mut largest = 0.0_f64;
    for ((name, var), (_, exact_var)) in network.variables.iter().zip(&exact.variables) {
        let Some(gradient) = gradients.get(var) else {
            let source = esper_graph::Refusal::MissingGradient { name: name.clone() };
            return Err(crate::error::Error::Refused { what: "the gradient of a convolution".to_owned(), source });
        };
        let found = read_vec(&gradient.flatten_all()?, "check", &mut reads)?;
        let before = exact_var.as_tensor().copy()?;
        let values = read_vec_f64(&before.flatten_all()?, "check", &mut reads)?;
        for index in (0..values.len()).step_by(values.len().div_ceil(ELEMENTS)) {
            let mut at = |by: f64| {
                let mut moved = values.clone();
                moved[index] += by;
                exact_var.set(&Tensor::from_vec(moved, exact_var.dims(), &Device::Cpu)?)?;
                let loss = candle_nn::loss::cross_entropy(&exact.forward(&images)?, &targets)?;
                Ok::<f64, crate::error::Error>(read_scalar(&loss, "check", &mut reads)?)
            };
            let quotient = (at(STEP)? - at(-STEP)?) / (2.0 * STEP);
            exact_var.set(&before)?;
            largest = largest.max((f64::from(found[index]) - quotient).abs() / quotient.abs().max(1.0));
        }
    }
    Ok(largest)
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn gradients_agree_with_difference_quotients() {
        let error = largest_gradient_error(&Device::Cpu).unwrap();
        assert!(error < 1e-5, "{error}");
    }
}
