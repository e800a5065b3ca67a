//! Allocations and releases taken out of a program, and put back around the uses.

use super::block::{Block, BlockId, Lifetime};
use super::node::{Node, NodeKind};
use super::program::Program;

/// The operations without allocations, releases and empty nodes, in the order listed.
pub(super) fn operations(nodes: Vec<Node>) -> Vec<NodeKind> {
    let kinds = nodes.into_iter().map(|node| node.kind);
    kinds.filter(is_operation).collect()
}

pub(super) fn is_operation(kind: &NodeKind) -> bool {
    !matches!(kind, NodeKind::Alloc(_) | NodeKind::Free(_) | NodeKind::Empty)
}

/// A chain of these operations, each graph-owned block allocated before its first use and released after its last.
pub(super) fn chain(blocks: Vec<Block>, kinds: Vec<NodeKind>) -> Program {
    let mut bounds: Vec<Option<(usize, usize)>> = vec![None; blocks.len()];
    for (index, kind) in kinds.iter().enumerate() {
        for block in kind.each_block() {
            if blocks[block.0].lifetime == Lifetime::Graph {
                bounds[block.0].get_or_insert((index, index)).1 = index;
            }
        }
    }
    let mut starts: Vec<Vec<BlockId>> = vec![Vec::new(); kinds.len()];
    let mut ends = starts.clone();
    for (block, bounds) in bounds.into_iter().enumerate() {
        if let Some((first, last)) = bounds {
            starts[first].push(BlockId(block));
            ends[last].push(BlockId(block));
        }
    }
    let mut nodes = Vec::with_capacity(3 * kinds.len());
    let mut push = |kind| {
        let before: Option<usize> = nodes.len().checked_sub(1);
        nodes.push(Node::new(kind, before));
    };
    for ((kind, starts), ends) in kinds.into_iter().zip(starts).zip(ends) {
        starts.into_iter().for_each(|block| push(NodeKind::Alloc(block)));
        push(kind);
        ends.into_iter().for_each(|block| push(NodeKind::Free(block)));
    }
    Program { blocks, nodes }
}
