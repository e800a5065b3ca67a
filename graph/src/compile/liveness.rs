//! Which writes somebody reads.

use super::block::{BlockId, Lifetime, Region};
use super::fuel::Fuel;
use super::node::{NodeIndex, NodeKind};
use super::program::Program;
use super::ranges::ByteSet;

/// Says of each node whether it stays, from the last to the first.
///
/// `may_go` names the nodes that can be spared when no byte that they write is read before it is overwritten: by a
/// node that stays, or after the last node where the block is external. All other nodes stay, and those that the fuel does
/// not reach. Any valid order of the
/// nodes gives the same answer, because of two nodes that touch a byte with a write one comes first in all of them.
pub(super) fn stays(program: &Program, may_go: impl Fn(&NodeKind) -> bool, fuel: &mut Fuel) -> Vec<bool> {
    let mut live = ByteSet::default();
    for (index, block) in program.blocks.iter().enumerate() {
        if block.lifetime == Lifetime::External {
            live.insert(&Region::new(BlockId(index), 0, block.size_bytes));
        }
    }
    let mut stays = vec![true; program.nodes.len()];
    for index in (0..program.nodes.len()).rev().map(NodeIndex) {
        let kind = &program.nodes[index.0].kind;
        if may_go(kind) && !kind.each_write().any(|write| live.overlaps(&write.region)) && fuel.burn() {
            stays[index.0] = false;
            continue;
        }
        for write in kind.each_write().filter(|write| write.is_full) {
            live.remove(&write.region);
        }
        for region in kind.each_read() {
            live.insert(&region);
        }
    }
    stays
}
