//! Blocks of device memory and ranges of bytes in them.

use std::fmt;

/// Index of a block in [`Program::blocks`](super::Program::blocks).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(pub usize);

impl fmt::Display for BlockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "block {}", self.0)
    }
}

/// How long the memory of a block is there, and who sees its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lifetime {
    /// Allocated and freed by nodes of the graph, once each; its bytes are undefined at the allocation.
    Graph,
    /// There for as long as the graph; its bytes are undefined when a replay starts and read by nobody after it.
    Arena,
    /// Owned by somebody else, who writes it before a replay and reads it afterwards.
    External,
}

/// Memory that shares no byte with any other block.
///
/// The driver may give one address to two allocations of a graph, one after the other: these are two blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Length, at least 1.
    pub size_bytes: usize,
    /// How long it is there.
    pub lifetime: Lifetime,
}

/// The bytes `start..end` of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// The block.
    pub block: BlockId,
    /// First byte.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
}

impl Region {
    /// The bytes `start..end` of `block`.
    #[must_use]
    pub fn new(block: BlockId, start: usize, end: usize) -> Self {
        Self { block, start, end }
    }

    /// Number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.end.saturating_sub(self.start)
    }

    /// Whether there is no byte in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a byte lies in both.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.block == other.block && self.start.max(other.start) < self.end.min(other.end)
    }
}
