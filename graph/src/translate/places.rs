//! Where the blocks of a program lie on the device.

use std::collections::BTreeSet;
use std::iter;
use std::ops::Range;

use crate::compile::{ARENA_ALIGNMENT, Block, BlockId, Lifetime, Program, Region};

/// Where a block lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// At an address that its owner gave it.
    Address(u64),
    /// At so many bytes from the start of the memory that the new graph owns.
    Arena(usize),
}

/// Where all blocks in use lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Places {
    places: Vec<Option<Place>>,
    arena_bytes: usize,
}

impl Places {
    /// Blocks of others lie at `addresses`, all others that one of the programs uses one after the other in memory of the
    /// new graph. So a block that a graph allocated and no pass placed gets memory of its own.
    ///
    /// # Errors
    /// The block of somebody else that has no address.
    pub(crate) fn new(blocks: &[Block], addresses: &[Option<u64>], programs: [&Program; 2]) -> Result<Self, BlockId> {
        let nodes = programs.into_iter().flat_map(|program| &program.nodes);
        let used: BTreeSet<BlockId> = nodes.flat_map(|node| node.kind.blocks()).collect();
        let mut arena_bytes = 0_usize;
        let mut place = |id: BlockId, block: &Block| {
            if !used.contains(&id) {
                return Ok(None);
            }
            if block.lifetime == Lifetime::External {
                let address = addresses.get(id.0).copied().flatten().ok_or(id)?;
                return Ok(Some(Place::Address(address)));
            }
            let offset = arena_bytes.next_multiple_of(ARENA_ALIGNMENT);
            arena_bytes = offset + block.size_bytes;
            Ok(Some(Place::Arena(offset)))
        };
        let places =
            blocks.iter().enumerate().map(|(id, block)| place(BlockId(id), block)).collect::<Result<_, _>>()?;
        Ok(Self { places, arena_bytes })
    }

    /// Bytes of the memory that the new graph owns.
    pub(crate) fn arena_bytes(&self) -> usize {
        self.arena_bytes
    }

    /// The ranges of that memory which `program` writes nothing in, in ascending order.
    pub(crate) fn gaps(&self, program: &Program) -> Vec<Range<usize>> {
        let region = |region: Region| match self.places.get(region.block.0).copied().flatten()? {
            Place::Arena(offset) => Some(offset + region.start..offset + region.end),
            Place::Address(_) => None,
        };
        let writes = program.nodes.iter().flat_map(|node| node.kind.writes());
        let mut written: Vec<Range<usize>> = writes.filter_map(|write| region(write.region)).collect();
        written.sort_unstable_by_key(|range| (range.start, range.end));
        let mut gaps = Vec::new();
        let mut end = 0;
        for range in written.into_iter().chain(iter::once(self.arena_bytes..self.arena_bytes)) {
            if range.start > end {
                gaps.push(end..range.start);
            }
            end = end.max(range.end);
        }
        gaps
    }

    /// Address of a block's first byte, where that memory starts at `arena`.
    pub(crate) fn address(&self, block: BlockId, arena: u64) -> Option<u64> {
        match self.places.get(block.0).copied().flatten()? {
            Place::Address(address) => Some(address),
            Place::Arena(offset) => Some(arena + offset as u64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::{Node, NodeKind, Pattern};

    fn filling(blocks: impl IntoIterator<Item = usize>) -> Program {
        let fill = |block| NodeKind::Memset { region: Region::new(BlockId(block), 0, 1), pattern: Pattern::ZERO };
        Program { blocks: Vec::new(), nodes: blocks.into_iter().map(|block| Node::new(fill(block), [])).collect() }
    }

    fn block(size_bytes: usize, lifetime: Lifetime) -> Block {
        Block { size_bytes, lifetime }
    }

    #[test]
    fn blocks_of_others_stay_and_the_rest_is_placed_apart() {
        let blocks = [
            block(8, Lifetime::External),
            block(300, Lifetime::Graph),
            block(1 << 30, Lifetime::Graph),
            block(10, Lifetime::Arena),
            block(1, Lifetime::Arena),
        ];
        // Block 2 is used by nobody; block 4 by the program that runs once.
        let places = Places::new(&blocks, &[Some(0x7000), None, None], [&filling([0, 1, 3]), &filling([4])])
            .expect("every block of others has an address");
        let found: Vec<_> = (0..6).map(|id| places.address(BlockId(id), 0x1_0000)).collect();
        assert_eq!(found, [Some(0x7000), Some(0x1_0000), None, Some(0x1_0200), Some(0x1_0300), None]);
        assert_eq!(places.arena_bytes(), 0x301);
    }

    #[test]
    fn a_block_of_others_without_an_address_is_refused_if_it_is_used() {
        let blocks = [block(8, Lifetime::External), block(8, Lifetime::External)];
        let none = filling([]);
        assert_eq!(Places::new(&blocks, &[Some(1), None], [&filling([0, 1]), &none]), Err(BlockId(1)));
        assert!(Places::new(&blocks, &[Some(1), None], [&filling([0]), &none]).is_ok());
        assert_eq!(Places::new(&blocks, &[], [&none, &filling([0])]), Err(BlockId(0)));
    }

    #[test]
    fn what_a_program_does_not_write_are_gaps() {
        let blocks = [block(100, Lifetime::Arena), block(64, Lifetime::External), block(300, Lifetime::Arena)];
        let fill = |block, start, end| {
            let region = Region::new(BlockId(block), start, end);
            Node::new(NodeKind::Memset { region, pattern: Pattern::ZERO }, [])
        };
        let program = |nodes| Program { blocks: blocks.to_vec(), nodes };
        let all = program(vec![fill(0, 0, 1), fill(1, 0, 1), fill(2, 0, 1)]);
        let places = Places::new(&blocks, &[None, Some(4096), None], [&all, &all]).unwrap();
        assert_eq!(places.arena_bytes(), 556);
        let gaps = |nodes| places.gaps(&program(nodes));
        let all_of_it = vec![Range { start: 0, end: 556 }];
        assert_eq!(gaps(vec![]), all_of_it);
        assert_eq!(gaps(vec![fill(1, 0, 64)]), all_of_it);
        assert_eq!(gaps(vec![fill(2, 10, 20), fill(0, 0, 100), fill(2, 15, 30)]), [100..266, 286..556]);
        assert_eq!(gaps(vec![fill(0, 4, 100), fill(2, 0, 300)]), [0..4, 100..256]);
    }
}
