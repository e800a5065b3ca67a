//! Pass: element-wise kernels that share data become one.

mod groups;
mod inline;
mod joint;
mod line;
mod merge;
mod recompute;
mod source;

use super::block::{Block, BlockId, Lifetime, Region};
use super::codegen::can_generate;
use super::dependencies::recovered;
use super::fuel::Fuel;
use super::fused::Body;
use super::lifetimes;
use super::node::{Node, NodeKind};
use super::program::Program;
use super::ranges::ByteSet;
use groups::Groups;
use inline::inlined;
use joint::join_results;
use recompute::recomputed;
use source::rewrite_readers;

/// Merges element-wise kernels of the same number of elements: one that reads what another computes, element by
/// element, takes it from a register, and what nobody else reads is not stored; two that read the same data read it
/// once.
///
/// Reductions of rows merge with such kernels of as many elements, and with those of one element per row, which every
/// position of the row then computes. Those of columns merge with work of one element per column on what they give.
///
/// One that reads all that another computes in another order computes it there, if nobody else reads it, and one that reads what was
/// stored for it alone computes that again, if less is read and stored so. What a kernel stores in two
/// places is stored in one, where that is the same to those who read it.
///
/// Two become one only if no other node has to run between them, and if no element is read by another position than
/// the one that writes it. Results keep every bit: the steps are those of the kernels, in their order.
///
/// Which kernels may run together is a question of the data alone, so the result has the dependencies that
/// [`Pass::Dependencies`](super::Pass::Dependencies) finds, and its allocations stand around the first and the last
/// use. A program in which nothing can be merged stays as it is.
pub(super) fn fuse(mut program: Program, fuel: &mut Fuel) -> Program {
    let num_before = fuel.burnt();
    let is_operation = |index: &usize| lifetimes::is_operation(&program.nodes[*index].kind);
    let places: Vec<usize> = (0..program.nodes.len()).filter(is_operation).collect();
    let take = |place: &usize| std::mem::replace(&mut program.nodes[*place].kind, NodeKind::Empty);
    let mut kinds: Vec<NodeKind> = places.iter().map(take).collect();
    loop {
        let num_so_far = fuel.burnt();
        kinds = merged(&program.blocks, kinds, fuel);
        let nodes = kinds.into_iter().map(|kind| Node::new(kind, [])).collect();
        let mut listed = Program { blocks: program.blocks, nodes };
        rewrite_readers(&mut listed, fuel, recomputed);
        rewrite_readers(&mut listed, fuel, inlined);
        join_results(&mut listed, fuel);
        kinds = without_dead_outputs(&listed.blocks, lifetimes::operations(listed.nodes), fuel);
        program.blocks = listed.blocks;
        if fuel.burnt() == num_so_far {
            break;
        }
    }
    if fuel.burnt() == num_before {
        for (place, kind) in places.into_iter().zip(kinds) {
            program.nodes[place].kind = kind;
        }
        return program;
    }
    recovered(lifetimes::chain(program.blocks, kinds))
}

/// Operations of which those that may be one are.
fn merged(blocks: &[Block], kinds: Vec<NodeKind>, fuel: &mut Fuel) -> Vec<NodeKind> {
    let mut groups = Groups::new(blocks, kinds);
    if groups.merge_all(fuel) { without_dead_outputs(blocks, groups.into_kinds(), fuel) } else { groups.unmerged() }
}

/// Drops stores of kernels that compute element by element which nobody reads, and the kernels that store nothing then.
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
            && let Some(mut body) = Body::of(kernel)
            && !body.outputs.iter().all(|store| live.overlaps(&store.region))
        {
            body.retain_outputs(|store| live.overlaps(&store.region));
            let is_dead = body.outputs.is_empty();
            // Without the reduction that made it one of rows there may be no code for it.
            if (is_dead || can_generate(&body)) && fuel.burn() {
                if is_dead {
                    continue;
                }
                *kernel = body.into_kernel();
            }
        }
        kind.each_write().filter(|write| write.is_full).for_each(|write| live.remove(&write.region));
        kind.each_read().for_each(|region| live.insert(&region));
        kept.push(kind);
    }
    kept.reverse();
    kept
}
