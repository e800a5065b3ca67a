//! Recordings made by hand, and memory for them.

use std::collections::BTreeMap;

use crate::compile::{LaunchShape, Memory, Recorded, RecordedKind, RecordedNode};

/// Allocations outside the graph, and words in them.
#[derive(Debug, Clone, Default)]
pub(super) struct Device {
    pub(super) allocations: Vec<(u64, usize)>,
    pub(super) words: BTreeMap<u64, u64>,
}

impl Device {
    pub(super) fn with(allocations: &[(u64, usize)]) -> Self {
        Self { allocations: allocations.to_vec(), words: BTreeMap::new() }
    }

    /// The same with words from an address on.
    pub(super) fn holding(mut self, address: u64, words: &[u64]) -> Self {
        self.words.extend(words.iter().enumerate().map(|(index, word)| (address + 8 * index as u64, *word)));
        self
    }
}

impl Memory for Device {
    fn allocation(&mut self, address: u64) -> Option<(u64, usize)> {
        self.allocations.iter().copied().find(|&(base, bytes)| (base..base + bytes as u64).contains(&address))
    }

    fn words(&mut self, address: u64, count: usize) -> Option<Vec<u64>> {
        (0..count as u64).map(|index| self.words.get(&(address + 8 * index)).copied()).collect()
    }
}

/// An argument of 8 bytes: a count or an address.
pub(super) fn word(value: u64) -> Vec<u8> {
    value.to_le_bytes().to_vec()
}

pub(super) fn single(value: f32) -> Vec<u8> {
    value.to_le_bytes().to_vec()
}

pub(super) fn launch(blocks: u32, threads: u32) -> LaunchShape {
    LaunchShape { grid: [blocks, 1, 1], block: [threads, 1, 1], shared_bytes: 0 }
}

pub(super) fn kernel(name: &str, arguments: Vec<Vec<u8>>) -> RecordedKind {
    RecordedKind::Kernel { name: name.to_owned(), launch: launch(1, 32), arguments, is_of_library: false }
}

/// A product of cuBLAS, and what adds up its parts.
pub(super) const PRODUCT: &str = "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_stage3";
pub(super) const SUM_OF_PARTS: &str = "_ZN8cublasLt19splitKreduce_kernelILi32ELi16EiffffLb0EfffLb1ELb0ELb0ELb0EEEv";

/// A kernel that came with a library.
pub(super) fn of_library(mut kind: RecordedKind) -> RecordedKind {
    if let RecordedKind::Kernel { is_of_library, .. } = &mut kind {
        *is_of_library = true;
    }
    kind
}

/// `out = op(in)` for `numel` contiguous elements.
pub(super) fn unary(name: &str, numel: u64, input: u64, output: u64) -> RecordedKind {
    kernel(name, vec![word(numel), word(1), word(0), word(input), word(output)])
}

/// A kernel of words of which the table knows nothing.
pub(super) fn words(name: &str, words: &[u64]) -> RecordedKind {
    kernel(name, words.iter().copied().map(word).collect())
}

pub(super) fn alloc(address: u64, bytes: usize) -> RecordedKind {
    RecordedKind::Alloc { address, bytes }
}

pub(super) fn free(address: u64) -> RecordedKind {
    RecordedKind::Free { address }
}

pub(super) fn zeros(address: u64, bytes: usize) -> RecordedKind {
    RecordedKind::Memset { address, value: 0, value_bytes: 1, width: bytes, height: 1, pitch_bytes: 0 }
}

/// The nodes of one stream.
pub(super) fn chain(kinds: Vec<RecordedKind>) -> Recorded {
    let node = |(index, kind): (usize, RecordedKind)| RecordedNode {
        kind,
        dependencies: index.checked_sub(1).into_iter().collect(),
    };
    Recorded { nodes: kinds.into_iter().enumerate().map(node).collect(), declared: Vec::new() }
}
