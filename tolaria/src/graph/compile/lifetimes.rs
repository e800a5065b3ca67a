//! Allocations and releases taken out of a program, and put back around the uses.

use std::collections::BTreeMap;

use super::block::{BlockId, Lifetime};
use super::node::{Node, NodeKind};
use super::program::Program;

/// The operations without allocations, releases and empty nodes, in the order listed.
pub(super) fn operations(program: &Program) -> Vec<NodeKind> {
    let kinds = program.nodes.iter().map(|node| &node.kind);
    kinds.filter(|kind| !matches!(kind, NodeKind::Alloc(_) | NodeKind::Free(_) | NodeKind::Empty)).cloned().collect()
}

/// A chain of these operations, each graph-owned block allocated before its first use and released after its last.
pub(super) fn chain(program: &Program, kinds: Vec<NodeKind>) -> Program {
    let mut bounds: BTreeMap<BlockId, (usize, usize)> = BTreeMap::new();
    for (index, kind) in kinds.iter().enumerate() {
        for block in kind.blocks() {
            if program.blocks[block.0].lifetime == Lifetime::Graph {
                bounds.entry(block).or_insert((index, index)).1 = index;
            }
        }
    }
    let mut starts: Vec<Vec<BlockId>> = vec![Vec::new(); kinds.len()];
    let mut ends = starts.clone();
    for (block, (first, last)) in bounds {
        starts[first].push(block);
        ends[last].push(block);
    }
    let mut nodes = Vec::new();
    let mut push = |kind| {
        let before: Option<usize> = nodes.len().checked_sub(1);
        nodes.push(Node::new(kind, before));
    };
    for ((kind, starts), ends) in kinds.into_iter().zip(starts).zip(ends) {
        starts.into_iter().for_each(|block| push(NodeKind::Alloc(block)));
        push(kind);
        ends.into_iter().for_each(|block| push(NodeKind::Free(block)));
    }
    Program { blocks: program.blocks.clone(), nodes }
}
