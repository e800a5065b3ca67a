//! Kernels of matrix products that nobody declared: which operand is the output.

use std::collections::BTreeSet;

use super::resolve::{Resolved, ResolvedKernel, Source};
use crate::compile::block::{Block, BlockId, Lifetime};
use crate::compile::kernel::{Effect, Pointer, WORD_ALIGNMENT};
use crate::compile::memory::ARENA_ALIGNMENT;
use crate::compile::node::NodeKind;

/// Types that only kernels of cuBLAS are made of, as they stand in mangled names.
const TYPES: [&str; 4] = ["cublasGemv", "cublasGemm", "cublasDot", "cublasSplitK"];
/// What cuBLAS calls the processors that a kernel was written for.
const PROCESSORS: [&str; 5] = ["maxwell_", "volta_", "turing_", "ampere_", "hopper_"];

/// Whether cuBLAS gives such a name to a kernel of a product. Anyone may: where the code came from decides as well.
pub(super) fn names_a_product(name: &str) -> bool {
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    if let Some(kernel) = name.strip_prefix("_ZN7cutlass7Kernel2I") {
        // A type with the name of the kernel. Other templates of CUTLASS are what programs instantiate, too.
        return kernel[digits(kernel)..].starts_with("cutlass_");
    }
    if name.starts_with("_Z") {
        return name.starts_with("_ZN8cublasLt") || TYPES.iter().any(|of| name.contains(of));
    }
    let of_processor = PROCESSORS.iter().any(|processor| name.starts_with(processor)) && name.contains("gemm_");
    let of_capability = name.strip_prefix("sm").is_some_and(|rest| rest[digits(rest)..].starts_with("_xmma_gemm_"));
    of_processor || of_capability || name.starts_with("nvjet_sm")
}

/// What another address may differ by a multiple of, in bytes. The library chose the kernel for the addresses that it was given, which are
/// multiples of 256; but no instruction before compute capability 10 moves more than 16 bytes a thread, and descriptions of tensors (TMA)
/// ask for no more, so that a kernel whose name says it was written for one of those needs no more either.
pub(super) fn alignment(name: &str) -> usize {
    let capability = ["nvjet_sm", "cutlass_", "sm"].into_iter().find_map(|mark| {
        let rest = if mark == "cutlass_" { name.split_once(mark)?.1 } else { name.strip_prefix(mark)? };
        rest.split(|letter: char| !letter.is_ascii_digit()).next()?.parse::<u32>().ok()
    });
    let is_old = PROCESSORS.iter().any(|processor| name.starts_with(processor));
    if is_old || capability.is_some_and(|capability| capability < 100) { WORD_ALIGNMENT } else { ARENA_ALIGNMENT }
}

/// What was last written to a block since its allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Written {
    Nothing,
    /// A memset: the zeros may be what a kernel adds its output to.
    Fill,
    Data,
}

/// Blocks outside the graph that hold data: what is used other than by library kernels and memsets.
///
/// The rest, as far as library kernels hold an address of it, is taken for their workspace.
pub(super) fn data_blocks(resolved: &[Resolved<'_>], declared: impl Iterator<Item = BlockId>) -> BTreeSet<BlockId> {
    let mut blocks: BTreeSet<BlockId> = declared.collect();
    for of in resolved {
        match of {
            Resolved::Done(kinds) => {
                let copies = kinds.iter().filter(|kind| matches!(kind, NodeKind::Copy { .. }));
                blocks.extend(copies.flat_map(NodeKind::blocks));
            }
            Resolved::Kernel(kernel) if matches!(kernel.source, Source::Table(_)) => blocks.extend(kernel.blocks()),
            Resolved::Kernel(_) => {}
        }
    }
    blocks
}

/// The pointers of a library kernel with what they reach, and what is known of it.
///
/// Of several operands that may be the output, and of none, nothing is known.
pub(super) fn pointers(
    kernel: &ResolvedKernel<'_>,
    blocks: &[Block],
    written: &[Written],
    data: &BTreeSet<BlockId>,
) -> (Vec<Pointer>, Effect) {
    let is_owned = |block: &BlockId| blocks[block.0].lifetime == Lifetime::Graph;
    let operands = kernel.blocks();
    let mut candidates = operands.iter().filter(|block| is_owned(block) && written[block.0] != Written::Data);
    let (Some(&output), None) = (candidates.next(), candidates.next()) else {
        let pointers = kernel.pointers.iter().map(|pointer| unknown(*pointer, blocks)).collect();
        return (pointers, Effect::Unknown);
    };
    let reach = |pointer: &Pointer| {
        let (block, size_bytes) = (pointer.block, blocks[pointer.block.0].size_bytes);
        let is_workspace = !is_owned(&block) && !data.contains(&block);
        if block == output && written[block.0] == Written::Nothing {
            pointer.writing(0, size_bytes)
        } else if block == output || is_workspace {
            unknown(*pointer, blocks)
        } else {
            pointer.reading(0, size_bytes)
        }
    };
    (kernel.pointers.iter().map(reach).collect(), Effect::Known)
}

/// The same address, through which any byte of its block may be read and written.
pub(super) fn unknown(pointer: Pointer, blocks: &[Block]) -> Pointer {
    Pointer::unknown(pointer.word_index, pointer.block, pointer.offset_bytes, blocks[pointer.block.0].size_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_for_processors_before_compute_capability_10_need_no_more_than_their_widest_store() {
        for name in [
            "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma_aligna4_alignc4_execute",
            "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NNT",
            "_ZN7cutlass7Kernel2I43cutlass_80_simt_sgemm_256x128_8x4_nt_align1EEvNT_6ParamsE",
            "ampere_sgemm_32x32_sliced1x4_nn",
        ] {
            assert_eq!(alignment(name), 16, "{name}");
        }
        for name in [
            "nvjet_sm100_tst_128x256_64x4_2x1_v_bz_coopA_NNT",
            "sm120_xmma_gemm_f32f32_tf32f32_f32_nn_n",
            "_ZN7cutlass7Kernel2I44cutlass_100_simt_sgemm_256x128_8x4_nt_align1EEvNT_6ParamsE",
            "_ZN8cublasLt19splitKreduce_kernelILi32ELi16EiffffLb0EfffLb1ELb0ELb0ELb0EEEvNS_18cublasSplitKParamsIT4_EE",
            "nvjet_smaller",
        ] {
            assert_eq!(alignment(name), 256, "{name}");
        }
    }

    #[test]
    fn names_of_products_are_those_that_cublas_gives() {
        for name in [
            "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma_aligna4_alignc4_execute",
            "sm90_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize64x128x32_warpgroupsize1x1x1_execute",
            "ampere_sgemm_32x32_sliced1x4_nn",
            "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NNT",
            "_ZN7cutlass7Kernel2I43cutlass_80_simt_sgemm_256x128_8x4_nt_align1EEvNT_6ParamsE",
            "_ZN8cublasLt19splitKreduce_kernelILi32ELi16EiffffLb0EfffLb1ELb0ELb0ELb0EEEvNS_18cublasSplitKParamsIT4_EE",
            "_Z16gemmSN_NN_kernelIfLi128ELi2ELi4ELi8ELi4ELi4ELb0E30cublasGemvTensorStridedBatchedIKfES2_S0_IfEEv",
            "_Z10dot_kernelIfLi128ELi0E15cublasDotParamsI16cublasGemvTensorIKfES0_IfEEEvT2_",
        ] {
            assert!(names_a_product(name), "{name}");
        }
        for name in [
            "my_gemm_accumulate",
            "gemm",
            "cublas",
            "splitKreduce",
            "small_xmma_gemm_and_more",
            "_Z18my_gemm_accumulatePfS_S_i",
            "_ZN7cutlass6KernelINS_4gemm6kernel4GemmI7MyEpilogueEEEEvNT_6ParamsE",
            "_ZN7cutlass7Kernel2I9my_kernelEEvNT_6ParamsE",
            "_Z16flash_fwd_kernelI23Flash_fwd_kernel_traitsIN7cutlass10bfloat16_tEEEvv",
            "",
        ] {
            assert!(!names_a_product(name), "{name}");
        }
    }
}
