//! Kernels of matrix products that nobody declared: which operand is the output.

use std::collections::BTreeSet;

use super::resolve::{Resolved, ResolvedKernel, Source};
use crate::graph::compile::block::{Block, BlockId, Lifetime};
use crate::graph::compile::kernel::{Effect, Pointer};
use crate::graph::compile::node::NodeKind;

/// Parts of the names of such kernels, in lower case.
const NAMES: [&str; 9] =
    ["gemm", "gemv", "splitk", "cublas", "cutlass", "xmma", "nvjet", "dot_kernel", "reduce_1block"];

/// Whether a kernel belongs to a library of matrix products.
pub(super) fn is_library(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    NAMES.iter().any(|part| name.contains(part))
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
