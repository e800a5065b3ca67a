//! Launches of products with few outputs (`kernels/thin.cu`).

use candle_core::{CudaDevice, Result};
use cudarc::driver::{LaunchConfig, PushKernelArg as _};
use esper_graph::launch::{Effect, declare, tensor_error};

use crate::device::{Array, IMAGE, Scalar, count, is_aligned};
use crate::matrix::Product;

/// As in the kernels.
const MAX_OUTPUTS: usize = 16;
const WIDTH: usize = 4;
const THREADS: u32 = 128;
/// Rows up to which these kernels are used; more of them keep a product of the library busy.
const MAX_ROWS: usize = 4096;

/// `result` = x·Wᵀ + `bias`, added up as `f32`. False where the sizes or types are of other kernels: then nothing was done.
pub(super) fn thin_product(
    device: &CudaDevice,
    product: &Product,
    (x, weight): (Array<'_>, Array<'_>),
    bias: Option<Array<'_>>,
    result: Array<'_>,
) -> Result<bool> {
    let Some(sizes) = Sizes::of(product, [x, weight], result)? else { return Ok(false) };
    let fits = |bias: Array<'_>| (bias.len(), bias.scalar()) == (product.n, result.scalar());
    let is_whole = (x.len(), result.len()) == (product.m * product.k, product.m * product.n);
    if product.is_left_transposed || !is_whole || !bias.is_none_or(fits) {
        return Ok(false);
    }
    let function = IMAGE.function(device, sizes.product)?;
    let [from, by, to] = [x, weight, result].map(|array| array.address());
    let added = bias.map_or(0, |bias| bias.address());
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    launch.arg(&from).arg(&by).arg(&added).arg(&to).arg(&sizes.inputs).arg(&sizes.outputs);
    let effect = || {
        let effect = Effect::new().reading(from, x.bytes()).reading(by, weight.bytes()).writing(to, result.bytes());
        match bias {
            Some(bias) => effect.reading(added, bias.bytes()),
            None => effect,
        }
    };
    let config = blocks(product.m)?;
    // SAFETY: all have the kernel's types and as many elements as the sizes say, and vectors are aligned.
    tensor_error(declare(&stream, effect, || unsafe { launch.launch(config) }))?;
    Ok(true)
}

/// `result` = dz·W, with `product` as x·Wᵀ. False as for [`thin_product`].
pub(super) fn thin_gradient(
    device: &CudaDevice,
    product: &Product,
    (dz, weight): (Array<'_>, Array<'_>),
    result: Array<'_>,
) -> Result<bool> {
    let Some(sizes) = Sizes::of(product, [dz, weight], result)? else { return Ok(false) };
    if dz.len() != product.m * product.n || result.len() != product.m * product.k {
        return Ok(false);
    }
    let function = IMAGE.function(device, sizes.gradient)?;
    let [from, by, to] = [dz, weight, result].map(|array| array.address());
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    launch.arg(&from).arg(&by).arg(&to).arg(&sizes.rows).arg(&sizes.inputs).arg(&sizes.outputs);
    // A place for the gradient of a rectifier below, which a compiled graph may use.
    let (nowhere, form) = (0_u64, 0_u32);
    launch.arg(&nowhere).arg(&nowhere).arg(&form);
    let effect = || Effect::new().reading(from, dz.bytes()).reading(by, weight.bytes()).writing(to, result.bytes());
    let config = blocks((product.m * product.k / WIDTH).div_ceil(THREADS as usize))?;
    // SAFETY: as above.
    tensor_error(declare(&stream, effect, || unsafe { launch.launch(config) }))?;
    Ok(true)
}

/// What the kernels count, and which of them has the types.
struct Sizes {
    rows: u32,
    inputs: u32,
    outputs: u32,
    product: &'static str,
    gradient: &'static str,
}

impl Sizes {
    /// None where there is no kernel.
    fn of(product: &Product, operands: [Array<'_>; 2], result: Array<'_>) -> Result<Option<Self>> {
        let [left, weight] = operands;
        let [name, gradient] = match (left.scalar(), result.scalar()) {
            (Scalar::F32, Scalar::F32) => ["thin_product_f32", "thin_gradient_f32"],
            (Scalar::Bf16, Scalar::Bf16) => ["thin_product_bf16", "thin_gradient_bf16"],
            (Scalar::Bf16, Scalar::F32) => ["thin_product_bf16_f32", "thin_gradient_bf16_f32"],
            (Scalar::F16, Scalar::F32) => ["thin_product_f16_f32", "thin_gradient_f16_f32"],
            _ => return Ok(None),
        };
        let is_thin = product.n <= MAX_OUTPUTS && product.is_right_transposed && product.m <= MAX_ROWS;
        let is_whole = product.k.is_multiple_of(WIDTH) && weight.len() == product.n * product.k;
        let aligned = is_aligned(&[left, weight, result].map(|array| array.address()));
        if !is_thin
            || !is_whole
            || !aligned
            || weight.scalar() != left.scalar()
            || product.m * product.n * product.k == 0
        {
            return Ok(None);
        }
        let [rows, inputs, outputs] = [count(product.m)?, count(product.k)?, count(product.n)?];
        Ok(Some(Self { rows, inputs, outputs, product: name, gradient }))
    }
}

fn blocks(number: usize) -> Result<LaunchConfig> {
    Ok(LaunchConfig { grid_dim: (count(number)?, 1, 1), block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 })
}
