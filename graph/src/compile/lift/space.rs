//! The addresses of a graph: which block lies where, at each point of the recording.

use std::collections::{BTreeMap, BTreeSet};

use super::error::LiftError;
use super::memory::Memory;
use crate::compile::block::{Block, BlockId, Lifetime, Region};
use crate::compile::recorded::{Recorded, RecordedKind};

/// Addresses below and from here on belong to no device memory; most numbers are outside.
pub(super) const ADDRESSES: std::ops::Range<u64> = 0x1_0000..1 << 57;

/// Words in device memory: address and number.
pub(super) type Read = (u64, usize);

/// Blocks by address.
pub(super) struct Space<'a> {
    memory: &'a mut dyn Memory,
    pub(super) blocks: Vec<Block>,
    /// Base address of each block outside the graph.
    pub(super) addresses: Vec<Option<u64>>,
    /// Graph-owned blocks that are allocated now, by address.
    live: BTreeMap<u64, BlockId>,
    external: BTreeMap<u64, BlockId>,
    /// All memory that the graph owns at some time: ends by start, neither overlapping nor touching.
    owned: BTreeMap<u64, u64>,
    /// Words that are no address at any point.
    numbers: BTreeSet<u64>,
    /// Dimensions that were read.
    trusted: BTreeMap<Read, Option<Vec<u64>>>,
    /// Dimensions that some node may write, so that they must not be read.
    distrusted: &'a BTreeSet<Read>,
}

impl<'a> Space<'a> {
    pub(super) fn new(recorded: &Recorded, memory: &'a mut dyn Memory, distrusted: &'a BTreeSet<Read>) -> Self {
        Self {
            memory,
            blocks: Vec::new(),
            addresses: Vec::new(),
            live: BTreeMap::new(),
            external: BTreeMap::new(),
            owned: owned(recorded),
            numbers: BTreeSet::new(),
            trusted: BTreeMap::new(),
            distrusted,
        }
    }

    /// The block that an address lies in now, and the distance from its start; none where it is a number.
    ///
    /// Memory of the graph that is not allocated at this point counts as a number: what was left in an argument of a
    /// kernel that does not use it.
    pub(super) fn find(&mut self, node: usize, address: u64) -> Result<Option<(BlockId, usize)>, LiftError> {
        if !ADDRESSES.contains(&address) || self.numbers.contains(&address) {
            return Ok(None);
        }
        let known = self.within(&self.live, address).or_else(|| self.within(&self.external, address));
        if known.is_some() {
            return Ok(known);
        }
        if self.is_owned(address, 1) {
            return Ok(None);
        }
        let found = self.memory.allocation(address).filter(|&(base, bytes)| {
            base <= address && usize::try_from(address - base).is_ok_and(|offset| offset < bytes)
        });
        let Some((base, size_bytes)) = found else {
            self.numbers.insert(address);
            return Ok(None);
        };
        if self.is_owned(base, size_bytes) || self.overlaps(&self.external, base, size_bytes) {
            return Err(LiftError::Overlap { node, address: base });
        }
        let block = self.push(Block { size_bytes, lifetime: Lifetime::External }, Some(base));
        self.external.insert(base, block);
        Ok(self.within(&self.external, address))
    }

    /// The bytes from an address on; none where they are not all in the block there.
    pub(super) fn region(&mut self, node: usize, address: u64, bytes: usize) -> Result<Option<Region>, LiftError> {
        let Some((block, offset)) = self.find(node, address)? else { return Ok(None) };
        let fits = bytes <= self.blocks[block.0].size_bytes - offset;
        Ok(fits.then(|| Region::new(block, offset, offset + bytes)))
    }

    pub(super) fn allocate(&mut self, node: usize, address: u64, bytes: usize) -> Result<BlockId, LiftError> {
        let size_bytes = bytes.max(1);
        if self.overlaps(&self.live, address, size_bytes) || self.overlaps(&self.external, address, size_bytes) {
            return Err(LiftError::Overlap { node, address });
        }
        let block = self.push(Block { size_bytes, lifetime: Lifetime::Graph }, None);
        self.live.insert(address, block);
        Ok(block)
    }

    pub(super) fn free(&mut self, node: usize, address: u64) -> Result<BlockId, LiftError> {
        self.live.remove(&address).ok_or(LiftError::Free { node, address })
    }

    /// An address of memory that is still allocated.
    pub(super) fn unfreed(&self) -> Option<u64> {
        self.live.keys().next().copied()
    }

    /// The dimensions that kernels were decoded with, as bytes of blocks.
    pub(super) fn trusted(&self) -> Vec<(Read, Region)> {
        let read = self.trusted.iter().filter(|(_, words)| words.is_some());
        read.filter_map(|(&(address, count), _)| {
            let (block, offset) = self.within(&self.external, address)?;
            Some(((address, count), Region::new(block, offset, offset + count * 8)))
        })
        .collect()
    }

    fn push(&mut self, block: Block, address: Option<u64>) -> BlockId {
        self.blocks.push(block);
        self.addresses.push(address);
        BlockId(self.blocks.len() - 1)
    }

    fn within(&self, blocks: &BTreeMap<u64, BlockId>, address: u64) -> Option<(BlockId, usize)> {
        let (&base, &block) = blocks.range(..=address).next_back()?;
        let offset = usize::try_from(address - base).ok()?;
        (offset < self.blocks[block.0].size_bytes).then_some((block, offset))
    }

    fn overlaps(&self, blocks: &BTreeMap<u64, BlockId>, address: u64, bytes: usize) -> bool {
        let end = address.saturating_add(bytes as u64);
        let before = blocks.range(..end).next_back();
        before.is_some_and(|(&base, &block)| base.saturating_add(self.blocks[block.0].size_bytes as u64) > address)
    }

    fn is_owned(&self, address: u64, bytes: usize) -> bool {
        let before = self.owned.range(..address.saturating_add(bytes as u64)).next_back();
        before.is_some_and(|(_, &end)| end > address)
    }
}

/// Dimensions are read from memory outside the graph only: what a node computes is not there yet.
impl Memory for Space<'_> {
    fn allocation(&mut self, address: u64) -> Option<(u64, usize)> {
        self.memory.allocation(address)
    }

    fn words(&mut self, address: u64, count: usize) -> Option<Vec<u64>> {
        let read = (address, count);
        if self.is_owned(address, count.checked_mul(8)?) || self.distrusted.contains(&read) {
            return None;
        }
        if let Some(words) = self.trusted.get(&read) {
            return words.clone();
        }
        let words = self.memory.words(address, count);
        self.trusted.insert(read, words.clone());
        words
    }
}

/// All memory that the nodes allocate.
pub(super) fn owned(recorded: &Recorded) -> BTreeMap<u64, u64> {
    let mut ranges: Vec<(u64, u64)> = recorded
        .nodes
        .iter()
        .filter_map(|node| match node.kind {
            RecordedKind::Alloc { address, bytes } => Some((address, address.saturating_add(bytes.max(1) as u64))),
            RecordedKind::Kernel { .. }
            | RecordedKind::Memset { .. }
            | RecordedKind::Copy { .. }
            | RecordedKind::Free { .. }
            | RecordedKind::Empty
            | RecordedKind::Other(_) => None,
        })
        .collect();
    ranges.sort_unstable();
    let mut merged: BTreeMap<u64, u64> = BTreeMap::new();
    for (start, end) in ranges {
        match merged.last_entry() {
            Some(mut last) if *last.get() >= start => {
                let end = end.max(*last.get());
                last.insert(end);
            }
            _ => {
                merged.insert(start, end);
            }
        }
    }
    merged
}
