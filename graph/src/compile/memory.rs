//! Pass: one arena instead of allocations.

use super::block::{Block, BlockId, Lifetime};
use super::fuel::Fuel;
use super::node::{Node, NodeIndex};
use super::order::Order;
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
pub(super) fn plan_memory(program: Program, fuel: &mut Fuel) -> Program {
    let is_owned = program.blocks.iter().map(|block| block.lifetime == Lifetime::Graph);
    let mut placed: Vec<bool> = is_owned.collect();
    let mut is_used = vec![false; program.blocks.len()];
    program.nodes.iter().flat_map(|node| node.kind.each_block()).for_each(|block| is_used[block.0] = true);
    for (placed, is_used) in placed.iter_mut().zip(is_used) {
        *placed = *placed && is_used && fuel.burn();
    }
    let parallel = Plan::of(&program, &placed);
    let arenas = program.blocks.iter().filter(|block| block.lifetime == Lifetime::Arena);
    let arena_bytes = arenas.map(|block| block.size_bytes).sum::<usize>() + parallel.size_bytes;
    if arena_bytes <= SMALL_ARENA_BYTES || arena_bytes / MAX_GROWTH <= program.peak_bytes() {
        return parallel.applied(program, fuel);
    }
    let listed = chain(program);
    Plan::of(&listed, &placed).applied(listed, fuel)
}

/// The nodes one after the other, as listed.
fn chain(mut program: Program) -> Program {
    for (index, node) in program.nodes.iter_mut().enumerate() {
        node.dependencies.clear();
        node.dependencies.extend(index.checked_sub(1).map(NodeIndex));
    }
    program
}

/// Where the blocks go.
struct Plan {
    /// The offset of each block, by its number.
    places: Vec<Option<usize>>,
    /// Bytes of the new arena; none where there is nothing to place.
    size_bytes: usize,
}

impl Plan {
    fn of(program: &Program, placed: &[bool]) -> Self {
        let (usages, order) = usages(program, placed);
        let mut places = vec![None; program.blocks.len()];
        let mut size_bytes = 0;
        for (usage, offset) in place(&usages, &order) {
            places[usage.block.0] = Some(offset);
            size_bytes = size_bytes.max(offset + usage.size_bytes);
        }
        Self { places, size_bytes }
    }

    /// Blocks that the fuel did not reach keep their allocation and their release.
    fn applied(self, program: Program, fuel: &mut Fuel) -> Program {
        let arena = BlockId(program.blocks.len());
        let is_placed = |block: BlockId| self.places[block.0].is_some();
        let is_kept = |node: &Node| node.kind.lifetime_of().is_none_or(|block| !is_placed(block));
        let is_kept: Vec<bool> = program.nodes.iter().map(is_kept).collect();
        let mut planned = program.retain(&is_kept);
        for node in &mut planned.nodes {
            node.kind.relocate(|block| self.places[block.0].map(|offset| (arena, offset)));
        }
        if self.size_bytes > 0 {
            planned.blocks.push(Block { size_bytes: self.size_bytes, lifetime: Lifetime::Arena });
        }
        planned.without_unused_blocks(fuel)
    }
}

/// What is to be placed.
struct Usage {
    block: BlockId,
    size_bytes: usize,
    /// In ascending order.
    users: Vec<NodeIndex>,
    /// The users that come before no other user: when they are over, all are.
    last: Vec<NodeIndex>,
    /// The users that come after no other user.
    first: Vec<NodeIndex>,
}

impl Usage {
    fn new(block: BlockId, size_bytes: usize, users: Vec<NodeIndex>, order: &Order) -> Self {
        let (mut first, mut last): (Vec<NodeIndex>, Vec<NodeIndex>) = (Vec::new(), Vec::new());
        for &user in &users {
            if !first.iter().any(|&other| order.is_before(other, user)) {
                first.push(user);
            }
        }
        for &user in users.iter().rev() {
            if !last.iter().any(|&other| order.is_before(user, other)) {
                last.push(user);
            }
        }
        Self { block, size_bytes, users, last, first }
    }

    fn is_after(&self, other: &Self, order: &Order) -> bool {
        // Dependencies point to earlier nodes: the two numbers decide most cases.
        other.users.last() < self.users.first()
            && self.first.iter().all(|&user| other.last.iter().all(|&before| order.is_before(before, user)))
    }

    fn is_never_with(&self, other: &Self, order: &Order) -> bool {
        self.is_after(other, order) || other.is_after(self, order)
    }
}

/// The blocks that are to be placed, and the order of the nodes.
fn usages(program: &Program, placed: &[bool]) -> (Vec<Usage>, Order) {
    let order = Order::of(program);
    let mut users: Vec<Vec<NodeIndex>> = vec![Vec::new(); program.blocks.len()];
    for (index, node) in program.nodes.iter().enumerate() {
        for block in node.kind.each_block() {
            let of = &mut users[block.0];
            if placed[block.0] && of.last() != Some(&NodeIndex(index)) {
                of.push(NodeIndex(index));
            }
        }
    }
    let used = users.into_iter().enumerate().filter(|(_, users)| !users.is_empty());
    let usage =
        |(block, users): (usize, _)| Usage::new(BlockId(block), program.blocks[block].size_bytes, users, &order);
    (used.map(usage).collect(), order)
}

/// The offset of each block: first fit, large ones first, of equal ones the one with the lower number.
fn place<'a>(usages: &'a [Usage], order: &Order) -> Vec<(&'a Usage, usize)> {
    let mut by_size: Vec<&Usage> = usages.iter().collect();
    by_size.sort_by_key(|usage| (std::cmp::Reverse(usage.size_bytes), usage.block));
    // In ascending order of the offset.
    let mut placed: Vec<(&Usage, usize)> = Vec::with_capacity(by_size.len());
    for usage in by_size {
        let mut offset: usize = 0;
        for &(other, start) in &placed {
            if offset + usage.size_bytes <= start {
                break;
            }
            let free_from = (start + other.size_bytes).next_multiple_of(ARENA_ALIGNMENT);
            // Whether they are ever there together takes longer to say than whether it matters.
            if free_from > offset && !usage.is_never_with(other, order) {
                offset = free_from;
            }
        }
        let position = placed.partition_point(|&(_, start)| start <= offset);
        placed.insert(position, (usage, offset));
    }
    placed
}
