//! A region that is recorded again, and what tells it from the one that was recorded.

use super::recordings::{alloc, chain, free, kernel, single, word, zeros};
use crate::compile::{Recorded, RecordedKind, TwinError, compare_recordings, forget_stack};

const WEIGHT: u64 = 0x100_0000;
const HERE: u64 = 0x7000_0000;
const THERE: u64 = 0x7100_0000;

/// `x * heat`, then something with two operands in memory of the graph, at an address, and a number before a pointer in
/// one argument.
fn recording(block: u64, heat: f32) -> Recorded {
    chain(vec![
        alloc(block, 64),
        alloc(block + 64, 64),
        zeros(block, 64),
        kernel("affine_f32", vec![word(16), word(WEIGHT), word(block), single(heat), single(0.0)]),
        kernel("bsub_f32", vec![word(16), word(block), word(block + 64), [word(7), word(block + 8)].concat()]),
        RecordedKind::Copy { source: block, destination: WEIGHT, bytes: 64 },
        free(block),
        free(block + 64),
    ])
}

fn changed(node: usize, change: impl FnOnce(&mut RecordedKind)) -> Result<(), TwinError> {
    let mut second = recording(THERE, 1.0);
    change(&mut second.nodes[node].kind);
    compare_recordings(&recording(HERE, 1.0), &second)
}

fn arguments(kind: &mut RecordedKind) -> &mut Vec<Vec<u8>> {
    match kind {
        RecordedKind::Kernel { arguments, .. } => arguments,
        other => panic!("no kernel: {other:?}"),
    }
}

fn differing(node: usize, kernel: &str, argument: usize, before: Vec<u8>, now: Vec<u8>) -> TwinError {
    TwinError::Word { node, kernel: kernel.to_owned(), argument, byte: 0, before, now }
}

#[test]
fn a_region_that_only_moved_is_the_same() {
    let first = recording(HERE, 1.0);
    for second in [recording(HERE, 1.0), recording(THERE, 1.0), recording(HERE + 64, 1.0)] {
        assert_eq!(compare_recordings(&first, &second), Ok(()));
    }
}

#[test]
fn a_number_that_was_passed_by_value_and_moved_is_named() {
    let moved = compare_recordings(&recording(HERE, 1.0), &recording(THERE, 1.5)).unwrap_err();
    let expected = differing(3, "affine_f32", 3, single(1.0), single(1.5));
    assert_eq!(moved, expected);
    assert_eq!(
        moved.to_string(),
        "bytes 0 on of argument 3 of affine_f32 at node 3 were 0x3f800000 (1 as f32) and are 0x3fc00000 (1.5 as f32)"
    );
    let inside = changed(4, |kind| arguments(kind)[3][0] = 8);
    assert_eq!(inside, Err(differing(4, "bsub_f32", 3, word(7), word(8))));
}

#[test]
fn an_address_must_move_with_its_memory_and_stay_outside_of_the_graph() {
    let of = |node, argument, address: u64| changed(node, |kind| arguments(kind)[argument] = word(address));
    // Another tensor of the graph, operands that changed places, another tensor outside.
    assert_eq!(of(4, 1, THERE + 64), Err(differing(4, "bsub_f32", 1, word(HERE), word(THERE + 64))));
    assert_eq!(of(3, 1, WEIGHT + 256), Err(differing(3, "affine_f32", 1, word(WEIGHT), word(WEIGHT + 256))));
    // In memory of the graph both times, and not in the same.
    assert_eq!(of(4, 1, HERE), Err(differing(4, "bsub_f32", 1, word(HERE), word(HERE))));
    // The end of a block is an address, too.
    let ending = |block: u64| {
        let mut recorded = recording(block, 1.0);
        arguments(&mut recorded.nodes[4].kind)[3] = word(block + 128);
        recorded
    };
    assert_eq!(compare_recordings(&ending(HERE), &ending(THERE)), Ok(()));
}

#[test]
fn what_is_left_of_freed_memory_may_stay_or_move() {
    let recording = |block: u64, left: u64| {
        chain(vec![alloc(block, 64), zeros(block, 64), free(block), kernel("k", vec![word(WEIGHT), word(left)])])
    };
    for left in [HERE + 8, THERE + 8] {
        assert_eq!(compare_recordings(&recording(HERE, HERE + 8), &recording(THERE, left)), Ok(()));
    }
    assert!(compare_recordings(&recording(HERE, HERE + 8), &recording(THERE, THERE + 16)).is_err());
}

#[test]
fn memory_that_the_driver_gave_again_is_other_memory() {
    let recording = |block: u64, again: u64| {
        let kinds = vec![
            alloc(block, 64),
            zeros(block, 64),
            free(block),
            alloc(again, 128),
            zeros(again + 32, 64),
            free(again),
        ];
        chain(kinds)
    };
    assert_eq!(compare_recordings(&recording(HERE, HERE - 32), &recording(THERE, HERE)), Ok(()));
    let mut elsewhere = recording(THERE, HERE);
    elsewhere.nodes[4].kind = zeros(HERE + 40, 64);
    assert_eq!(compare_recordings(&recording(HERE, HERE - 32), &elsewhere), Err(TwinError::Node { node: 4 }));
}

#[test]
fn the_order_of_releases_may_differ() {
    let mut second = recording(THERE, 1.0);
    second.nodes[6].kind = free(THERE + 64);
    second.nodes[7].kind = free(THERE);
    assert_eq!(compare_recordings(&recording(HERE, 1.0), &second), Ok(()));
}

#[test]
fn other_work_is_another_region() {
    let node = |node| Err(TwinError::Node { node });
    assert_eq!(changed(2, |kind| *kind = zeros(THERE, 63)), node(2));
    assert_eq!(changed(2, |kind| *kind = zeros(THERE + 1, 64)), node(2));
    assert_eq!(changed(1, |kind| *kind = alloc(THERE + 64, 65)), node(1));
    assert_eq!(changed(5, |kind| *kind = RecordedKind::Empty), node(5));
    let copy = |source| RecordedKind::Copy { source, destination: WEIGHT, bytes: 64 };
    assert_eq!(changed(5, |kind| *kind = copy(THERE + 8)), node(5));
    let launch = |kernel: &str, node| Err(TwinError::Launch { node, kernel: kernel.to_owned() });
    assert_eq!(changed(3, |kind| drop(arguments(kind).pop())), launch("affine_f32", 3));
    assert_eq!(changed(4, |kind| *kind = kernel("badd_f32", Vec::new())), launch("bsub_f32", 4));
    let (mut shorter, first) = (recording(THERE, 1.0), recording(HERE, 1.0));
    shorter.nodes.pop();
    assert_eq!(compare_recordings(&first, &shorter), Err(TwinError::NumNodes { first: 8, second: 7 }));
}

#[test]
fn what_nobody_tells_cannot_be_compared() {
    let host = || chain(vec![RecordedKind::Other("host".to_owned())]);
    let untold = TwinError::Untold { node: 0, kind: "host".to_owned() };
    assert_eq!(compare_recordings(&host(), &host()), Err(untold));
}

#[test]
fn where_the_host_had_a_factor_on_its_stack_does_not_matter() {
    let stack = |top: u64| top - 4096..top;
    let recording = |factor_at: u64, number: u64| {
        let inside = [word(factor_at), word(number), vec![1, 2, 3]].concat();
        let mut recorded = chain(vec![kernel("splitKreduce", vec![single(1.0), word(factor_at - 8), inside])]);
        forget_stack(&mut recorded, &stack(factor_at + 100));
        recorded
    };
    let (here, there) = (0x7ffd_1000_0000, 0x7ffd_2000_0000);
    assert_eq!(compare_recordings(&recording(here, 3), &recording(there, 3)), Ok(()));
    let found = compare_recordings(&recording(here, 3), &recording(there, 4));
    assert!(matches!(found, Err(TwinError::Word { argument: 2, byte: 8, .. })), "{found:?}");
    // Above and far below of the region's frames it is an address as any other.
    assert!(compare_recordings(&recording(here, here + 100), &recording(there, there + 100)).is_err());
    assert!(compare_recordings(&recording(here, here - 4096), &recording(there, there - 4096)).is_err());
}
