//! Factors that are transposed before a product of TF32 (`kernels/transpose.cu`).
//!
//! The library's kernels for Lᵀ·R take about twice as long as those for L·Rᵀ, which Hopper's tensor cores read as they lie.

use candle_core::{CudaDevice, Result, Tensor};
use cudarc::driver::{LaunchConfig, PushKernelArg as _};
use esper_graph::launch::{Effect, declare, tensor_error};

use super::array::{Array, Scalar, unwritten_tensor};
use super::kernels::{IMAGE, count, is_of_hopper};
use crate::matrix::Product;
use crate::tiles::is_worth_transposing;

/// Rows and columns of what a block transposes, and its threads.
const SIDE: usize = 32;
const NAME: &str = "transpose_f32";
const THREADS: (u32, u32, u32) = (32, 8, 1);
/// Rows of which the blocks fit a grid.
const MAX_ROWS: usize = 65_535 * SIDE;

/// Whether both factors of a product of TF32 are better transposed, on this card.
pub(super) fn is_better_transposed(device: &CudaDevice, product: &Product) -> Result<bool> {
    Ok(is_worth_transposing(product) && product.k <= MAX_ROWS && is_of_hopper(&IMAGE.function(device, NAME)?)?)
}

/// A matrix (rows, columns) as (columns, rows).
pub(super) fn transposed(device: &CudaDevice, from: Array<'_>, (rows, columns): (usize, usize)) -> Result<Tensor> {
    let target = unwritten_tensor(device, (columns, rows), Scalar::F32)?;
    if (from.scalar(), from.len()) != (Scalar::F32, rows * columns) {
        candle_core::bail!("a matrix of {rows} rows and {columns} columns to be transposed is {from:?}")
    }
    let function = IMAGE.function(device, NAME)?;
    let (source, to) = (from.address(), Array::of_tensor(&target)?.address());
    let sizes = [count(rows)?, count(columns)?];
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    launch.arg(&source).arg(&to).arg(&sizes[0]).arg(&sizes[1]);
    let effect = || Effect::new().reading(source, from.bytes()).writing(to, from.bytes());
    let grid_dim = (count(columns.div_ceil(SIDE))?, count(rows.div_ceil(SIDE))?, 1);
    let config = LaunchConfig { grid_dim, block_dim: THREADS, shared_mem_bytes: 0 };
    // SAFETY: both hold as many numbers of f32 as the sizes say.
    tensor_error(declare(&stream, effect, || unsafe { launch.launch(config) }))?;
    Ok(target)
}
