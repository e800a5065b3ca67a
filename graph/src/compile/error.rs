//! Why a program is not valid.

use super::block::BlockId;
use super::node::NodeIndex;

/// A rule that a program breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProgramError {
    /// A block has no bytes.
    #[error("{block} has no bytes")]
    EmptyBlock {
        /// The block.
        block: BlockId,
    },
    /// A dependency does not point to an earlier node, or the list is not strictly ascending.
    #[error("{node} depends on {dependency}, which is not an earlier node in its place")]
    Order {
        /// The node.
        node: NodeIndex,
        /// What it depends on.
        dependency: NodeIndex,
    },
    /// A node names bytes that no block has, or none at all.
    #[error("{node} uses bytes outside {block}, or none")]
    Range {
        /// The node.
        node: NodeIndex,
        /// The block.
        block: BlockId,
    },
    /// A pointer has no word of its own, or contradicts its block or what is said of its kernel.
    #[error("pointer {pointer} of {node} contradicts its kernel")]
    Pointer {
        /// The node.
        node: NodeIndex,
        /// Index of the pointer.
        pointer: usize,
    },
    /// A memset whose value does not fit its width or whose bytes are no multiple of it, a copy between ranges of
    /// different length or ranges that overlap, or a sum of such.
    #[error("the operands of {node} do not fit together")]
    Operands {
        /// The node.
        node: NodeIndex,
    },
    /// A graph-owned block in use is not allocated and freed once each, or another block is.
    #[error("{block} has {allocations} allocations and {releases} releases")]
    Lifetime {
        /// The block.
        block: BlockId,
        /// Nodes that allocate it.
        allocations: usize,
        /// Nodes that free it.
        releases: usize,
    },
    /// A node that may run before a block is allocated or after it is freed.
    #[error("{node} is not ordered between the allocation and the release of {block}")]
    OutsideLifetime {
        /// The node.
        node: NodeIndex,
        /// The block that it uses.
        block: BlockId,
    },
    /// Two nodes in no order, one of which writes what the other reads or writes.
    #[error("{first} and {second} touch the same bytes of {block} in no order, and one writes")]
    Conflict {
        /// The node listed first.
        first: NodeIndex,
        /// The other node.
        second: NodeIndex,
        /// The block.
        block: BlockId,
    },
    /// Nodes that have so little past in common that the order of them takes more memory than it may.
    #[error("what comes before what of {nodes} nodes takes more memory than it may: capture a part of it")]
    Tangled {
        /// How many there are.
        nodes: usize,
    },
}
