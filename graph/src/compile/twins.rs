//! Two recordings of one region: what was taken for an address has to have moved with its memory, and nothing else.

use super::kernel::{Code, Kernel, Pointer};
use super::lift::Lifted;
use super::node::{Node, NodeIndex, NodeKind};
use super::recorded::{Recorded, RecordedKind, RecordedNode};

/// How two recordings of one region differ.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TwinError {
    /// One has more nodes.
    #[error("one recording has {first} nodes, the other {second}")]
    NumNodes {
        /// Nodes of the first.
        first: usize,
        /// Nodes of the second.
        second: usize,
    },
    /// Nodes in one place are of different kinds, wait for different nodes, or fill or copy other numbers of bytes.
    #[error("node {node} is another one in the second recording")]
    Node {
        /// The node.
        node: usize,
    },
    /// Kernels in one place differ in name, launch, or number or length of arguments.
    #[error("node {node} launches {kernel} in another way in the second recording")]
    Launch {
        /// The node.
        node: usize,
        /// Name in the first recording.
        kernel: String,
    },
    /// A word that was taken for an address in one recording is a number in the other, or points elsewhere.
    #[error("byte {byte} of argument {argument} of {kernel} at node {node} did not move with its memory")]
    Address {
        /// The node.
        node: usize,
        /// Its name.
        kernel: String,
        /// The argument.
        argument: usize,
        /// First byte of the word in the argument.
        byte: usize,
    },
    /// A byte that belongs to no address differs.
    #[error("byte {byte} of argument {argument} of {kernel} at node {node} differs and belongs to no address")]
    Byte {
        /// The node.
        node: usize,
        /// Its name.
        kernel: String,
        /// The argument.
        argument: usize,
        /// The byte in the argument.
        byte: usize,
    },
    /// A word of an argument is another one, and leads to no memory that moved.
    #[error(
        "bytes {byte} on of argument {argument} of {kernel} at node {node} were {} and are {}", shown(.before), shown(.now)
    )]
    Word {
        /// The node.
        node: usize,
        /// Its name.
        kernel: String,
        /// The argument.
        argument: usize,
        /// First byte of the word in the argument.
        byte: usize,
        /// What the first recording has there, at most 8 bytes.
        before: Vec<u8>,
        /// What the second recording has there.
        now: Vec<u8>,
    },
    /// What is known of a kernel differs: dimensions in device memory, or what was declared.
    #[error("the effect of {kernel} at node {node} differs")]
    Effect {
        /// The node.
        node: usize,
        /// Its name.
        kernel: String,
    },
    /// A node whose arguments nobody tells, so that it cannot be compared.
    #[error("node {node} is {kind}, which cannot be compared")]
    Untold {
        /// The node.
        node: usize,
        /// Its kind in words.
        kind: String,
    },
    /// An operation of the programs differs in what it does or waits for.
    #[error("{node} of the program differs")]
    Operation {
        /// The node of the program.
        node: NodeIndex,
    },
    /// Blocks differ in size, owner, or, outside the graph, in their address.
    #[error("block {block} differs")]
    Block {
        /// Index of the block.
        block: usize,
    },
}

/// A number of up to 8 bytes, and as a float where it has the length of one.
fn shown(bytes: &[u8]) -> String {
    let number = bytes.iter().rev().fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    match <[u8; 4]>::try_from(bytes) {
        Ok(bytes) => format!("{number:#x} ({} as f32)", f32::from_le_bytes(bytes)),
        Err(_) => format!("{number:#x}"),
    }
}

/// Compares two recordings of one region, made at different addresses, and what they were lifted to.
///
/// Returns how many addresses moved; none did where the driver gave the same memory again, and then the comparison
/// says nothing about numbers that look like addresses.
///
/// # Errors
/// [`TwinError`] for the first difference that is not an address that moved with its block.
pub fn compare_twins(first: (&Recorded, &Lifted), second: (&Recorded, &Lifted)) -> Result<usize, TwinError> {
    let ((first, first_lifted), (second, second_lifted)) = (first, second);
    if first.nodes.len() != second.nodes.len() {
        return Err(TwinError::NumNodes { first: first.nodes.len(), second: second.nodes.len() });
    }
    let mut kernels = [kernels(first_lifted, first.nodes.len()), kernels(second_lifted, second.nodes.len())];
    let mut num_moved = 0;
    for (node, (one, other)) in first.nodes.iter().zip(&second.nodes).enumerate() {
        if !has_same_order(one, other) {
            return Err(TwinError::Node { node });
        }
        num_moved += match (kernels[0][node].take(), kernels[1][node].take()) {
            (Some(one), Some(other)) => compare_kernels(
                node,
                (&first.nodes[node].kind, one, first_lifted),
                (&second.nodes[node].kind, other, second_lifted),
            )?,
            (None, None) => compare_operations(node, &one.kind, &other.kind)?,
            _ => return Err(TwinError::Node { node }),
        };
    }
    compare_blocks(first_lifted, second_lifted)?;
    compare_nodes(first_lifted, second_lifted)?;
    Ok(num_moved)
}

/// Whether two nodes are of one kind and wait for the same nodes.
pub(super) fn has_same_order(one: &RecordedNode, other: &RecordedNode) -> bool {
    let sorted = |dependencies: &[usize]| {
        let mut sorted = dependencies.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        sorted
    };
    std::mem::discriminant(&one.kind) == std::mem::discriminant(&other.kind)
        && (one.dependencies == other.dependencies || sorted(&one.dependencies) == sorted(&other.dependencies))
}

/// The kernels of a program by their recorded node.
fn kernels(lifted: &Lifted, num_nodes: usize) -> Vec<Option<&Kernel>> {
    let mut kernels = vec![None; num_nodes];
    for node in &lifted.program.nodes {
        if let NodeKind::Kernel(kernel) = &node.kind
            && let Code::Recorded(position) = kernel.code
            && let Some(place) = kernels.get_mut(position)
        {
            *place = Some(kernel);
        }
    }
    kernels
}

type Side<'a> = (&'a RecordedKind, &'a Kernel, &'a Lifted);

fn compare_kernels(node: usize, first: Side<'_>, second: Side<'_>) -> Result<usize, TwinError> {
    let (RecordedKind::Kernel { arguments: one, .. }, RecordedKind::Kernel { arguments: other, .. }) =
        (first.0, second.0)
    else {
        return Err(TwinError::Node { node });
    };
    let (kernel, twin) = (first.1, second.1);
    let name = || kernel.name.clone();
    let has_lengths = |arguments: &[Vec<u8>], kernel: &Kernel| {
        arguments.iter().map(Vec::len).eq(kernel.argument_bytes.iter().copied())
    };
    if (&kernel.name, kernel.launch, &kernel.argument_bytes) != (&twin.name, twin.launch, &twin.argument_bytes)
        || !has_lengths(one, kernel)
        || !has_lengths(other, twin)
    {
        return Err(TwinError::Launch { node, kernel: name() });
    }
    let pointers = [by_word(kernel), by_word(twin)];
    let mut num_moved = 0;
    let mut word_index = 0;
    for (argument, (one, other)) in one.iter().zip(other).enumerate() {
        for (word, (one, other)) in one.chunks(8).zip(other.chunks(8)).enumerate() {
            let byte = word * 8;
            match (pointers[0][word_index], pointers[1][word_index]) {
                (None, None) => {
                    if let Some(position) = one.iter().zip(other).position(|(one, other)| one != other) {
                        return Err(TwinError::Byte { node, kernel: name(), argument, byte: byte + position });
                    }
                }
                (Some(pointer), Some(twin)) if is_same_place(pointer, twin, first.2, second.2) => {
                    num_moved += usize::from(one != other);
                }
                _ => return Err(TwinError::Address { node, kernel: name(), argument, byte }),
            }
            word_index += 1;
        }
    }
    if (&kernel.pointers, &kernel.effect) != (&twin.pointers, &twin.effect) {
        return Err(TwinError::Effect { node, kernel: name() });
    }
    Ok(num_moved)
}

/// The pointers of a kernel by their word.
fn by_word(kernel: &Kernel) -> Vec<Option<&Pointer>> {
    let mut pointers = vec![None; kernel.parameters.len()];
    for pointer in &kernel.pointers {
        pointers[pointer.word_index] = Some(pointer);
    }
    pointers
}

fn is_same_place(pointer: &Pointer, twin: &Pointer, first: &Lifted, second: &Lifted) -> bool {
    (pointer.block, pointer.offset_bytes) == (twin.block, twin.offset_bytes)
        && first.addresses.get(pointer.block.0) == second.addresses.get(pointer.block.0)
        && first.program.blocks.get(pointer.block.0) == second.program.blocks.get(pointer.block.0)
}

/// How many addresses of an operation moved; where they lie is compared block by block.
pub(super) fn compare_operations(node: usize, first: &RecordedKind, second: &RecordedKind) -> Result<usize, TwinError> {
    let moved = |one: u64, other: u64| usize::from(one != other);
    let (is_same, num_moved) = match (first, second) {
        (
            RecordedKind::Memset { address, value, value_bytes, width, height, pitch_bytes },
            RecordedKind::Memset {
                address: twin,
                value: twin_value,
                value_bytes: twin_value_bytes,
                width: twin_width,
                height: twin_height,
                pitch_bytes: twin_pitch,
            },
        ) => (
            (value, value_bytes, width, height) == (twin_value, twin_value_bytes, twin_width, twin_height)
                && (*height <= 1 || pitch_bytes == twin_pitch),
            moved(*address, *twin),
        ),
        (
            RecordedKind::Copy { source, destination, bytes },
            RecordedKind::Copy { source: twin_source, destination: twin_destination, bytes: twin_bytes },
        ) => (bytes == twin_bytes, moved(*source, *twin_source) + moved(*destination, *twin_destination)),
        (RecordedKind::Alloc { address, bytes }, RecordedKind::Alloc { address: twin, bytes: twin_bytes }) => {
            (bytes == twin_bytes, moved(*address, *twin))
        }
        (RecordedKind::Free { address }, RecordedKind::Free { address: twin }) => (true, moved(*address, *twin)),
        (first, second) => (first == second, 0),
    };
    if is_same { Ok(num_moved) } else { Err(TwinError::Node { node }) }
}

fn compare_blocks(first: &Lifted, second: &Lifted) -> Result<(), TwinError> {
    let (one, other) = (&first.program.blocks, &second.program.blocks);
    let block = (0..one.len().max(other.len()))
        .find(|&block| one.get(block) != other.get(block) || first.addresses.get(block) != second.addresses.get(block));
    block.map_or(Ok(()), |block| Err(TwinError::Block { block }))
}

/// Everything once more, as programs: regions of memsets and copies, and what is known of kernels.
///
/// Which of several releases comes first may differ: the region drops maps of tensors, whose order is random. Each block
/// is released once in both, where nobody uses it any more; [`lift`](super::lift()) sees to that.
fn compare_nodes(first: &Lifted, second: &Lifted) -> Result<(), TwinError> {
    let (one, other) = (&first.program.nodes, &second.program.nodes);
    let is_same = |one: &Node, other: &Node| match (&one.kind, &other.kind) {
        (NodeKind::Free(_), NodeKind::Free(_)) => one.dependencies == other.dependencies,
        _ => one == other,
    };
    let differs = |node: &usize| !one.get(*node).zip(other.get(*node)).is_some_and(|(one, other)| is_same(one, other));
    let node = (0..one.len().max(other.len())).find(differs);
    node.map_or(Ok(()), |node| Err(TwinError::Operation { node: NodeIndex(node) }))
}
