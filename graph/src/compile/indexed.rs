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
    // Estimates in tenths of a microsecond, that of rows an upper one: for 128 indices of a row, for one of a thread of candle's.
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
/// process's work on the device, as in candle. A warp lists which of 512 indices are its row, and a lane has 16 elements of
/// it in registers meanwhile: what is read for them is under way together.
const SOURCE: &str = r#"extern "C" __global__ void __launch_bounds__(128) KERNEL_NAME(
    const INDEX *indices, unsigned long long count, const VALUE *terms, VALUE *sums,
    unsigned long long before, unsigned long long, unsigned long long rows, unsigned long long after) {
  WAIT_FOR_INPUTS;
  __shared__ unsigned short listed[4][512];
  const unsigned int lane = threadIdx.x % 32u;
  const unsigned long long row = blockIdx.x * 4ull + threadIdx.x / 32u;
  if (row >= before * rows) return;
  unsigned short *const found = listed[threadIdx.x / 32u];
  const unsigned long long own = row % rows;
  const VALUE *from = terms + row / rows * count * after;
  VALUE *to = sums + row * after;
  for (unsigned long long start = 0; start < count; start += 512u) {
    INDEX index[16];
#pragma unroll
    for (unsigned int part = 0; part < 16u; part++) {
      const unsigned long long at = start + part * 32u + lane;
      index[part] = at < count ? indices[at] : (INDEX)NONE;
    }
    unsigned int total = 0u;
#pragma unroll
    for (unsigned int part = 0; part < 16u; part++) {
      const bool is_index = index[part] != (INDEX)NONE;
      if (is_index && (unsigned long long)index[part] >= rows) __trap();
      const bool is_own = is_index && (unsigned long long)index[part] == own;
      const unsigned int all = __ballot_sync(0xffffffffu, is_own);
      if (is_own) found[total + __popc(all & ((1u << lane) - 1u))] = (unsigned short)(part * 32u + lane);
      total += __popc(all);
    }
    __syncwarp();
    for (unsigned long long column = lane; total != 0u && column < after; column += 512u) {
      VALUE sum[16];
#pragma unroll
      for (unsigned int k = 0; k < 16u; k++) sum[k] = column + 32u * k < after ? to[column + 32u * k] : (VALUE)0;
      for (unsigned int one = 0; one < total; one++) {
        const VALUE *term = from + (start + found[one]) * after + column;
#pragma unroll
        for (unsigned int k = 0; k < 16u; k++) {
          if (column + 32u * k < after) sum[k] = ADD(sum[k], term[32u * k]);
        }
      }
#pragma unroll
      for (unsigned int k = 0; k < 16u; k++) {
        if (column + 32u * k < after) to[column + 32u * k] = sum[k];
      }
    }
    // The next round writes what this one reads.
    __syncwarp();
  }
}
"#;

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::process::Command;

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

    /// The source of a kernel in a name space of its own, which has the kernel's number too.
    fn unit(number: usize, name: &str, num_indices: usize, (rows, after): (usize, usize)) -> String {
        let own = summed_by_row(&kernel(name, num_indices, rows, after)).expect("it is worth it");
        let Code::Generated(source) = &own.code else { panic!("{:?}", own.code) };
        format!("namespace unit_{number} {{\n{}}}\n", source.replace(&own.name, &format!("summed_{number}")))
    }

    #[test]
    fn on_the_processor_rows_have_the_sums_in_the_order_of_the_indices_and_an_index_that_is_no_row_ends_it() {
        if Command::new("c++").arg("--version").output().is_err() {
            return;
        }
        let mut text = include_str!("codegen/tests/host.cpp").replace("THREADS = 256", "THREADS = 128");
        text.push_str(include_str!("codegen/tests/indexed.cpp"));
        let mut calls = String::new();
        let cases =
            [(1100, (7, 3)), (513, (40, 600)), (512, (1, 33)), (700, (5, 530)), (37, (5, 512)), (2000, (300, 40))];
        let types = [
            ("u32_f32", "unsigned int, float"),
            ("i64_f64", "long long, double"),
            ("u8_f32", "unsigned char, float"),
            ("u32_bf16", "unsigned int, unsigned short"),
        ];
        for (number, (num_indices, (rows, after))) in cases.into_iter().enumerate() {
            let (name, of) = types[number % types.len()];
            // The device adds by an instruction.
            text.push_str(&unit(number, &format!("ia_{name}"), num_indices, (rows, after)).replace(BF16_ADD, ""));
            let case = format!("{num_indices}u, {rows}u, {after}u");
            writeln!(calls, "  differ += count_of_differing<{of}>(unit_{number}::summed_{number}, {case});")
                .expect("text");
        }
        // The last row, that after it, none, and one below all.
        for (unit, of, index, is_refused) in [
            ("unit_0::summed_0, 1100u, 7u, 3u", "unsigned int, float", "6u", false),
            ("unit_0::summed_0, 1100u, 7u, 3u", "unsigned int, float", "7u", true),
            ("unit_0::summed_0, 1100u, 7u, 3u", "unsigned int, float", "~0u", false),
            ("unit_1::summed_1, 513u, 40u, 600u", "long long, double", "-1", true),
        ] {
            writeln!(calls, "  differ += is_refused<{of}>({unit}, {index}) != {is_refused};").expect("text");
        }
        writeln!(text, "int main() {{\n  unsigned int differ = 0;\n{calls}  return differ != 0;\n}}").expect("text");
        let folder = tempfile::tempdir().expect("a folder");
        let (input, output) = (folder.path().join("rows.cpp"), folder.path().join("rows"));
        std::fs::write(&input, text).expect("a file");
        let mut compiler = Command::new("c++");
        let result = compiler.args(["-std=c++17", "-w", "-o"]).arg(&output).arg(&input).output().expect("it runs");
        assert!(result.status.success(), "{}", String::from_utf8_lossy(&result.stderr));
        let result = Command::new(&output).output().expect("it runs");
        assert!(result.status.success(), "{}", String::from_utf8_lossy(&result.stdout));
    }

    #[test]
    fn a_compiler_for_the_device_takes_the_sums_of_every_type_where_there_is_one() {
        if Command::new("nvcc").arg("--version").output().is_err() {
            return;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let names = ["ia_u8_f32", "ia_u32_f32", "ia_i64_f64", "ia_u32_bf16"];
        let units = names.iter().enumerate().map(|(number, name)| unit(number, name, 512, (256, 512)));
        let (input, output) = (folder.path().join("rows.cu"), folder.path().join("rows.cubin"));
        std::fs::write(&input, units.collect::<String>()).expect("a file");
        let mut compiler = Command::new("nvcc");
        compiler.args(["-arch=sm_90a", "-std=c++17", "-Xptxas", "-v", "-cubin", "-o"]);
        let result = compiler.arg(&output).arg(&input).output().expect("the compiler runs");
        let said = String::from_utf8_lossy(&result.stderr);
        assert!(result.status.success(), "{said}");
        assert_eq!(said.matches(" 0 bytes spill stores").count(), names.len(), "{said}");
    }
}
