//! Pass: what is the same in every replay runs once.

use super::block::{BlockId, Lifetime, Region};
use super::dependencies::recovered;
use super::fuel::Fuel;
use super::kernel::Effect;
use super::lifetimes::is_operation;
use super::node::{Node, NodeKind};
use super::program::Program;
use super::ranges::ByteSet;

/// Moves memsets, copies and element-wise kernels whose results are the same in every replay to a program that runs
/// once, the second.
///
/// A graph-owned block moves if each of its bytes is written at most once in a replay, by nodes that read nothing but
/// blocks that move. Other kernels never do, and external blocks stay what they are. The blocks become arenas, so that
/// [`Pass::Memory`](super::Pass::Memory) gives their bytes to nobody else: each has memory of its own, which nothing but
/// the second program writes, and its bytes stay from one replay to the next.
pub(super) fn hoist_constants(program: Program, fuel: &mut Fuel) -> (Program, Program) {
    let moves = constant_blocks(&program, fuel);
    let is_constant = |kind: &NodeKind| kind.each_write().next().is_some_and(|write| moves[write.region.block.0]);
    let kinds = program.nodes.iter().map(|node| &node.kind);
    let once: Vec<NodeKind> = kinds.filter(|kind| is_operation(kind) && is_constant(kind)).cloned().collect();
    if once.is_empty() {
        return (program, Program::default());
    }
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
    (rest, recovered(Program { blocks, nodes: nodes.collect() }))
}

/// Blocks whose bytes are the same in every replay.
fn constant_blocks(program: &Program, fuel: &mut Fuel) -> Vec<bool> {
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
    settle(program, &mut moves);
    for moves in &mut moves {
        *moves = *moves && fuel.burn();
    }
    if fuel.is_out() {
        settle(program, &mut moves);
    }
    moves
}

/// A block that stays keeps those that are computed from it, and those that one kernel writes together with it.
fn settle(program: &Program, moves: &mut [bool]) {
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
            return;
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
