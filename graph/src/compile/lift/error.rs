//! Why a recorded graph could not be lifted.

/// What stands in the way; nodes are positions among the recorded ones.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LiftError {
    /// A node of a kind that cannot be taken apart.
    #[error("node {node} is {kind}, which cannot be rewritten")]
    Node {
        /// The node.
        node: usize,
        /// Its kind in words.
        kind: String,
    },
    /// A node of a form that programs do not have.
    #[error("node {node} is {form}, which programs do not have")]
    Unsupported {
        /// The node.
        node: usize,
        /// Its form in words.
        form: &'static str,
    },
    /// A dependency that does not point to an earlier node.
    #[error("node {node} depends on node {dependency}, which is not an earlier one")]
    Dependency {
        /// The node.
        node: usize,
        /// What it depends on.
        dependency: usize,
    },
    /// An address that is needed lies in no memory that is known.
    #[error("address {address:#x} of node {node} lies in no memory that is known")]
    Address {
        /// The node.
        node: usize,
        /// The address.
        address: u64,
    },
    /// A memset or copy runs past the end of its memory.
    #[error("node {node} uses {bytes} bytes at {address:#x}, more than the memory there has")]
    Range {
        /// The node.
        node: usize,
        /// First byte.
        address: u64,
        /// How many.
        bytes: usize,
    },
    /// Memory is allocated where other memory is.
    #[error("node {node} brings in memory at {address:#x}, which overlaps other memory")]
    Overlap {
        /// The node.
        node: usize,
        /// First byte.
        address: u64,
    },
    /// Memory is freed that the graph does not hold.
    #[error("node {node} frees {address:#x}, which the graph does not hold then")]
    Free {
        /// The node.
        node: usize,
        /// First byte.
        address: u64,
    },
    /// Memory is not freed before the graph ends.
    #[error("memory at {address:#x} is allocated and never freed")]
    NeverFreed {
        /// First byte.
        address: u64,
    },
    /// A declared effect names nodes that were not recorded.
    #[error("declared effect {index} names nodes up to {end} of {num_nodes}")]
    Declared {
        /// Position among the declared effects.
        index: usize,
        /// One past the last node that it names.
        end: usize,
        /// Number of recorded nodes.
        num_nodes: usize,
    },
    /// An unknown kernel holds no address, so that nothing says what it has to wait for.
    #[error("kernel {kernel} at node {node} is unknown and holds no address")]
    NoAddress {
        /// The node.
        node: usize,
        /// Its name.
        kernel: String,
    },
}
