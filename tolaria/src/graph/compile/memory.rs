//! Pass: one arena instead of allocations.

use std::collections::BTreeMap;

use super::block::{Block, BlockId, Lifetime};
use super::node::{Node, NodeIndex, NodeKind};
use super::order::{NodeSet, Order};
use super::pass::{Pass, PassReport};
use super::program::Program;

/// Alignment of a block in the arena: that of the driver's own allocations.
pub const ARENA_ALIGNMENT: usize = 256;
/// An arena that is never too large.
const SMALL_ARENA_BYTES: usize = 64 << 20;
/// How many times the memory of the order listed an arena may take.
const MAX_GROWTH: usize = 4;

/// Places all graph-owned blocks in one arena, and drops allocations and releases.
///
/// Two blocks share bytes only if every use of one is over before any use of the other starts, by the dependencies of
/// `program`: none is added. So a program in the recorded order shares the most, and one whose dependencies were
/// recovered keeps its parallelism. Large blocks are placed first, each at the lowest offset that is free.
///
/// Where that takes more than 64 MiB and more than four times what the order listed needs, memory goes before
/// parallelism: the nodes become a chain in the order listed, and blocks share what this order allows.
#[must_use]
pub fn plan_memory(program: &Program) -> (Program, PassReport) {
    let parallel = plan(program);
    let arena_bytes = parallel.0.peak_bytes();
    if arena_bytes <= SMALL_ARENA_BYTES || arena_bytes / MAX_GROWTH <= program.peak_bytes() {
        return parallel;
    }
    let (planned, report) = plan(&chain(program));
    let report = PassReport::new(Pass::Memory, program, &planned, report.num_rewrites);
    (planned, report)
}

/// The nodes one after the other, as listed.
fn chain(program: &Program) -> Program {
    let nodes = program.nodes.iter().enumerate();
    let nodes = nodes.map(|(index, node)| Node::new(node.kind.clone(), index.checked_sub(1))).collect();
    Program { blocks: program.blocks.clone(), nodes }
}

fn plan(program: &Program) -> (Program, PassReport) {
    let usages = usages(program);
    let places = place(&usages);
    let arena = BlockId(program.blocks.len());
    let is_kept: Vec<bool> = program.nodes.iter().map(|node| node.kind.lifetime_of().is_none()).collect();
    let mut planned = program.retain(&is_kept);
    for node in &mut planned.nodes {
        node.kind.relocate(|block| places.get(&block).map(|&offset| (arena, offset)));
    }
    let end = |usage: &Usage| places[&usage.block] + usage.size_bytes;
    if let Some(size_bytes) = usages.iter().map(end).max() {
        planned.blocks.push(Block { size_bytes, lifetime: Lifetime::Arena });
    }
    let report = PassReport::new(Pass::Memory, program, &planned, usages.len());
    (planned, report)
}

/// What is to be placed.
struct Usage {
    block: BlockId,
    size_bytes: usize,
    users: Vec<NodeIndex>,
    /// Nodes that are over before any user starts.
    before: NodeSet,
}

impl Usage {
    fn is_after(&self, other: &Self) -> bool {
        other.users.iter().all(|&user| self.before.contains(user))
    }

    fn is_never_with(&self, other: &Self) -> bool {
        self.is_after(other) || other.is_after(self)
    }
}

/// The graph-owned blocks in use.
fn usages(program: &Program) -> Vec<Usage> {
    let order = Order::of(program);
    let mut usages: BTreeMap<BlockId, Usage> = BTreeMap::new();
    for (index, node) in program.nodes.iter().enumerate() {
        let user = NodeIndex(index);
        if matches!(node.kind, NodeKind::Alloc(_) | NodeKind::Free(_)) {
            continue;
        }
        for block in node.kind.blocks() {
            let Block { size_bytes, lifetime } = program.blocks[block.0];
            if lifetime != Lifetime::Graph {
                continue;
            }
            let before = order.ancestors(user);
            let usage = usages.entry(block).or_insert_with(|| Usage {
                block,
                size_bytes,
                users: Vec::new(),
                before: before.clone(),
            });
            usage.users.push(user);
            usage.before.intersect(before);
        }
    }
    usages.into_values().collect()
}

/// The offset of each block: first fit, large ones first, of equal ones the one with the lower number.
fn place(usages: &[Usage]) -> BTreeMap<BlockId, usize> {
    let mut by_size: Vec<&Usage> = usages.iter().collect();
    by_size.sort_by_key(|usage| (std::cmp::Reverse(usage.size_bytes), usage.block));
    let mut placed: Vec<(usize, &Usage)> = Vec::new();
    for usage in by_size {
        let others = placed.iter().filter(|(_, other)| !usage.is_never_with(other));
        let mut taken: Vec<(usize, usize)> = others.map(|&(start, other)| (start, start + other.size_bytes)).collect();
        taken.sort_unstable();
        let mut offset: usize = 0;
        for (start, end) in taken {
            if offset + usage.size_bytes <= start {
                break;
            }
            offset = offset.max(end.next_multiple_of(ARENA_ALIGNMENT));
        }
        placed.push((offset, usage));
    }
    placed.into_iter().map(|(offset, usage)| (usage.block, offset)).collect()
}
