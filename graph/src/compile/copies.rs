//! Pass: readers of a copy read what was copied.

use std::collections::BTreeMap;

use super::block::{BlockId, Lifetime, Region};
use super::dependencies::recovered;
use super::fuel::Fuel;
use super::lifetimes;
use super::memory::ARENA_ALIGNMENT;
use super::node::NodeKind;
use super::program::Program;
use super::work::did;

/// Most later nodes with an address in a block which are looked at for one copy: more keep it.
const MAX_USERS: usize = 1 << 12;
/// How often all copies are looked at.
const MAX_ROUNDS: usize = 64;

/// Lets the readers of a copy read its source, and drops the copy.
///
/// That is the same as long as nobody overwrites the source before the last of them, and nobody else writes the bytes
/// of the copy, which has to lie in a block that the graph owns. The addresses keep their alignment. Like
/// fusion, the result has the dependencies that the data ask for; without a copy that can go, the
/// program stays as it is.
pub(super) fn forward_copies(mut program: Program, fuel: &mut Fuel) -> Program {
    let mut users = users(&program);
    let num_before = fuel.burnt();
    for _ in 0..MAX_ROUNDS {
        let num_so_far = fuel.burnt();
        for index in 0..program.nodes.len() {
            if let NodeKind::Copy { source, destination } = program.nodes[index].kind
                && forward(&mut program, &mut users, index, [source, destination], fuel)
            {
                program.nodes[index].kind = NodeKind::Empty;
            }
        }
        // A copy that went may have been what kept another.
        if fuel.burnt() == num_so_far {
            break;
        }
    }
    if fuel.burnt() == num_before {
        return program;
    }
    let Program { blocks, nodes } = program;
    recovered(lifetimes::chain(blocks, lifetimes::operations(nodes)))
}

/// By block the nodes that hold an address in it, in ascending order.
pub(super) fn users(program: &Program) -> Vec<Vec<usize>> {
    let mut users: Vec<Vec<usize>> = vec![Vec::new(); program.blocks.len()];
    for (index, node) in program.nodes.iter().enumerate() {
        for block in node.kind.each_block() {
            let of = &mut users[block.0];
            if of.last() != Some(&index) {
                of.push(index);
            }
        }
    }
    users
}

/// Two ascending lists as one, from a position on.
fn merged_from(first: usize, one: &[usize], other: &[usize]) -> Vec<usize> {
    let from = |list: &[usize]| list.partition_point(|&index| index < first);
    let mut merged = [&one[from(one)..], &other[from(other)..]].concat();
    merged.sort_unstable();
    merged.dedup();
    merged
}

/// Lets the readers of a copy that a node makes read its source, if that is allowed; nobody reads the copy then.
pub(super) fn forward(
    program: &mut Program,
    users: &mut [Vec<usize>],
    copy: usize,
    [source, destination]: [Region; 2],
    fuel: &mut Fuel,
) -> bool {
    let is_owned = program.blocks[destination.block.0].lifetime == Lifetime::Graph;
    let is_aligned = source.start % ARENA_ALIGNMENT == destination.start % ARENA_ALIGNMENT;
    let num_later = |block: BlockId| {
        let of = &users[block.0];
        of.len() - of.partition_point(|&index| index <= copy)
    };
    if num_later(source.block).max(num_later(destination.block)) > MAX_USERS {
        return false;
    }
    if !is_owned || !is_aligned || source.block == destination.block {
        return false;
    }
    let is_inside = |region: &Region| destination.start <= region.start && region.end <= destination.end;
    let mut readers: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    let mut is_source_new = false;
    // Who held an address once may have lost it to a copy before this one: it then touches nothing.
    for index in merged_from(copy + 1, &users[destination.block.0], &users[source.block.0]) {
        did(1);
        let kind = &program.nodes[index].kind;
        let touches_copy = kind.each_read().any(|region| region.overlaps(&destination));
        if kind.each_write().any(|write| write.region.overlaps(&destination)) {
            return false;
        }
        if touches_copy {
            let reading = |region: &Region| region.overlaps(&destination);
            // An address that reaches beyond the copy, or is also written through, cannot move.
            let pointers: Vec<usize> = match kind {
                NodeKind::Kernel(kernel) => {
                    let here = kernel.pointers.iter().enumerate();
                    let here = here.filter(|(_, pointer)| pointer.read.as_ref().is_some_and(reading));
                    let can_move = |pointer: &super::kernel::Pointer| {
                        pointer.write.is_none()
                            && pointer.read.as_ref().is_some_and(is_inside)
                            && (destination.start..=destination.end).contains(&pointer.offset_bytes)
                    };
                    if !here.clone().all(|(_, pointer)| can_move(pointer)) {
                        return false;
                    }
                    here.map(|(index, _)| index).collect()
                }
                NodeKind::Copy { source: read, destination: written } => {
                    if !is_inside(read) || moved(read, &source, &destination).overlaps(written) {
                        return false;
                    }
                    Vec::new()
                }
                NodeKind::Memset { .. } | NodeKind::Alloc(_) | NodeKind::Free(_) | NodeKind::Empty => continue,
            };
            if is_source_new || writes_badly(kind, &pointers, &source, &destination) {
                return false;
            }
            readers.insert(index, pointers);
        }
        is_source_new |= kind.each_write().any(|write| write.region.overlaps(&source));
    }
    if !fuel.burn() {
        return false;
    }
    let later = merged_from(copy + 1, &users[source.block.0], &readers.keys().copied().collect::<Vec<_>>());
    let of_source = &mut users[source.block.0];
    of_source.truncate(of_source.partition_point(|&index| index <= copy));
    of_source.extend(later);
    for (index, pointers) in readers {
        match &mut program.nodes[index].kind {
            NodeKind::Kernel(kernel) => {
                for pointer in pointers {
                    let pointer = &mut kernel.pointers[pointer];
                    pointer.block = source.block;
                    pointer.offset_bytes = pointer.offset_bytes - destination.start + source.start;
                    pointer.read = pointer.read.map(|region| moved(&region, &source, &destination));
                }
            }
            NodeKind::Copy { source: read, .. } => *read = moved(read, &source, &destination),
            NodeKind::Memset { .. } | NodeKind::Alloc(_) | NodeKind::Free(_) | NodeKind::Empty => {}
        }
    }
    true
}

/// Whether a kernel would write bytes that it reads through one of the pointers once that has moved. Such a kernel
/// would be one in place, which it was not made to be.
fn writes_badly(kind: &NodeKind, pointers: &[usize], source: &Region, destination: &Region) -> bool {
    let NodeKind::Kernel(kernel) = kind else { return false };
    let reads = pointers.iter().filter_map(|&pointer| kernel.pointers[pointer].read);
    let mut reads = reads.map(|region| moved(&region, source, destination));
    reads.any(|region| kind.each_write().any(|write| write.region.overlaps(&region)))
}

fn moved(region: &Region, source: &Region, destination: &Region) -> Region {
    let to = |position: usize| position - destination.start + source.start;
    Region { block: BlockId(source.block.0), start: to(region.start), end: to(region.end) }
}
