//! Convolutions in groups and their gradients by one kernel, as candle has them with the kernels of `candle/core`.

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
/// Arguments: two operands, the result, its number of elements, sizes.
pub(super) fn grouped(name: &str, launch: &LaunchShape, arguments: &[Vec<u8>]) -> Option<Decoded> {
    let (kind, element) = name.strip_prefix("esper_grouped_")?.rsplit_once('_')?;
    let element_bytes = match element {
        "f32" => ElementType::F32.size_bytes(),
        "f64" => ElementType::F64.size_bytes(),
        "bf16" | "f16" => ElementType::Bf16.size_bytes(),
        _ => return None,
    };
    let [one, other, result, count, sizes] = arguments else { return None };
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
    let ([first, second, written], per_block) = match kind {
        "output" => ([x, w, y], THREADS as usize),
        "input_gradient" => ([w, y, x], THREADS as usize),
        "weight_gradient" => ([x, y, w], 1),
        _ => return None,
    };
    let is_whole = launch.block == [THREADS, 1, 1]
        && launch.grid[1..] == [1, 1]
        && (launch.grid[0] as usize).checked_mul(per_block)? >= written;
    let told = usize::try_from(u32::from_le_bytes(count.as_slice().try_into().ok()?)).ok()?;
    if !is_whole || told != written || sizes.len() != SIZES {
        return None;
    }
    let address = |bytes: &[u8]| bytes.try_into().ok().map(u64::from_le_bytes).filter(|address| *address != 0);
    let bytes = |elements: usize| elements.checked_mul(element_bytes);
    Some(Decoded {
        uses: vec![
            Use::reading(0, address(one)?, bytes(first)?),
            Use::reading(1, address(other)?, bytes(second)?),
            Use::writing(2, address(result)?, bytes(written)?),
        ],
        pointwise: None,
        reduced: None,
    })
}
