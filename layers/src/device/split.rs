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

/// Rows and columns of a result from which on these kernels are asked: of fewer, most of a tile would be nothing.
const MIN_SIDE: usize = 32;
/// Most tiles beside each other.
const MAX_TILES: usize = 65_535;
/// Rows, columns and terms that the kernels count with, those of a tile beyond.
const MAX_COUNT: usize = (u32::MAX - 256) as usize;
/// Terms that are multiplied at once, as in the kernels.
const TERMS: usize = 32;
/// Bytes of a row's terms: three numbers of bf16 for each, in two stages.
const ROW_BYTES: usize = 2 * 3 * 2 * TERMS;
/// The reduction's rows are this many numbers longer than a tile's.
const PADDING: usize = 8;

/// Kernels for tiles of one size.
#[derive(Debug, PartialEq, Eq)]
struct Tile {
    rows: usize,
    columns: usize,
    /// Of L·R, L·Rᵀ and Lᵀ·R.
    names: [&'static str; 3],
    /// Hundredths of a µs that a multiprocessor takes for a step of as many such tiles at once, beginning with one.
    step: &'static [usize],
    /// The same for their ends.
    end: usize,
}

/// Times are of an H200, over products of the sizes of the works of `esper bench`.
const TILES: [Tile; 3] = [
    Tile {
        rows: 128,
        columns: 128,
        names: ["product_nn_128x128", "product_nt_128x128", "product_tn_128x128"],
        step: &[155],
        end: 150,
    },
    Tile {
        rows: 128,
        columns: 64,
        names: ["product_nn_128x64", "product_nt_128x64", "product_tn_128x64"],
        step: &[105, 195],
        end: 80,
    },
    Tile {
        rows: 64,
        columns: 64,
        names: ["product_nn_64x64", "product_nt_64x64", "product_tn_64x64"],
        step: &[92, 123, 155, 210],
        end: 50,
    },
];

/// Clusters of one block, two, … that run at once with a block on each multiprocessor. A constant, so that every such card adds in the
/// same order, though cards differ in which of their multiprocessors are switched off.
const CLUSTERS: [usize; 8] = [132, 66, 36, 28, 21, 16, 14, 14];

/// Hundredths of a µs of a sum that is cut into parts, and of each part.
const CUT: usize = 60;
const PART: usize = 5;

impl Tile {
    fn tiles(&self, product: &Product) -> [usize; 2] {
        [product.m.div_ceil(self.rows), product.n.div_ceil(self.columns)]
    }

    /// Hundredths of a µs of a product whose sums are cut into so many parts, by the table.
    fn time(&self, product: &Product, parts: usize) -> usize {
        let [down, across] = self.tiles(product);
        let blocks = (down * across).div_ceil(CLUSTERS[parts - 1]);
        let steps = product.k.div_ceil(TERMS).div_ceil(parts);
        let (full, rest) = (blocks / self.step.len(), blocks % self.step.len());
        let whole = self.step[self.step.len() - 1] * full;
        let of_step = rest.checked_sub(1).map_or(whole, |last| whole + self.step[last]);
        of_step * (steps + 1) + self.end * blocks + PART * parts + if parts > 1 { CUT } else { 0 }
    }

    /// Bytes of shared memory of a block: two stages of factors, or the sums of a tile.
    fn shared_bytes(&self) -> usize {
        let sums = self.rows * (self.columns + PADDING) * size_of::<f32>();
        sums.max((self.rows + self.columns) * ROW_BYTES)
    }
}

/// The tile and the number of parts of each sum that take the shortest time: the same for the same product on every such card.
fn choose(product: &Product) -> (&'static Tile, usize) {
    let mut best = (&TILES[0], 1);
    let mut shortest = usize::MAX;
    for tile in &TILES {
        // A part of less than two steps is all beginning and end.
        for parts in 1..=CLUSTERS.len().min(product.k.div_ceil(2 * TERMS)) {
            let time = tile.time(product, parts);
            if time < shortest {
                (best, shortest) = ((tile, parts), time);
            }
        }
    }
    best
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
    if !is_plain || gemm_reduced_precision_f32() || product.m.min(product.n) < MIN_SIDE {
        return Ok(false);
    }
    let (tile, parts) = choose(product);
    let name = match (product.is_left_transposed, product.is_right_transposed) {
        (false, false) => tile.names[0],
        (false, true) => tile.names[1],
        (true, false) => tile.names[2],
        (true, true) => return Ok(false),
    };
    let [down, across] = tile.tiles(product);
    let largest = product.m.max(product.n).max(product.k);
    if largest > MAX_COUNT || across > MAX_TILES || !is_of_hopper(&IMAGE.function(device, ANY)?)? {
        return Ok(false);
    }
    // Not in code that the driver made of portable code.
    let Ok(function) = IMAGE.function(device, name) else { return Ok(false) };
    let shared = tile.shared_bytes();
    allow_shared_memory(&function, shared)?;
    let stream = device.cuda_stream();
    tensor_error(stream.context().bind_to_thread())?;
    let grid = [count(down)?, count(across)?, count(parts)?];
    let sizes = [count(product.m)?, count(product.n)?, count(product.k)?];
    let addresses = Addresses {
        left: left.address(),
        right: right.address(),
        result: result.address(),
        bias: epilogue.bias().map_or(0, |bias| bias.address()),
        before: epilogue.pre_activation().map_or(0, |before| before.address()),
    };
    let call = Call { function: &function, grid, threads: count(2 * tile.rows)?, shared: count(shared)? };
    let effect = || effect_of((left, right), result, epilogue);
    declare(&stream, effect, || call.launch(&stream, &addresses, sizes, epilogue.activation()))?;
    Ok(true)
}

/// A kernel that every image of this crate has.
const ANY: &str = "thin_product_f32";

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

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(m: usize, n: usize, k: usize) -> ([usize; 2], usize) {
        let product = Product { m, n, k, is_left_transposed: false, is_right_transposed: true };
        let (tile, parts) = choose(&product);
        ([tile.rows, tile.columns], parts)
    }

    #[test]
    fn large_tiles_fill_the_card_and_sums_are_cut_where_they_do_not() {
        assert_eq!(chosen(512, 4096, 4096), ([128, 128], 1));
        assert_eq!(chosen(8192, 768, 768), ([128, 128], 1));
        assert_eq!(chosen(2048, 512, 1024), ([128, 128], 2));
        assert_eq!(chosen(768, 768, 8192), ([128, 128], 3));
        assert_eq!(chosen(1024, 512, 512), ([128, 64], 2));
        assert_eq!(chosen(65, 67, 33), ([64, 64], 1));
        let (tile, parts) = chosen(128, 512, 784);
        assert!(tile == [64, 64] && parts >= 5, "{parts}");
    }

    #[test]
    fn shared_memory_holds_two_stages() {
        assert_eq!(TILES.map(|tile| tile.shared_bytes()), [98_304, 73_728, 49_152]);
    }
}
