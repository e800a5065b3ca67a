//! What a recording points at and does not own.

use super::recordings::{alloc, chain, free, kernel, single, word, zeros};
use crate::compile::{Outside, RecordedKind, outside};

const WEIGHT: u64 = 0x100_0000;
const SMALL: u64 = 0x200_0000;
const RESULT: u64 = 0x300_0000;
const OWN: u64 = 0x7000_0000;

/// Allocations of 8 KiB, and a small one.
fn allocation(address: u64) -> Option<(u64, usize)> {
    let all = [(WEIGHT, 8192), (SMALL, 256), (RESULT, 8192)];
    all.into_iter().find(|&(base, bytes)| (base..base + bytes as u64).contains(&address))
}

fn found(kinds: Vec<RecordedKind>) -> Vec<Outside> {
    outside(&chain(kinds), allocation)
}

fn of(address: u64, kernel: Option<&str>, is_constant: bool) -> Outside {
    let bytes = allocation(address).unwrap().1;
    Outside { address, bytes, kernel: kernel.map(str::to_owned), is_constant }
}

fn copy(source: u64, destination: u64) -> RecordedKind {
    RecordedKind::Copy { source, destination, bytes: 16 }
}

#[test]
fn every_allocation_is_found_once_with_the_first_kernel_that_points_into_it() {
    let kinds = vec![
        alloc(OWN, 64),
        kernel("first", vec![word(WEIGHT + 8), single(1.0), word(OWN), word(7), word(WEIGHT)]),
        kernel("second", vec![[word(3), word(RESULT + 8191)].concat(), word(WEIGHT + 16), word(OWN + 63)]),
        free(OWN),
    ];
    assert_eq!(found(kinds), [of(WEIGHT, Some("first"), false), of(RESULT, Some("second"), false)]);
}

#[test]
fn small_memory_that_is_only_copied_from_is_taken_for_a_constant() {
    let used = |kinds: Vec<RecordedKind>| found([vec![alloc(OWN, 64), copy(SMALL, OWN)], kinds].concat())[0].clone();
    assert_eq!(used(vec![]), of(SMALL, None, true));
    assert_eq!(used(vec![copy(SMALL + 16, OWN)]), of(SMALL, None, true));
    // Also read by a kernel, or written in any way.
    assert_eq!(used(vec![kernel("k", vec![word(SMALL)])]), of(SMALL, Some("k"), false));
    assert_eq!(used(vec![copy(OWN, SMALL)]), of(SMALL, None, false));
    assert_eq!(used(vec![zeros(SMALL + 8, 8)]), of(SMALL, None, false));
    // Longer than a constant.
    assert_eq!(found(vec![copy(WEIGHT, RESULT)]), [of(WEIGHT, None, false), of(RESULT, None, false)]);
}

#[test]
fn numbers_and_memory_of_the_graph_are_not_outside() {
    let stale = vec![alloc(OWN, 64), free(OWN), kernel("k", vec![word(OWN + 8), word(0x400_0000), word(5)])];
    assert_eq!(found(stale), []);
}
