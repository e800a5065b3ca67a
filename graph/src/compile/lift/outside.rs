//! The memory outside of a graph that its recording points at.

use std::collections::{BTreeMap, BTreeSet};

use super::space::{ADDRESSES, owned};
use super::words::Words;
use crate::compile::recorded::{Recorded, RecordedKind};

/// Longest constant that the tensor library keeps on the device for the recordings of a thread, in bytes.
const MAX_CONSTANT_BYTES: usize = 4096;

/// An allocation outside of a graph that some node points at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outside {
    /// First byte.
    pub address: u64,
    /// Length.
    pub bytes: usize,
    /// The first kernel that has an address of it among its arguments; none where it is only filled or copied.
    pub kernel: Option<String>,
    /// Whether it is a constant of the tensor library for all one can see: no longer than one, and only copied from. Such
    /// constants live as long as the thread that recorded.
    pub is_constant: bool,
}

/// All allocations outside of the graph that nodes point at, by address. `allocation` says first address and length of
/// the allocation that an address lies in; none where it lies in none.
#[must_use]
pub fn outside(recorded: &Recorded, mut allocation: impl FnMut(u64) -> Option<(u64, usize)>) -> Vec<Outside> {
    let owned = owned(recorded);
    let is_owned = |address: u64| owned.range(..=address).next_back().is_some_and(|(_, &end)| end > address);
    let mut found: BTreeMap<u64, Outside> = BTreeMap::new();
    let mut numbers = BTreeSet::new();
    let mut see = |address: u64, kernel: Option<&str>, is_copied_from: bool| {
        if !ADDRESSES.contains(&address) || is_owned(address) || numbers.contains(&address) {
            return;
        }
        let known = found.range(..=address).next_back().filter(|(base, of)| address - **base < of.bytes as u64);
        let place = known.map(|(base, of)| (*base, of.bytes)).or_else(|| allocation(address));
        let Some((base, bytes)) = place else {
            numbers.insert(address);
            return;
        };
        let new = Outside { address: base, bytes, kernel: None, is_constant: bytes <= MAX_CONSTANT_BYTES };
        let of = found.entry(base).or_insert(new);
        of.is_constant &= is_copied_from;
        if of.kernel.is_none() {
            of.kernel = kernel.map(str::to_owned);
        }
    };
    for node in &recorded.nodes {
        match &node.kind {
            RecordedKind::Kernel { name, arguments, .. } => {
                Words::of(arguments).full().for_each(|(_, word)| see(word, Some(name), false));
            }
            RecordedKind::Memset { address, .. } => see(*address, None, false),
            RecordedKind::Copy { source, destination, .. } => {
                see(*source, None, true);
                see(*destination, None, false);
            }
            RecordedKind::Alloc { .. } | RecordedKind::Free { .. } | RecordedKind::Empty | RecordedKind::Other(_) => {}
        }
    }
    found.into_values().collect()
}
