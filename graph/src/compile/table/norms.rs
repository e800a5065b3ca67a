//! Gradients of layer norm, as candle has them with the kernels of `candle/core`.

use super::call::product;
use super::decoded::{Decoded, Use};
use crate::compile::kernel::LaunchShape;

/// Threads of a block.
const THREADS: usize = 256;
/// Columns of a block that adds up rows.
const COLUMNS: usize = 32;

/// What a launch reads and writes; none where the name or the arguments are not those of such a kernel.
///
/// Arguments: operands, results, sizes.
pub(super) fn norm(name: &str, launch: &LaunchShape, arguments: &[Vec<u8>]) -> Option<Decoded> {
    let (kind, element) = name.strip_prefix("esper_norm_")?.rsplit_once('_')?;
    let (element_bytes, sum_bytes) = match element {
        "f32" => (4, 4),
        "f64" => (8, 8),
        "bf16" | "f16" => (2, 4),
        _ => return None,
    };
    let (sizes, addresses) = arguments.split_last()?;
    let sizes: Vec<usize> = sizes
        .chunks_exact(4)
        .map(|bytes| usize::try_from(u32::from_le_bytes(bytes.try_into().ok()?)).ok())
        .collect::<Option<_>>()?;
    let &[rows, width, threads, per_slice, slices, _eps] = &sizes[..] else { return None };
    let is_sound =
        matches!(threads, 32 | THREADS) && rows > 0 && width > 0 && rows.div_ceil(per_slice.max(1)) == slices;
    let bytes = |elements: usize, each: usize| elements.checked_mul(each);
    let elements = bytes(product(&[rows, width])?, element_bytes)?;
    let alpha = bytes(width, element_bytes)?;
    let stats = bytes(product(&[rows, 2])?, sum_bytes)?;
    let partial = bytes(product(&[slices, 2, width])?, sum_bytes)?;
    let sums = bytes(product(&[2, width])?, element_bytes)?;
    let columns = |count: usize| count.div_ceil(COLUMNS);
    let (read, written, grid) = match kind {
        "weights" if slices == 1 => (&[elements, elements, stats][..], &[sums][..], [columns(width), 1]),
        "slices" => (&[elements, elements, stats][..], &[partial][..], [columns(width), slices]),
        "sum" => (&[partial][..], &[sums][..], [columns(2 * width), 1]),
        _ => {
            let each: usize = kind.strip_prefix("input_")?.parse().ok().filter(|each| threads * each >= width)?;
            let is_there = matches!(each, 2 | 8 | 32);
            let grid = [rows.div_ceil(THREADS / threads.max(1)), usize::from(is_there)];
            (&[elements, alpha, elements][..], &[elements, stats][..], grid)
        }
    };
    let block = if kind.starts_with("input") { [256, 1, 1] } else { [32, 32, 1] };
    let is_whole = launch.block == block && launch.grid.map(|blocks| blocks as usize) == [grid[0], grid[1], 1];
    if !is_sound || !is_whole || addresses.len() != read.len() + written.len() {
        return None;
    }
    let mut uses = Vec::new();
    for (index, (bytes, address)) in read.iter().chain(written).zip(addresses).enumerate() {
        let address = u64::from_le_bytes(address.as_slice().try_into().ok()?);
        let of = if index < read.len() { Use::reading } else { Use::writing };
        uses.push((address != 0).then(|| of(index, address, *bytes))?);
    }
    Some(Decoded { uses, pointwise: None, reduced: None })
}
