//! Pass: what is the same in every replay runs once.

use super::block::{BlockId, Lifetime, Region};
use super::dependencies::with_recovered_dependencies;
use super::kernel::Effect;
use super::lifetimes::is_operation;
use super::node::{Node, NodeKind};
use super::pass::{Measures, Pass, PassReport};
use super::program::Program;
use super::ranges::ByteSet;

/// A program in two parts over the same blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hoisted {
    /// What runs in every replay.
    pub program: Program,
    /// What runs once before the first replay. It writes arenas that nothing else writes: each of these blocks has
    /// memory of its own, and its bytes stay from one replay to the next.
    pub once: Program,
}

/// Moves memsets, copies and element-wise kernels whose results are the same in every replay to a program that runs
/// once.
///
/// A graph-owned block moves if each of its bytes is written at most once in a replay, by nodes that read nothing but
/// blocks that move. Other kernels never do, and external blocks stay what they are. The blocks become arenas, so that
/// [`plan_memory`](super::plan_memory) gives their bytes to nobody else.
#[must_use]
pub fn hoist_constants(program: &Program) -> (Hoisted, PassReport) {
    let before = Measures::of(program);
    let (hoisted, num_moved) = with_hoisted_constants(program.clone());
    let report = PassReport::new(Pass::Hoist, &before, &Measures::of(&hoisted.program), num_moved);
    (hoisted, report)
}

pub(super) fn with_hoisted_constants(program: Program) -> (Hoisted, usize) {
    let moves = constant_blocks(&program);
    let is_constant = |kind: &NodeKind| kind.each_write().next().is_some_and(|write| moves[write.region.block.0]);
    let kinds = program.nodes.iter().map(|node| &node.kind);
    let once: Vec<NodeKind> = kinds.filter(|kind| is_operation(kind) && is_constant(kind)).cloned().collect();
    let num_moved = once.len();
    let hoisted = if num_moved == 0 {
        let once = Program { blocks: program.blocks.clone(), nodes: Vec::new() };
        Hoisted { program, once }
    } else {
        let mut blocks = program.blocks.clone();
        for (block, _) in blocks.iter_mut().zip(&moves).filter(|(_, moves)| **moves) {
            block.lifetime = Lifetime::Arena;
        }
        let keep: Vec<bool> = program
            .nodes
            .iter()
            .map(|node| !is_constant(&node.kind) && node.kind.lifetime_of().is_none_or(|block| !moves[block.0]))
            .collect();
        let mut rest = program.retain(&keep);
        rest.blocks.clone_from(&blocks);
        let nodes = once.into_iter().enumerate().map(|(index, kind)| Node::new(kind, index.checked_sub(1)));
        let once = with_recovered_dependencies(Program { blocks, nodes: nodes.collect() }).0;
        Hoisted { program: rest, once }
    };
    (hoisted, num_moved)
}

/// Blocks whose bytes are the same in every replay.
fn constant_blocks(program: &Program) -> Vec<bool> {
    let mut moves: Vec<bool> = program.blocks.iter().map(|block| block.lifetime == Lifetime::Graph).collect();
    let mut written = ByteSet::default();
    let mut is_written = vec![false; program.blocks.len()];
    for node in &program.nodes {
        for write in node.kind.each_write() {
            let Region { block, .. } = write.region;
            moves[block.0] &= write.is_full && !written.overlaps(&write.region) && can_move(&node.kind);
            written.insert(&write.region);
            is_written[block.0] = true;
        }
    }
    for (moves, is_written) in moves.iter_mut().zip(is_written) {
        *moves &= is_written;
    }
    // A block that stays keeps those that are computed from it, and those that one kernel writes together with it.
    loop {
        let mut has_changed = false;
        for node in &program.nodes {
            let targets = || node.kind.each_write().map(|write| write.region.block);
            let stays = |block: BlockId| !moves[block.0];
            let keeps = node.kind.each_read().any(|region| stays(region.block)) || targets().any(stays);
            if keeps {
                for block in targets() {
                    has_changed |= moves[block.0];
                    moves[block.0] = false;
                }
            }
        }
        if !has_changed {
            return moves;
        }
    }
}

fn can_move(kind: &NodeKind) -> bool {
    match kind {
        NodeKind::Kernel(kernel) => matches!(kernel.effect, Effect::Pointwise(_) | Effect::Fused(_)),
        NodeKind::Memset { .. } | NodeKind::Copy { .. } => true,
        NodeKind::Alloc(_) | NodeKind::Free(_) | NodeKind::Empty => false,
    }
}
