//! Pass: one arena instead of allocations.

use std::collections::{BTreeMap, BTreeSet};

use super::block::{Block, BlockId, Lifetime};
use super::fuel::Fuel;
use super::node::{Node, NodeIndex};
use super::order::Order;
use super::program::Program;
use super::work::did;

/// Alignment of a block in the arena: that of the driver's own allocations.
pub const ARENA_ALIGNMENT: usize = 256;
/// An arena that is never too large.
const SMALL_ARENA_BYTES: usize = 1 << 30;
/// How many times the memory of the order listed an arena may take.
const MAX_GROWTH: usize = 4;
/// Most blocks of which each is compared with all others.
const MAX_COMPARED: usize = 1 << 10;
/// Most users of a block that are compared with one another to find out which of them come last, or first.
const MAX_USERS: usize = 1 << 6;
/// Most free ranges that are looked at for one block.
const MAX_TRIED: usize = 1 << 5;

/// Places all graph-owned blocks in one arena, and drops allocations and releases.
///
/// Two blocks share bytes only if every use of one is over before any use of the other starts, by the dependencies of
/// `program`: none is added. So a program in the recorded order shares the most, and one whose dependencies were
/// recovered keeps its parallelism. Large blocks are placed first, each at the lowest offset that is free.
///
/// Where that takes more than 1 GiB and more than four times what the order listed needs, memory goes before
/// parallelism: the nodes become a chain in the order listed, and blocks share what this order allows.
///
/// Of more than 1 024 blocks the large ones no longer come first: each is placed in its turn, in what is
/// free then, so that time grows with their number and not with its square.
pub(super) fn plan_memory(program: Program, fuel: &mut Fuel) -> Program {
    plan_memory_of(program, fuel, MAX_COMPARED)
}

/// As [`plan_memory`], with another number of blocks.
pub(super) fn plan_memory_of(program: Program, fuel: &mut Fuel, max_compared: usize) -> Program {
    let is_owned = program.blocks.iter().map(|block| block.lifetime == Lifetime::Graph);
    let mut placed: Vec<bool> = is_owned.collect();
    let mut is_used = vec![false; program.blocks.len()];
    program.nodes.iter().flat_map(|node| node.kind.each_block()).for_each(|block| is_used[block.0] = true);
    for (placed, is_used) in placed.iter_mut().zip(is_used) {
        *placed = *placed && is_used && fuel.burn();
    }
    let parallel = Plan::of(&program, &placed, max_compared);
    let arenas = program.blocks.iter().filter(|block| block.lifetime == Lifetime::Arena);
    let arena_bytes = arenas.map(|block| block.size_bytes).sum::<usize>() + parallel.size_bytes;
    if arena_bytes <= SMALL_ARENA_BYTES || arena_bytes / MAX_GROWTH <= program.peak_bytes() {
        return parallel.applied(program, fuel);
    }
    let listed = chain(program);
    Plan::of(&listed, &placed, max_compared).applied(listed, fuel)
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
    fn of(program: &Program, placed: &[bool], max_compared: usize) -> Self {
        let (usages, order) = usages(program, placed);
        let mut places = vec![None; program.blocks.len()];
        let mut size_bytes = 0;
        let in_turn = usages.len() > max_compared;
        for (usage, offset) in if in_turn { place_in_turn(&usages, &order) } else { place(&usages, &order) } {
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
    /// The users that come before no other user: when they are over, all are. Of many, some that do are among them.
    last: Vec<NodeIndex>,
    /// The users that come after no other user.
    first: Vec<NodeIndex>,
}

impl Usage {
    fn new(block: BlockId, size_bytes: usize, users: Vec<NodeIndex>, order: &Order) -> Self {
        let (mut first, mut last): (Vec<NodeIndex>, Vec<NodeIndex>) = (Vec::new(), Vec::new());
        for &user in &users {
            if !first.iter().rev().take(MAX_USERS).any(|&other| order.is_before(other, user)) {
                first.push(user);
            }
        }
        for &user in users.iter().rev() {
            if !last.iter().rev().take(MAX_USERS).any(|&other| order.is_before(user, other)) {
                last.push(user);
            }
        }
        Self { block, size_bytes, users, last, first }
    }

    fn is_after(&self, other: &Self, order: &Order) -> bool {
        // Dependencies point to earlier nodes: the two numbers decide most cases.
        did(1);
        other.users.last() < self.users.first() && self.is_after_all(&other.last, order)
    }

    /// Whether these nodes are over before any of its users starts. Of very many nobody asks.
    fn is_after_all(&self, nodes: &[NodeIndex], order: &Order) -> bool {
        self.first.len() * nodes.len() <= MAX_USERS * MAX_USERS
            && self.first.iter().all(|&user| nodes.iter().all(|&before| order.is_before(before, user)))
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

/// The offset of each block, as an allocator gives it: in the order of their first users, each in the smallest free range of
/// those that all former owners are done with, else at the end.
fn place_in_turn<'a>(usages: &'a [Usage], order: &Order) -> Vec<(&'a Usage, usize)> {
    let mut by_start: Vec<&Usage> = usages.iter().collect();
    by_start.sort_by_key(|usage| (usage.users.first(), usage.block));
    let mut by_end: Vec<(NodeIndex, usize)> =
        by_start.iter().enumerate().filter_map(|(index, usage)| Some((*usage.users.last()?, index))).collect();
    by_end.sort_unstable();
    let mut ended = by_end.into_iter().peekable();
    let mut placed: Vec<(&Usage, usize)> = Vec::with_capacity(by_start.len());
    let mut free = Free::default();
    let mut end = 0;
    for usage in by_start {
        while let Some((_, index)) = ended.next_if(|(last, _)| Some(last) < usage.users.first()) {
            let (over, offset) = placed[index];
            free.insert(offset, over.size_bytes.next_multiple_of(ARENA_ALIGNMENT), over.last.clone());
        }
        let bytes = usage.size_bytes.next_multiple_of(ARENA_ALIGNMENT);
        let offset = free.take(bytes, |last| usage.is_after_all(last, order)).unwrap_or_else(|| {
            end += bytes;
            end - bytes
        });
        placed.push((usage, offset));
    }
    placed
}

/// Ranges that nobody uses any more, and the nodes that have to be over before somebody may.
#[derive(Default)]
struct Free {
    /// By their first byte.
    ranges: BTreeMap<usize, (usize, Vec<NodeIndex>)>,
    /// Length and first byte.
    by_size: BTreeSet<(usize, usize)>,
}

impl Free {
    /// Adds a range, as one with its neighbors where that leaves few nodes to wait for.
    fn insert(&mut self, mut start: usize, mut bytes: usize, mut last: Vec<NodeIndex>) {
        let before = self.ranges.range(..start).next_back().map(|(&start, &(bytes, _))| (start, start + bytes));
        let joined = [before.filter(|&(_, end)| end == start).map(|(start, _)| start), Some(start + bytes)];
        for neighbor in joined.into_iter().flatten() {
            did(1);
            let Some((_, of)) = self.ranges.get(&neighbor) else { continue };
            if of.len() + last.len() > MAX_USERS {
                continue;
            }
            if let Some((size, of)) = self.remove(neighbor) {
                (start, bytes) = (start.min(neighbor), bytes + size);
                last.extend(of);
                last.sort_unstable();
                last.dedup();
            }
        }
        self.by_size.insert((bytes, start));
        self.ranges.insert(start, (bytes, last));
    }

    fn remove(&mut self, start: usize) -> Option<(usize, Vec<NodeIndex>)> {
        let (bytes, last) = self.ranges.remove(&start)?;
        self.by_size.remove(&(bytes, start));
        Some((bytes, last))
    }

    /// Takes so many bytes of the smallest range whose nodes may be waited for.
    fn take(&mut self, bytes: usize, may_follow: impl Fn(&[NodeIndex]) -> bool) -> Option<usize> {
        let mut fitting = self.by_size.range((bytes, 0)..).take(MAX_TRIED).map(|&(_, start)| start);
        let start = fitting.find(|start| {
            did(1);
            self.ranges.get(start).is_some_and(|(_, last)| may_follow(last))
        })?;
        let (size, last) = self.remove(start)?;
        if size > bytes {
            self.by_size.insert((size - bytes, start + bytes));
            self.ranges.insert(start + bytes, (size - bytes, last));
        }
        Some(start)
    }
}
