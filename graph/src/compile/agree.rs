//! Whether a region that was recorded again is still the region that was recorded.

use std::collections::BTreeMap;
use std::ops::Range;

use super::recorded::{Recorded, RecordedKind};
use super::twins::{TwinError, compare_operations, has_same_order};

/// Confirms that two recordings of one region differ in nothing but the places of the memory that each allocates itself.
///
/// It asks no device and knows no kernel: a byte of an argument may differ only as a part of an aligned word that leads to
/// the same place of the same allocation in both. Addresses outside of the graph have to stay.
///
/// # Errors
/// [`TwinError`] for the first difference, and for a node whose arguments nobody tells.
pub fn compare_recordings(first: &Recorded, second: &Recorded) -> Result<(), TwinError> {
    if first.nodes.len() != second.nodes.len() {
        return Err(TwinError::NumNodes { first: first.nodes.len(), second: second.nodes.len() });
    }
    let mut blocks = Blocks::default();
    for (node, (one, other)) in first.nodes.iter().zip(&second.nodes).enumerate() {
        if !has_same_order(one, other) {
            return Err(TwinError::Node { node });
        }
        if let (
            RecordedKind::Kernel { name, launch, arguments, .. },
            RecordedKind::Kernel { name: twin_name, launch: twin_launch, arguments: twin_arguments, .. },
        ) = (&one.kind, &other.kind)
        {
            let lengths = |arguments: &[Vec<u8>]| arguments.iter().map(Vec::len).collect::<Vec<_>>();
            if (name, launch) != (twin_name, twin_launch) || lengths(arguments) != lengths(twin_arguments) {
                return Err(TwinError::Launch { node, kernel: name.clone() });
            }
            blocks.compare_arguments(node, name, arguments, twin_arguments)?;
            continue;
        }
        compare_operations(node, &one.kind, &other.kind)?;
        match (&one.kind, &other.kind) {
            (RecordedKind::Alloc { address, bytes }, RecordedKind::Alloc { address: twin, .. }) => {
                blocks.allocate(*address, *bytes, *twin);
            }
            (RecordedKind::Free { address }, _) => blocks.free(*address),
            (RecordedKind::Other(kind), _) => return Err(TwinError::Untold { node, kind: kind.clone() }),
            (one, other) if addresses(one).into_iter().zip(addresses(other)).all(|(a, b)| blocks.agree(a, b)) => {}
            _ => return Err(TwinError::Node { node }),
        }
    }
    Ok(())
}

/// Sets every word of an argument to 0 that is an address on the stack of the thread that recorded, which lay in `stack`.
///
/// The library of products hands kernels the address at which its caller had a factor, beside the factor itself. No kernel
/// can read there, and the address depends on how deep in the program the region was recorded.
pub fn forget_stack(recorded: &mut Recorded, stack: &Range<u64>) {
    let kernels = recorded.nodes.iter_mut().filter_map(|node| match &mut node.kind {
        RecordedKind::Kernel { arguments, .. } => Some(arguments),
        _ => None,
    });
    for word in kernels.flatten().flat_map(|argument| argument.chunks_exact_mut(8)) {
        if <[u8; 8]>::try_from(&*word).is_ok_and(|word| stack.contains(&u64::from_le_bytes(word))) {
            word.fill(0);
        }
    }
}

/// What an operation reads and writes from.
fn addresses(kind: &RecordedKind) -> Vec<u64> {
    match kind {
        RecordedKind::Memset { address, .. } => vec![*address],
        RecordedKind::Copy { source, destination, .. } => vec![*source, *destination],
        _ => Vec::new(),
    }
}

/// Memory that the first recording has allocated so far, by its start, and where the second one has it.
#[derive(Debug, Default)]
struct Blocks(BTreeMap<u64, Block>);

#[derive(Debug)]
struct Block {
    end: u64,
    twin: u64,
    /// Freed memory may still stand in an argument that nobody uses.
    is_live: bool,
}

impl Blocks {
    fn allocate(&mut self, address: u64, bytes: usize, twin: u64) {
        let end = address.saturating_add(bytes.max(1) as u64);
        // The driver gives memory again that was freed: what lay there is no more.
        let before = self.0.range(..address).next_back().filter(|(_, block)| block.end > address);
        let gone: Vec<u64> = before.into_iter().chain(self.0.range(address..end)).map(|(start, _)| *start).collect();
        for start in gone {
            self.0.remove(&start);
        }
        self.0.insert(address, Block { end, twin, is_live: true });
    }

    /// Which of several releases comes first is left to the order in which a region drops its tensors.
    fn free(&mut self, address: u64) {
        if let Some(block) = self.0.get_mut(&address) {
            block.is_live = false;
        }
    }

    /// Whether two words lead to the same place, or are the same number.
    fn agree(&self, one: u64, other: u64) -> bool {
        let mut behind = self.0.range(..=one).rev();
        let moved = |start: u64, block: &Block| block.twin.wrapping_add(one - start) == other;
        let (inside, before) = (behind.next(), behind.next());
        match inside {
            Some((&start, block)) if one < block.end => {
                // The end of one block may be the start of the next.
                let ends = before.is_some_and(|(&start, block)| block.end == one && moved(start, block));
                moved(start, block) || ends || (!block.is_live && one == other)
            }
            Some((&start, block)) if one == block.end && moved(start, block) => true,
            _ => one == other,
        }
    }

    fn compare_arguments(
        &self,
        node: usize,
        kernel: &str,
        first: &[Vec<u8>],
        second: &[Vec<u8>],
    ) -> Result<(), TwinError> {
        for (argument, (one, other)) in first.iter().zip(second).enumerate() {
            for (word, (one, other)) in one.chunks(8).zip(other.chunks(8)).enumerate() {
                let words = <[u8; 8]>::try_from(one).ok().zip(<[u8; 8]>::try_from(other).ok());
                let agree = match words {
                    Some((one, other)) => self.agree(u64::from_le_bytes(one), u64::from_le_bytes(other)),
                    None => one == other,
                };
                if agree {
                    continue;
                }
                let (kernel, byte, before, now) = (kernel.to_owned(), word * 8, one.to_vec(), other.to_vec());
                return Err(TwinError::Word { node, kernel, argument, byte, before, now });
            }
        }
        Ok(())
    }
}
