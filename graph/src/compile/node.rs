//! Nodes of a program: what they do, and which bytes they read and write.

use std::fmt;

use super::block::{BlockId, Region};
use super::kernel::{Kernel, Pointer};

/// Position of a node in [`Program::nodes`](super::Program::nodes).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeIndex(pub usize);

impl fmt::Display for NodeIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}", self.0)
    }
}

/// One operation and what has to be over before it starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The operation.
    pub kind: NodeKind,
    /// Earlier nodes, each once, in ascending order.
    pub dependencies: Vec<NodeIndex>,
}

/// An operation of a captured graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeKind {
    /// Runs a kernel.
    Kernel(Kernel),
    /// Fills bytes with a repeated value.
    Memset {
        /// The bytes that are filled.
        region: Region,
        /// What they are filled with.
        pattern: Pattern,
    },
    /// Copies bytes on the device.
    Copy {
        /// Where they come from.
        source: Region,
        /// Where they go: as many bytes, none of them in the source.
        destination: Region,
    },
    /// Starts the life of a graph-owned block.
    Alloc(BlockId),
    /// Ends the life of a graph-owned block.
    Free(BlockId),
    /// Only carries dependencies on.
    Empty,
}

/// The value of a memset: the lowest `width_bytes` of `value`, little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pattern {
    /// The value; it fits in the width.
    pub value: u32,
    /// 1, 2 or 4.
    pub width_bytes: usize,
}

impl Pattern {
    /// Zero bytes.
    pub const ZERO: Self = Self { value: 0, width_bytes: 1 };

    /// Whether every byte is zero.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        self.value == 0
    }
}

/// Bytes that a node writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Write {
    /// Every byte that may be written.
    pub region: Region,
    /// Whether every byte of the region is written, whatever the data.
    pub is_full: bool,
}

impl Node {
    /// A node that depends on the nodes given.
    #[must_use]
    pub fn new(kind: NodeKind, dependencies: impl IntoIterator<Item = usize>) -> Self {
        let mut dependencies: Vec<_> = dependencies.into_iter().map(NodeIndex).collect();
        dependencies.sort_unstable();
        dependencies.dedup();
        Self { kind, dependencies }
    }
}

impl NodeKind {
    /// The bytes that it may read.
    #[must_use]
    pub fn reads(&self) -> Vec<Region> {
        self.each_read().collect()
    }

    /// The bytes that it may write. Allocations and releases write none: see [`NodeKind::lifetime_of`].
    #[must_use]
    pub fn writes(&self) -> Vec<Write> {
        self.each_write().collect()
    }

    /// As [`NodeKind::reads`], without memory of its own: what passes ask of every node.
    pub(super) fn each_read(&self) -> impl Iterator<Item = Region> + Clone {
        let copied = match self {
            Self::Copy { source, .. } => Some(*source),
            Self::Kernel(_) | Self::Memset { .. } | Self::Alloc(_) | Self::Free(_) | Self::Empty => None,
        };
        self.pointers().iter().filter_map(|pointer| pointer.read).chain(copied)
    }

    /// As [`NodeKind::writes`], without memory of its own.
    pub(super) fn each_write(&self) -> impl Iterator<Item = Write> + Clone {
        let filled = match self {
            Self::Memset { region, .. } | Self::Copy { destination: region, .. } => Some(*region),
            Self::Kernel(_) | Self::Alloc(_) | Self::Free(_) | Self::Empty => None,
        };
        let filled = filled.map(|region| Write { region, is_full: true });
        self.pointers().iter().filter_map(|pointer| pointer.write).chain(filled)
    }

    /// As [`NodeKind::blocks`], without memory of its own, in no order and a block as often as there are addresses.
    pub(super) fn each_block(&self) -> impl Iterator<Item = BlockId> + Clone {
        let (first, second) = match self {
            Self::Memset { region, .. } => (Some(region.block), None),
            Self::Copy { source, destination } => (Some(source.block), Some(destination.block)),
            Self::Kernel(_) | Self::Alloc(_) | Self::Free(_) | Self::Empty => (None, None),
        };
        self.pointers().iter().map(|pointer| pointer.block).chain(first).chain(second)
    }

    fn pointers(&self) -> &[Pointer] {
        match self {
            Self::Kernel(kernel) => &kernel.pointers,
            Self::Memset { .. } | Self::Copy { .. } | Self::Alloc(_) | Self::Free(_) | Self::Empty => &[],
        }
    }

    /// The block whose life it starts or ends.
    #[must_use]
    pub fn lifetime_of(&self) -> Option<BlockId> {
        match self {
            Self::Alloc(block) | Self::Free(block) => Some(*block),
            Self::Kernel(_) | Self::Memset { .. } | Self::Copy { .. } | Self::Empty => None,
        }
    }

    /// The blocks that it holds an address in, in ascending order; those of allocations and releases are not among them.
    #[must_use]
    pub fn blocks(&self) -> Vec<BlockId> {
        let mut blocks: Vec<BlockId> = self.each_block().collect();
        blocks.sort_unstable();
        blocks.dedup();
        blocks
    }

    /// Moves every address: `place` names the new block of an old one and the bytes to add, or nothing where it stays.
    pub(super) fn relocate(&mut self, place: impl Fn(BlockId) -> Option<(BlockId, usize)>) {
        let region = |region: &mut Region| {
            if let Some((block, shift)) = place(region.block) {
                *region = Region::new(block, region.start + shift, region.end + shift);
            }
        };
        match self {
            Self::Kernel(kernel) => {
                for pointer in &mut kernel.pointers {
                    pointer.read.iter_mut().for_each(region);
                    pointer.write.iter_mut().for_each(|write| region(&mut write.region));
                    if let Some((block, shift)) = place(pointer.block) {
                        pointer.block = block;
                        pointer.offset_bytes += shift;
                    }
                }
            }
            Self::Memset { region: filled, .. } => region(filled),
            Self::Copy { source, destination } => {
                region(source);
                region(destination);
            }
            Self::Alloc(_) | Self::Free(_) | Self::Empty => {}
        }
    }
}
