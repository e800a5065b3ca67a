//! Random valid programs.

use proptest::prelude::*;

use super::conflicts;
use crate::graph::compile::{
    Block, BlockId, Effect, Kernel, LaunchShape, Lifetime, Node, NodeKind, Pattern, Pointer, Program, Region,
};

/// Numbers that a step picks blocks and ranges with, each modulo what there is.
type Picks = [usize; 8];

/// Programs of about 10 to 60 nodes on up to three external blocks, in the order of one stream or in a looser one.
pub(super) fn programs() -> impl Strategy<Value = Program> {
    let external = prop::collection::vec(1..700_usize, 1..4);
    let steps = prop::collection::vec((0..13_u8, prop::array::uniform8(0..4096_usize)), 4..30);
    (external, steps, any::<bool>()).prop_map(|(external, steps, is_chain)| {
        let mut builder = Builder::new(external);
        for (kind, picks) in steps {
            builder.step(kind, picks);
        }
        builder.finish(is_chain)
    })
}

struct Builder {
    blocks: Vec<Block>,
    /// Blocks that can be used now; all their bytes are defined.
    live: Vec<BlockId>,
    kinds: Vec<NodeKind>,
}

impl Builder {
    fn new(external: Vec<usize>) -> Self {
        let block = |size_bytes| Block { size_bytes, lifetime: Lifetime::External };
        let blocks: Vec<Block> = external.into_iter().map(block).collect();
        Self { live: (0..blocks.len()).map(BlockId).collect(), blocks, kinds: Vec::new() }
    }

    fn step(&mut self, kind: u8, picks: Picks) {
        let target = self.region(picks[0], picks[1], picks[2]);
        match kind {
            0 | 1 => self.allocate(picks),
            2 => self.free(picks[0]),
            3 => self.zero(target),
            4 => {
                let pattern = Pattern { value: 0x1234, width_bytes: 2 };
                let region = Region::new(target.block, target.start, target.start + target.len() / 2 * 2);
                if !region.is_empty() {
                    self.kinds.push(NodeKind::Memset { region, pattern });
                }
            }
            5 => self.copy(target, picks),
            6 => self.sum(target, picks),
            7 => {
                // A gradient: zeros, and what is added to them.
                self.zero(target);
                self.sum(target, picks);
            }
            8 => {
                self.zero(target);
                let source = self.region(picks[3], picks[4], picks[5]);
                self.kernel(vec![reading(source), writing(target, true)], Effect::Known, picks[6]);
            }
            9 => {
                let size = |block: BlockId| self.blocks[block.0].size_bytes;
                let blocks = [self.block(picks[0]), self.block(picks[3])];
                let pointer = |block: BlockId| Pointer::unknown(0, block, picks[1].min(size(block)), size(block));
                let pointers = blocks.map(pointer).to_vec();
                self.kernel(pointers, Effect::Unknown, picks[6]);
            }
            10 => self.kinds.push(NodeKind::Empty),
            _ => {
                let (source, other) =
                    (self.region(picks[3], picks[4], picks[5]), self.region(picks[6], picks[7], picks[2]));
                let bare = Pointer::new(0, self.block(picks[7]), 0);
                let pointers = match picks[5] % 4 {
                    0 => vec![reading(source), writing(target, true)],
                    1 => vec![reading(source), reading(other), writing(target, false), bare],
                    2 => vec![reading(source), writing(target, true), writing(other, false)],
                    _ => vec![writing(target, true), bare],
                };
                self.kernel(pointers, Effect::Known, picks[6]);
            }
        }
    }

    fn allocate(&mut self, picks: Picks) {
        let block = BlockId(self.blocks.len());
        let size_bytes = 1 + if picks[1].is_multiple_of(4) { picks[2] } else { picks[2] % 600 };
        let source = self.region(picks[3], picks[4], picks[5]);
        self.blocks.push(Block { size_bytes, lifetime: Lifetime::Graph });
        self.kinds.push(NodeKind::Alloc(block));
        let whole = Region::new(block, 0, size_bytes);
        match picks[6] % 3 {
            0 => self.zero(whole),
            1 => self.kernel(vec![reading(source), writing(whole, true)], Effect::Known, picks[7]),
            _ => {
                let middle = picks[7] % size_bytes;
                self.kernel(vec![writing(Region::new(block, middle, size_bytes), true)], Effect::Known, picks[7]);
                if middle > 0 {
                    self.zero(Region::new(block, 0, middle));
                }
            }
        }
        self.live.push(block);
    }

    fn free(&mut self, pick: usize) {
        let owned: Vec<BlockId> = self.live.iter().copied().filter(|block| self.is_owned(*block)).collect();
        if !owned.is_empty() {
            let block = owned[pick % owned.len()];
            if !pick.is_multiple_of(4) {
                self.publish(block);
            }
            self.live.retain(|other| *other != block);
            self.kinds.push(NodeKind::Free(block));
        }
    }

    /// Lets all of a block have a say in what the first external block holds.
    fn publish(&mut self, block: BlockId) {
        let whole = |block: BlockId| Region::new(block, 0, self.blocks[block.0].size_bytes);
        let pointers = vec![reading(whole(block)), writing(whole(BlockId(0)), false)];
        self.kernel(pointers, Effect::Known, block.0);
    }

    fn zero(&mut self, region: Region) {
        self.kinds.push(NodeKind::Memset { region, pattern: Pattern::ZERO });
    }

    fn copy(&mut self, target: Region, picks: Picks) {
        let source = self.region(picks[3], picks[4], picks[5]);
        let (source, destination) = same_length(source, target);
        if !source.overlaps(&destination) {
            self.kinds.push(NodeKind::Copy { source, destination });
        }
    }

    /// `target += source`, or the sum of two written elsewhere.
    fn sum(&mut self, target: Region, picks: Picks) {
        let source = self.region(picks[3], picks[4], picks[5]);
        let (source, term) = same_length(source, target);
        let other = self.region(picks[6], picks[7], picks[2]);
        let output = Region::new(other.block, other.start, other.start + term.len());
        let is_apart = |region: &Region| *region == output || !region.overlaps(&output);
        if picks[7].is_multiple_of(2)
            && output.end <= self.blocks[output.block.0].size_bytes
            && is_apart(&term)
            && is_apart(&source)
        {
            let effect = Effect::Sum { terms: [0, 1], output: 2 };
            if output != term && output != source {
                self.kernel(vec![reading(term), reading(source), writing(output, true)], effect, picks[6]);
            }
        } else if !source.overlaps(&term) {
            let effect = Effect::Sum { terms: [1, 0], output: 1 };
            let in_place = reading(term).writing(term.start, term.end);
            self.kernel(vec![reading(source), in_place], effect, picks[6]);
        }
    }

    fn kernel(&mut self, mut pointers: Vec<Pointer>, effect: Effect, pick: usize) {
        for (index, pointer) in pointers.iter_mut().enumerate() {
            pointer.word_index = 1 + index;
        }
        let mut parameters = vec![pick as u64 % 5];
        parameters.extend(pointers.iter().map(|pointer| 0x7f00_0000 + pointer.offset_bytes as u64));
        let name = format!("kernel_{}", pick % 7);
        let launch = LaunchShape { grid: [1, 1, 1], block: [32, 1, 1], shared_bytes: 0 };
        self.kinds.push(NodeKind::Kernel(Kernel { name, launch, parameters, pointers, effect }));
    }

    /// Frees what is left; the nodes are a chain, or wait for what they must and here and there for more.
    fn finish(mut self, is_chain: bool) -> Program {
        let owned: Vec<BlockId> = self.live.iter().copied().filter(|block| self.is_owned(*block)).collect();
        for block in owned {
            if !block.0.is_multiple_of(4) {
                self.publish(block);
            }
            self.kinds.push(NodeKind::Free(block));
        }
        let dependencies = |index: usize| -> Vec<usize> {
            let has_to_wait =
                |&other: &usize| conflicts(&self.kinds[other], &self.kinds[index]) || (other + index).is_multiple_of(9);
            if is_chain { index.checked_sub(1).into_iter().collect() } else { (0..index).filter(has_to_wait).collect() }
        };
        let nodes =
            self.kinds.iter().enumerate().map(|(index, kind)| Node::new(kind.clone(), dependencies(index))).collect();
        Program { blocks: self.blocks, nodes }
    }

    fn is_owned(&self, block: BlockId) -> bool {
        self.blocks[block.0].lifetime == Lifetime::Graph
    }

    fn block(&self, pick: usize) -> BlockId {
        self.live[pick % self.live.len()]
    }

    /// Some bytes of a block that can be used; often all of them.
    fn region(&self, block: usize, start: usize, len: usize) -> Region {
        let block = self.block(block);
        let size = self.blocks[block.0].size_bytes;
        if start.is_multiple_of(3) {
            return Region::new(block, 0, size);
        }
        let start = start % size;
        Region::new(block, start, start + 1 + len % (size - start))
    }
}

fn reading(region: Region) -> Pointer {
    Pointer::new(0, region.block, region.start).reading(region.start, region.end)
}

fn writing(region: Region, is_full: bool) -> Pointer {
    let pointer = Pointer::new(0, region.block, region.start);
    if is_full { pointer.writing(region.start, region.end) } else { pointer.writing_some(region.start, region.end) }
}

fn same_length(first: Region, second: Region) -> (Region, Region) {
    let len = first.len().min(second.len());
    let cut = |region: Region| Region::new(region.block, region.start, region.start + len);
    (cut(first), cut(second))
}
