//! Launches of products with few outputs, and of their gradients (`kernels/thin.cu`).

use candle_core::{CudaDevice, Result};
use cudarc::driver::{LaunchConfig, PushKernelArg as _};
use esper_graph::launch::{Effect, declare, tensor_error};

use crate::device::{Array, IMAGE, Scalar, count, is_aligned};
use crate::matrix::Product;

/// As in the kernels.
const MAX_OUTPUTS: usize = 16;
const WIDTH: usize = 4;
/// Up to so many inputs a thread adds a whole output of a row.
const FEW_INPUTS: usize = 16;
/// Threads of a block, and of one for such a row.
const THREADS: usize = 128;
const WARP: usize = 32;
/// Rows up to which these kernels are used; more of them keep a product of the library busy.
const MAX_ROWS: usize = 4096;
/// Rows up to which the one for the gradient of the weight is: a thread adds them all, one by one, where a product of the library shares
/// them out.
const MAX_SUMMED_ROWS: usize = 32;

/// A kernel for `f32`, for `bf16`, and for factors of `bf16` and of `f16` with a result of `f32`.
type Names = [&'static str; 4];

const PRODUCT: Names = ["thin_product_f32", "thin_product_bf16", "thin_product_bf16_f32", "thin_product_f16_f32"];
const INPUT_GRADIENT: Names =
    ["thin_gradient_f32", "thin_gradient_bf16", "thin_gradient_bf16_f32", "thin_gradient_f16_f32"];
const WEIGHT_GRADIENT: Names = [
    "thin_weight_gradient_f32",
    "thin_weight_gradient_bf16",
    "thin_weight_gradient_bf16_f32",
    "thin_weight_gradient_f16_f32",
];

/// `result` = x·Wᵀ + `bias`, added up as `f32`. False where the sizes or types are of other kernels: then nothing was done.
pub(super) fn thin_product(
    device: &CudaDevice,
    product: &Product,
    (x, weight): (Array<'_>, Array<'_>),
    bias: Option<Array<'_>>,
    result: Array<'_>,
) -> Result<bool> {
    let name = named(PRODUCT, [x, weight], result);
    let (Some(name), Some(counts)) = (name, counts(product, [x, weight, result])?) else { return Ok(false) };
    if !is_bias(bias, product, result) {
        return Ok(false);
    }
    let [_, inputs, outputs] = counts;
    let added = bias.map_or(Argument::Nowhere, Argument::Read);
    let arguments = [Argument::Read(x), Argument::Read(weight), added, Argument::Written(result), inputs, outputs];
    let threads = if product.k <= FEW_INPUTS { WARP } else { THREADS };
    launch(device, name, arguments, [product.m, threads])
}

/// `result` = dz·W, with `product` as x·Wᵀ. False as for [`thin_product`].
pub(super) fn thin_gradient(
    device: &CudaDevice,
    product: &Product,
    (dz, weight): (Array<'_>, Array<'_>),
    result: Array<'_>,
) -> Result<bool> {
    let name = named(INPUT_GRADIENT, [dz, weight], result);
    let (Some(name), Some(counts)) = (name, counts(product, [result, weight, dz])?) else { return Ok(false) };
    let [rows, inputs, outputs] = counts;
    let [from, by, to] = [Argument::Read(dz), Argument::Read(weight), Argument::Written(result)];
    // A place for the gradient of a rectifier below, which a compiled graph may use.
    let [output, passed, form] = [Argument::Nowhere, Argument::Nowhere, Argument::Count(0)];
    let arguments = [from, by, to, rows, inputs, outputs, output, passed, form];
    launch(device, name, arguments, [(product.m * product.k / WIDTH).div_ceil(THREADS), THREADS])
}

/// `result` = dzᵀ·x, with `product` as x·Wᵀ, and `sums` = the sums of the columns of dz, added row by row as `f32`. False as for
/// [`thin_product`].
pub(super) fn thin_weight_gradient(
    device: &CudaDevice,
    product: &Product,
    (dz, x): (Array<'_>, Array<'_>),
    result: Array<'_>,
    sums: Option<Array<'_>>,
) -> Result<bool> {
    let name = named(WEIGHT_GRADIENT, [dz, x], result);
    let (Some(name), Some(counts)) = (name, counts(product, [x, result, dz])?) else { return Ok(false) };
    if product.m > MAX_SUMMED_ROWS || u32::try_from(result.len()).is_err() || !is_bias(sums, product, result) {
        return Ok(false);
    }
    let [rows, inputs, outputs] = counts;
    let summed = sums.map_or(Argument::Nowhere, Argument::Written);
    let arguments = [Argument::Read(dz), Argument::Read(x), Argument::Written(result), summed, rows, inputs, outputs];
    let threads = result.len() / WIDTH + sums.map_or(0, Array::len);
    launch(device, name, arguments, [threads.div_ceil(THREADS), THREADS])
}

/// The one for factors and a result of these types.
fn named([f32, bf16, bf16_f32, f16_f32]: Names, factors: [Array<'_>; 2], result: Array<'_>) -> Option<&'static str> {
    match (factors.map(Array::scalar), result.scalar()) {
        ([Scalar::F32, Scalar::F32], Scalar::F32) => Some(f32),
        ([Scalar::Bf16, Scalar::Bf16], Scalar::Bf16) => Some(bf16),
        ([Scalar::Bf16, Scalar::Bf16], Scalar::F32) => Some(bf16_f32),
        ([Scalar::F16, Scalar::F16], Scalar::F32) => Some(f16_f32),
        _ => None,
    }
}

/// Rows, inputs and outputs. None where there are no kernels for them, or for arrays as long as `x`, `weight` and `y`, or where those are.
fn counts(product: &Product, [x, weight, y]: [Array<'_>; 3]) -> Result<Option<[Argument<'static>; 3]>> {
    let Product { m: rows, k: inputs, n: outputs, .. } = *product;
    let is_thin = outputs <= MAX_OUTPUTS && rows <= MAX_ROWS && inputs.is_multiple_of(WIDTH);
    let is_weight_last = product.is_right_transposed && !product.is_left_transposed;
    let arrays = [x, weight, y];
    let is_whole = arrays.map(Array::len) == [rows * inputs, outputs * inputs, rows * outputs];
    let is_empty = arrays.iter().any(|array| array.len() == 0);
    if !is_thin || !is_weight_last || !is_whole || is_empty || !is_aligned(&arrays.map(Array::address)) {
        return Ok(None);
    }
    Ok(Some([Argument::Count(count(rows)?), Argument::Count(count(inputs)?), Argument::Count(count(outputs)?)]))
}

/// Whether an array, if there is one, is as long as a row of outputs, of the type of a result.
fn is_bias(array: Option<Array<'_>>, product: &Product, result: Array<'_>) -> bool {
    array.is_none_or(|array| (array.len(), array.scalar()) == (product.n, result.scalar()))
}

/// What a kernel is told.
#[derive(Clone, Copy)]
enum Argument<'a> {
    Read(Array<'a>),
    Written(Array<'a>),
    /// There is no such array.
    Nowhere,
    Count(u32),
}

/// Enqueues a kernel of these arguments, in its order, in so many blocks of so many threads.
fn launch<const N: usize>(
    device: &CudaDevice,
    name: &'static str,
    arguments: [Argument<'_>; N],
    [blocks, threads]: [usize; 2],
) -> Result<bool> {
    let function = IMAGE.function(device, name)?;
    let addresses = arguments.map(|argument| match argument {
        Argument::Read(array) | Argument::Written(array) => array.address(),
        Argument::Nowhere | Argument::Count(_) => 0,
    });
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    for (argument, address) in arguments.iter().zip(&addresses) {
        match argument {
            Argument::Count(count) => launch.arg(count),
            _ => launch.arg(address),
        };
    }
    let effect = || {
        arguments.iter().fold(Effect::new(), |effect, argument| match argument {
            Argument::Read(array) => effect.reading(array.address(), array.bytes()),
            Argument::Written(array) => effect.writing(array.address(), array.bytes()),
            Argument::Nowhere | Argument::Count(_) => effect,
        })
    };
    let config =
        LaunchConfig { grid_dim: (count(blocks)?, 1, 1), block_dim: (count(threads)?, 1, 1), shared_mem_bytes: 0 };
    // SAFETY: callers name arrays of the kernel's types with as many elements as the counts say, and vectors are aligned.
    tensor_error(declare(&stream, effect, || unsafe { launch.launch(config) }))?;
    Ok(true)
}
