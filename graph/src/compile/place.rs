//! Pass: what is computed to be copied is computed where it is copied to.

use super::block::{BlockId, Lifetime, Region};
use super::fuel::Fuel;
use super::kernel::Effect;
use super::node::{NodeIndex, NodeKind};
use super::order::Order;
use super::program::Program;
use super::work::did;

/// How often all copies are looked at.
const MAX_ROUNDS: usize = 64;
/// Most nodes that use a block, or what it is copied to, which are looked at for one copy: more keep it.
const MAX_USERS: usize = 1 << 12;

/// Drops copies of a graph-owned block to an external one by giving all its users the bytes that it is copied to.
///
/// Done where nobody else can tell: every other node that touches those bytes comes before all users of the block, or
/// after the copy and all users that matter to it; no user writes after the copy; no user is an unknown kernel; and
/// no address moves by another distance than a multiple of its [`alignment`](super::Pointer::alignment).
pub(super) fn place_at_destinations(mut program: Program, fuel: &mut Fuel) -> Program {
    for _ in 0..MAX_ROUNDS {
        let num_so_far = fuel.burnt();
        program = place_once(program, fuel);
        // A copy that went may have been what kept another.
        if fuel.burnt() == num_so_far {
            break;
        }
    }
    program
}

fn place_once(mut placed: Program, fuel: &mut Fuel) -> Program {
    let program = &placed;
    let order = Order::of(program);
    let mut users = Users::new(program);
    let mut keep = vec![true; program.nodes.len()];
    for (index, is_kept) in keep.iter_mut().enumerate() {
        let NodeKind::Copy { source, destination } = placed.nodes[index].kind else { continue };
        let copy = NodeIndex(index);
        if !can_move(&placed, &users, &order, copy, &source, &destination) || !fuel.burn() {
            continue;
        }
        let shift = destination.start - source.start;
        for user in users.take(source.block).into_iter().filter(|user| *user != copy) {
            placed.nodes[user.0].kind.relocate(|block| (block == source.block).then_some((destination.block, shift)));
            users.add(destination.block, user);
        }
        users.remove(destination.block, copy);
        *is_kept = false;
    }
    if keep.iter().all(|is_kept| *is_kept) {
        return placed;
    }
    placed.retain(&keep).without_unused_blocks(&mut Fuel::new(None))
}

/// Whether all users of the source may work at the destination instead.
fn can_move(
    program: &Program,
    users: &Users,
    order: &Order,
    copy: NodeIndex,
    source: &Region,
    destination: &Region,
) -> bool {
    let lifetime = |region: &Region| program.blocks[region.block.0].lifetime;
    // At an external destination memory is there for as long as anybody works.
    let fits = lifetime(source) == Lifetime::Graph && lifetime(destination) == Lifetime::External;
    let num_users = users.0[source.block.0].len().max(users.0[destination.block.0].len());
    if !fits || destination.start < source.start || num_users > MAX_USERS {
        return false;
    }
    let shift = destination.start - source.start;
    let keeps_alignment = |user: NodeIndex| match &program.nodes[user.0].kind {
        NodeKind::Kernel(kernel) => {
            let mut here = kernel.pointers.iter().filter(|pointer| pointer.block == source.block);
            here.all(|pointer| shift.is_multiple_of(pointer.alignment))
        }
        _ => true,
    };
    if !users.of(source.block).all(keeps_alignment) {
        return false;
    }
    let moved: Vec<Touch> =
        users.of(source.block).filter(|user| *user != copy).map(|user| touch(program, user, source)).collect();
    let is_sound = |touch: &Touch| touch.stays_inside && (!touch.writes || order.is_before(touch.node, copy));
    if !moved.iter().all(is_sound) {
        return false;
    }
    let others = users.of(destination.block).filter(|other| *other != copy);
    others.filter(|other| !moved.iter().any(|user| user.node == *other)).all(|other| {
        let other = touch(program, other, destination);
        !other.meets || {
            let mut conflicts = moved.iter().filter(|user| user.writes || other.writes);
            if order.is_before(other.node, copy) {
                conflicts.all(|user| order.is_before(other.node, user.node))
            } else {
                conflicts.all(|user| order.is_before(user.node, other.node))
            }
        }
    }) && moved.iter().all(|user| !touches(program, user.node, destination))
}

/// Whether a user of the source also has to do with the destination.
fn touches(program: &Program, node: NodeIndex, region: &Region) -> bool {
    touch(program, node, region).meets
}

/// How a node uses the bytes of a region.
struct Touch {
    node: NodeIndex,
    /// It reads or writes some of them.
    meets: bool,
    writes: bool,
    /// It is known to do nothing to other bytes of the block.
    stays_inside: bool,
}

fn touch(program: &Program, node: NodeIndex, region: &Region) -> Touch {
    did(1);
    let kind = &program.nodes[node.0].kind;
    let is_known = !matches!(kind, NodeKind::Kernel(kernel) if kernel.effect == Effect::Unknown);
    let inside =
        |other: &Region| other.block != region.block || (region.start <= other.start && other.end <= region.end);
    let (mut reads, mut writes) = (kind.each_read(), kind.each_write());
    let pointers_inside = match kind {
        NodeKind::Kernel(kernel) => kernel
            .pointers
            .iter()
            .all(|pointer| pointer.block != region.block || (region.start..region.end).contains(&pointer.offset_bytes)),
        _ => true,
    };
    let is_written = writes.clone().any(|write| write.region.overlaps(region));
    Touch {
        node,
        meets: is_written || reads.clone().any(|read| read.overlaps(region)),
        writes: is_written,
        stays_inside: is_known
            && pointers_inside
            && reads.all(|read| inside(&read))
            && writes.all(|write| inside(&write.region)),
    }
}

/// Nodes by the blocks that they hold an address in, allocations and releases aside.
struct Users(Vec<Vec<NodeIndex>>);

impl Users {
    fn new(program: &Program) -> Self {
        let mut users = Self(vec![Vec::new(); program.blocks.len()]);
        for (index, node) in program.nodes.iter().enumerate() {
            for block in node.kind.each_block() {
                let nodes = &mut users.0[block.0];
                if nodes.last() != Some(&NodeIndex(index)) {
                    nodes.push(NodeIndex(index));
                }
            }
        }
        users
    }

    fn of(&self, block: BlockId) -> impl Iterator<Item = NodeIndex> {
        self.0[block.0].iter().copied()
    }

    fn add(&mut self, block: BlockId, node: NodeIndex) {
        let nodes = &mut self.0[block.0];
        if !nodes.contains(&node) {
            nodes.push(node);
        }
    }

    fn remove(&mut self, block: BlockId, node: NodeIndex) {
        self.0[block.0].retain(|other| *other != node);
    }

    /// All users of a block, which has none then.
    fn take(&mut self, block: BlockId) -> Vec<NodeIndex> {
        std::mem::take(&mut self.0[block.0])
    }
}
