//! Convolutions in groups, their gradients and those of pooling by one kernel, and windows as columns, as candle has them with the kernels of
//! `candle/core`.

use super::call::product;
use super::decoded::{Decoded, Use};
use crate::compile::kernel::LaunchShape;
use crate::compile::pointwise::ElementType;

/// Threads of a block.
const THREADS: u32 = 256;
/// Numbers that the kernels are told of sizes and steps, 4 bytes each: ten sizes come first.
const SIZES: usize = 16;

/// What a launch reads and writes; none where the name or the arguments are not those of such a kernel.
///
/// Arguments: one to three operands, the result, its number of elements, sizes.
pub(super) fn grouped(name: &str, launch: &LaunchShape, arguments: &[Vec<u8>]) -> Option<Decoded> {
    let (kind, element) = name.strip_prefix("esper_")?.rsplit_once('_')?;
    let element_bytes = match element {
        "f32" => ElementType::F32.size_bytes(),
        "f64" => ElementType::F64.size_bytes(),
        "bf16" | "f16" => ElementType::Bf16.size_bytes(),
        _ => return None,
    };
    let [operands @ .., result, count, sizes] = arguments else { return None };
    let sizes: Vec<usize> = sizes
        .chunks_exact(4)
        .map(|bytes| usize::try_from(u32::from_le_bytes(bytes.try_into().ok()?)).ok())
        .collect::<Option<_>>()?;
    let &[samples, groups, inputs, outputs, height, width, tall, wide, rows, columns] = sizes.get(..10)? else {
        return None;
    };
    let x = product(&[samples, groups, inputs, height, width])?;
    let w = product(&[groups, outputs, inputs, tall, wide])?;
    let y = product(&[samples, groups, outputs, rows, columns])?;
    let seen = product(&[groups, inputs, tall, wide, samples, rows, columns])?;
    let (read, written) = match kind {
        "grouped_output" => (&[x, w][..], y),
        "grouped_input_gradient" => (&[w, y][..], x),
        "grouped_weight_gradient" => (&[x, y][..], w),
        "pool_gradient_max" => (&[x, y, y][..], x),
        "pool_gradient_mean" => (&[y][..], x),
        "windows_seen" => (&[x][..], seen),
        "windows_folded" => (&[seen][..], x),
        _ => return None,
    };
    let per_block = if kind == "grouped_weight_gradient" { 1 } else { THREADS as usize };
    let is_whole = launch.block == [THREADS, 1, 1]
        && launch.grid[1..] == [1, 1]
        && (launch.grid[0] as usize).checked_mul(per_block)? >= written;
    let told = usize::try_from(u32::from_le_bytes(count.as_slice().try_into().ok()?)).ok()?;
    if !is_whole || told != written || sizes.len() != SIZES || operands.len() != read.len() {
        return None;
    }
    let address = |bytes: &[u8]| bytes.try_into().ok().map(u64::from_le_bytes).filter(|address| *address != 0);
    let bytes = |elements: usize| elements.checked_mul(element_bytes);
    let mut uses = Vec::new();
    for (index, (operand, &elements)) in operands.iter().zip(read).enumerate() {
        uses.push(Use::reading(index, address(operand)?, bytes(elements)?));
    }
    uses.push(Use::writing(read.len(), address(result)?, bytes(written)?));
    Some(Decoded { uses, pointwise: None, reduced: None })
}
