//! Products of `f32` on the tensor cores of Hopper (`kernels/product.cu`).

use std::ffi::c_void;
use std::ptr;

use candle_core::cuda_backend::gemm_reduced_precision_f32;
use candle_core::{CudaDevice, Result};
use cudarc::driver::{CudaFunction, CudaStream, sys};
use esper_graph::launch::{declare, tensor_error};

use super::array::{Array, Scalar};
use super::kernels::{IMAGE, allow_shared_memory, count, is_of_hopper};
use super::product::{Epilogue, effect_of};
use crate::matrix::Product;
use crate::tiles::{Tile, choose};

/// Rows and columns of a result from which on these kernels are asked: of fewer, most of a tile would be nothing.
const MIN_SIDE: usize = 32;
/// Most tiles beside each other.
const MAX_TILES: usize = 65_535;
/// A kernel that every image of this crate has.
const ANY: &str = "thin_product_f32";
/// Rows, columns and terms that the kernels count with, those of a tile beyond.
const MAX_COUNT: usize = (u32::MAX - 256) as usize;

/// What forms a product of `f32`.
pub(super) struct Kernel {
    function: CudaFunction,
    tile: &'static Tile,
    /// Of each sum.
    parts: usize,
}

/// None where other kernels do it, as [`split_product`] says.
pub(super) fn kernel(device: &CudaDevice, product: &Product) -> Result<Option<Kernel>> {
    if gemm_reduced_precision_f32() || product.m.min(product.n) < MIN_SIDE {
        return Ok(None);
    }
    let (tile, parts) = choose(product);
    let name = match (product.is_left_transposed, product.is_right_transposed) {
        (false, false) => tile.names[0],
        (false, true) => tile.names[1],
        (true, false) => tile.names[2],
        (true, true) => return Ok(None),
    };
    let [_, across] = tile.tiles(product);
    let largest = product.m.max(product.n).max(product.k);
    if largest > MAX_COUNT || across > MAX_TILES || !is_ready(device)? {
        return Ok(None);
    }
    // Not in code that the driver made of portable code.
    Ok(IMAGE.function(device, name).ok().map(|function| Kernel { function, tile, parts }))
}

/// Whether this card is one of Hopper, and the kernels are in its machine code.
pub(crate) fn is_ready(device: &CudaDevice) -> Result<bool> {
    is_of_hopper(&IMAGE.function(device, ANY)?)
}

/// Writes L·R of `f32` to `result` with the error of sums of `f32`. False where other kernels do it: on other cards, where
/// candle's switch asks for TF32, and for few rows or columns; then nothing was done. A factor that `bf16` rounds to infinity, from
/// 3.4·10³⁸ on, makes NaN of what it is part of.
pub(super) fn split_product(
    device: &CudaDevice,
    product: &Product,
    (left, right): (Array<'_>, Array<'_>),
    result: Array<'_>,
    epilogue: &Epilogue<'_>,
) -> Result<bool> {
    let is_plain = [left, right, result].iter().all(|array| array.scalar() == Scalar::F32);
    let Some(Kernel { function, tile, parts }) = is_plain.then(|| kernel(device, product)).transpose()?.flatten()
    else {
        return Ok(false);
    };
    let shared = tile.shared_bytes();
    allow_shared_memory(&function, shared)?;
    let stream = device.cuda_stream();
    tensor_error(stream.context().bind_to_thread())?;
    let [down, across] = tile.tiles(product);
    let grid = [count(down)?, count(across)?, count(parts)?];
    let sizes = [count(product.m)?, count(product.n)?, count(product.k)?];
    let addresses = Addresses {
        left: left.address(),
        right: right.address(),
        result: result.address(),
        bias: epilogue.bias().map_or(0, |bias| bias.address()),
        before: epilogue.pre_activation().map_or(0, |before| before.address()),
    };
    let call = Call { function: &function, grid, threads: count(tile.threads())?, shared: count(shared)? };
    let effect = || effect_of((left, right), result, epilogue);
    declare(&stream, effect, || call.launch(&stream, &addresses, sizes, epilogue.activation()))?;
    Ok(true)
}

/// What the kernels are told first; 0 for none.
struct Addresses {
    left: u64,
    right: u64,
    result: u64,
    bias: u64,
    before: u64,
}

struct Call<'a> {
    function: &'a CudaFunction,
    grid: [u32; 3],
    threads: u32,
    shared: u32,
}

impl Call<'_> {
    /// Enqueues the kernel, with the blocks of a sum as a cluster.
    fn launch(&self, stream: &CudaStream, of: &Addresses, sizes: [u32; 3], activation: u32) -> Result<()> {
        let [x, y, parts] = self.grid;
        let size = sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x: 1, y: 1, z: parts };
        let mut cluster = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { clusterDim: size },
        };
        let config = sys::CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: parts,
            blockDimX: self.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: self.shared,
            hStream: stream.cu_stream(),
            attrs: &raw mut cluster,
            numAttrs: 1,
        };
        let [rows, columns, terms] = sizes;
        let mut arguments: [*mut c_void; 9] = [
            ptr::from_ref(&of.left).cast_mut().cast(),
            ptr::from_ref(&of.right).cast_mut().cast(),
            ptr::from_ref(&of.result).cast_mut().cast(),
            ptr::from_ref(&of.bias).cast_mut().cast(),
            ptr::from_ref(&of.before).cast_mut().cast(),
            ptr::from_ref(&rows).cast_mut().cast(),
            ptr::from_ref(&columns).cast_mut().cast(),
            ptr::from_ref(&terms).cast_mut().cast(),
            ptr::from_ref(&activation).cast_mut().cast(),
        ];
        // SAFETY: the arguments are the kernel's, in its order, and are copied by the call; arrays have as many elements as the
        // sizes say (`multiply` compared them) and live as long as their borrows, on this stream.
        let launched = unsafe {
            sys::cuLaunchKernelEx(
                &raw const config,
                self.function.cu_function(),
                arguments.as_mut_ptr(),
                ptr::null_mut(),
            )
        };
        tensor_error(launched.result())
    }
}
