//! Sums of rows by index, by a warp per row.
//!
//! candle adds rows where indices say, the gradient of an embedding, by a thread per column that goes through all indices
//! one after the other. Each element is a sum of its own, so rows may be summed beside each other: an element takes its
//! terms in the order of the indices as before, and has the same bits.

use std::sync::Arc;

use super::codegen::WAIT;
use super::kernel::{Code, Effect, Kernel, LaunchShape};

/// Warps of a block: rows that it sums.
const ROWS_OF_BLOCK: u32 = 4;
/// Rows whose warps run at one time on a large GPU.
const ROWS_AT_ONCE: u64 = 8192;

/// The kernel that is launched for one of candle's, with the same arguments, where there are indices enough for it to be
/// worth it. In the program the recorded one stays: what is written is the same.
pub(crate) fn summed_by_row(kernel: &Kernel) -> Option<Kernel> {
    let (source, launch) = by_row(kernel)?;
    let name = format!("esper_rows_{}", &blake3::hash(source.as_bytes()).to_hex()[..16]);
    let code = Code::Generated(Arc::from(WAIT.to_owned() + &source.replace("KERNEL_NAME", &name)));
    Some(Kernel { name, code, launch, ..kernel.clone() })
}

fn by_row(kernel: &Kernel) -> Option<(String, LaunchShape)> {
    let (index, value) = kernel.name.strip_prefix("ia_")?.split_once('_')?;
    // The largest number of a type stands for no row.
    let (index, none) = match index {
        "u8" => ("unsigned char", "0xffu"),
        "u32" => ("unsigned int", "0xffffffffu"),
        "i64" => ("long long", "0x7fffffffffffffffll"),
        _ => return None,
    };
    let (value, add, before_kernel) = match value {
        "f32" => ("float", "__fadd_rn", ""),
        "f64" => ("double", "__dadd_rn", ""),
        "bf16" => ("unsigned short", "bf16_add", BF16_ADD),
        _ => return None,
    };
    // Indices, their number, terms, sums, and the sizes before, of the terms, of the sums, and after.
    let [_, num_indices, _, _, before, _, rows, _] = kernel.parameters[..] else { return None };
    if !matches!(kernel.code, Code::Recorded(_)) || kernel.effect != Effect::Known {
        return None;
    }
    let rows = before.checked_mul(rows)?;
    // In tenths of a microsecond: a row looks at 128 indices at once, a thread of candle's at one.
    let by_row = (rows / ROWS_AT_ONCE + 1).checked_mul(20 + num_indices / 128)?;
    if by_row >= num_indices.checked_mul(3)? {
        return None;
    }
    let blocks =
        u32::try_from(rows.div_ceil(ROWS_OF_BLOCK.into())).ok().filter(|&blocks| blocks <= i32::MAX.cast_unsigned())?;
    let source = before_kernel.to_owned() + SOURCE;
    let source = source.replace("INDEX", index).replace("NONE", none).replace("VALUE", value).replace("ADD", add);
    let threads = 32 * ROWS_OF_BLOCK;
    Some((source, LaunchShape { grid: [blocks, 1, 1], block: [threads, 1, 1], shared_bytes: 0 }))
}

/// A float holds the sum of two bf16 numbers well enough that rounding twice is rounding once.
const BF16_ADD: &str = r#"static __device__ __forceinline__ unsigned short bf16_add(const unsigned short x, const unsigned short y) {
  const float left = __uint_as_float(static_cast<unsigned int>(x) << 16);
  const float right = __uint_as_float(static_cast<unsigned int>(y) << 16);
  unsigned short sum;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(sum) : "f"(__fadd_rn(left, right)));
  return sum;
}
"#;

/// `sums[p][indices[j]][c] += terms[p][j][c]`, for each element in the order of `j`. An index that is no row ends the
/// process's work on the device, as in candle.
const SOURCE: &str = r#"extern "C" __global__ void __launch_bounds__(128) KERNEL_NAME(
    const INDEX *indices, unsigned long long count, const VALUE *terms, VALUE *sums,
    unsigned long long before, unsigned long long, unsigned long long rows, unsigned long long after) {
  WAIT_FOR_INPUTS;
  const unsigned int lane = threadIdx.x % 32u;
  const unsigned long long row = blockIdx.x * 4ull + threadIdx.x / 32u;
  if (row >= before * rows) return;
  const unsigned long long own = row % rows;
  const VALUE *from = terms + row / rows * count * after;
  VALUE *to = sums + row * after;
  for (unsigned long long start = 0; start < count; start += 128u) {
    unsigned int found[4];
#pragma unroll
    for (int part = 0; part < 4; part++) {
      const unsigned long long at = start + part * 32u + lane;
      const INDEX index = at < count ? indices[at] : (INDEX)NONE;
      const bool is_index = index != (INDEX)NONE;
      if (is_index && (unsigned long long)index >= rows) __trap();
      found[part] = __ballot_sync(0xffffffffu, is_index && (unsigned long long)index == own);
    }
    if ((found[0] | found[1] | found[2] | found[3]) == 0u) continue;
    for (unsigned long long column = lane; column < after; column += 32u) {
      VALUE sum = to[column];
#pragma unroll
      for (int part = 0; part < 4; part++) {
        for (unsigned int left = found[part]; left != 0u; left &= left - 1u) {
          const unsigned long long at = start + part * 32u + __ffs(left) - 1u;
          sum = ADD(sum, from[at * after + column]);
        }
      }
      to[column] = sum;
    }
  }
}
"#;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::{BlockId, Pointer};

    /// Adds `num_indices` rows of `after` numbers to some of `rows`.
    fn kernel(name: &str, num_indices: usize, rows: usize, after: usize) -> Kernel {
        let pointer = |word_index, bytes| Pointer::new(word_index, BlockId(word_index), 0).reading(0, bytes);
        Kernel {
            name: name.to_owned(),
            code: Code::Recorded(1),
            launch: LaunchShape { grid: [1, 1, 1], block: [1024, 1, 1], shared_bytes: 0 },
            parameters: vec![0, num_indices as u64, 0, 0, 1, num_indices as u64, rows as u64, after as u64],
            argument_bytes: vec![8; 8],
            pointers: vec![
                pointer(0, num_indices * 4),
                pointer(2, num_indices * after * 4),
                pointer(3, rows * after * 4).writing_some(0, rows * after * 4),
            ],
            effect: Effect::Known,
        }
    }

    #[test]
    fn sums_of_many_rows_by_index_take_a_warp_per_row_and_the_same_arguments() {
        for (name, index, value) in [
            ("ia_u32_f32", "unsigned int", "float"),
            ("ia_i64_f32", "long long", "float"),
            ("ia_u8_f64", "unsigned char", "double"),
            ("ia_u32_bf16", "unsigned int", "unsigned short"),
        ] {
            let before = kernel(name, 512, 1001, 64);
            let after = summed_by_row(&before).unwrap();
            let Code::Generated(source) = &after.code else { panic!("{name}: {:?}", after.code) };
            assert!(source.contains(&format!("{}(\n    const {index} *indices", after.name)), "{source}");
            assert!(source.contains(&format!("{value} *sums")), "{source}");
            for word in ["INDEX", "NONE", "VALUE", " ADD(", "KERNEL_NAME"] {
                assert!(!source.contains(word), "{name}: {word}");
            }
            assert_eq!(after.launch.grid, [251, 1, 1]);
            assert_eq!((&after.parameters, &after.pointers), (&before.parameters, &before.pointers));
        }
    }

    #[test]
    fn few_indices_other_types_and_other_kernels_stay_as_they_are() {
        for (name, num_indices, rows) in [
            ("ia_u32_f32", 4, 1000),
            ("ia_u32_f32", 8, 1_000_000),
            ("ia_u32_f16", 512, 1000),
            ("is_u32_f32", 512, 1000),
        ] {
            let own = summed_by_row(&kernel(name, num_indices, rows, 2));
            assert_eq!(own, None, "{name}, {num_indices} indices, {rows} rows");
        }
    }
}
