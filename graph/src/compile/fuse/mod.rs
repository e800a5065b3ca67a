//! Pass: element-wise kernels that share data become one.

mod groups;
mod line;
mod merge;

use super::block::{Block, BlockId, Lifetime, Region};
use super::dependencies::recovered;
use super::fuel::Fuel;
use super::fused::Body;
use super::lifetimes;
use super::node::NodeKind;
use super::program::Program;
use super::ranges::ByteSet;
use groups::Groups;

/// Merges element-wise kernels of the same number of elements: one that reads what another computes, element by
/// element, takes it from a register, and what nobody else reads is not stored; two that read the same data read it
/// once.
///
/// Reductions of rows merge with such kernels of as many elements, and with those of one element per row, which every
/// position of the row then computes.
///
/// Two become one only if no other node has to run between them, and if no element is read by another position than
/// the one that writes it. Results keep every bit: the steps are those of the kernels, in their order.
///
/// Which kernels may run together is a question of the data alone, so the result has the dependencies that
/// [`Pass::Dependencies`](super::Pass::Dependencies) finds, and its allocations stand around the first and the last
/// use. A program in which nothing can be merged stays as it is.
pub(super) fn fuse(mut program: Program, fuel: &mut Fuel) -> Program {
    let is_operation = |index: &usize| lifetimes::is_operation(&program.nodes[*index].kind);
    let places: Vec<usize> = (0..program.nodes.len()).filter(is_operation).collect();
    let take = |place: &usize| std::mem::replace(&mut program.nodes[*place].kind, NodeKind::Empty);
    let mut groups = Groups::new(&program.blocks, places.iter().map(take).collect());
    if !groups.merge_all(fuel) {
        for (place, kind) in places.into_iter().zip(groups.unmerged()) {
            program.nodes[place].kind = kind;
        }
        return program;
    }
    let blocks = program.blocks;
    let mut kinds = without_dead_outputs(&blocks, groups.into_kinds(), fuel);
    loop {
        let mut groups = Groups::new(&blocks, kinds);
        let has_merged = groups.merge_all(fuel);
        kinds = groups.into_kinds();
        if !has_merged {
            break;
        }
        kinds = without_dead_outputs(&blocks, kinds, fuel);
    }
    recovered(lifetimes::chain(blocks, kinds))
}

/// Drops stores of fused kernels that nobody reads, and the kernels that store nothing then.
fn without_dead_outputs(blocks: &[Block], kinds: Vec<NodeKind>, fuel: &mut Fuel) -> Vec<NodeKind> {
    let mut live = ByteSet::default();
    for (index, block) in blocks.iter().enumerate() {
        if block.lifetime == Lifetime::External {
            live.insert(&Region::new(BlockId(index), 0, block.size_bytes));
        }
    }
    let mut kept = Vec::with_capacity(kinds.len());
    for mut kind in kinds.into_iter().rev() {
        if let NodeKind::Kernel(kernel) = &mut kind
            && matches!(kernel.effect, super::kernel::Effect::Fused(_))
            && let Some(mut body) = Body::of(kernel)
            && !body.outputs.iter().all(|store| live.overlaps(&store.region))
            && fuel.burn()
        {
            body.retain_outputs(|store| live.overlaps(&store.region));
            if body.outputs.is_empty() {
                continue;
            }
            *kernel = body.into_kernel();
        }
        kind.each_write().filter(|write| write.is_full).for_each(|write| live.remove(&write.region));
        kind.each_read().for_each(|region| live.insert(&region));
        kept.push(kind);
    }
    kept.reverse();
    kept
}
