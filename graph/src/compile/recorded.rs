//! A recorded graph as plain data, with addresses.

use super::kernel::LaunchShape;

/// A recorded graph as the driver tells it, in an order in which every node comes after its dependencies.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Recorded {
    /// All nodes.
    pub nodes: Vec<RecordedNode>,
    /// What the region said of its launches.
    pub declared: Vec<DeclaredEffect>,
}

/// A node and what it waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedNode {
    /// The operation.
    pub kind: RecordedKind,
    /// Positions of earlier nodes.
    pub dependencies: Vec<usize>,
}

/// An operation with its addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordedKind {
    /// Runs a kernel.
    Kernel {
        /// Name of the function.
        name: String,
        /// Its launch.
        launch: LaunchShape,
        /// The bytes of each argument.
        arguments: Vec<Vec<u8>>,
        /// Whether its code came to the device with a library of the process, as that of cuBLAS does; the code of a module
        /// that a program loads itself does not.
        is_of_library: bool,
    },
    /// Fills `height` rows of `width` values, `pitch_bytes` apart.
    Memset {
        /// First byte.
        address: u64,
        /// The value.
        value: u32,
        /// Bytes of a value: 1, 2 or 4.
        value_bytes: usize,
        /// Values of a row.
        width: usize,
        /// Rows.
        height: usize,
        /// Distance of rows.
        pitch_bytes: usize,
    },
    /// Copies bytes in one piece on the device.
    Copy {
        /// From.
        source: u64,
        /// To.
        destination: u64,
        /// How many.
        bytes: usize,
    },
    /// Takes memory.
    Alloc {
        /// First byte.
        address: u64,
        /// How much.
        bytes: usize,
    },
    /// Gives memory back.
    Free {
        /// First byte.
        address: u64,
    },
    /// Only carries dependencies on.
    Empty,
    /// What cannot be taken apart: its kind in words.
    Other(String),
}

/// What a region said about nodes that it recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeclaredEffect {
    /// Positions of the nodes.
    pub nodes: std::ops::Range<usize>,
    /// What they read: address and length.
    pub reads: Vec<(u64, usize)>,
    /// What they write, every byte of it: address and length. What is in both lists is read before it is written.
    pub writes: Vec<(u64, usize)>,
}
