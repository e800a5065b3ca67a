//! Two recordings of one region, and what may differ between them.

use super::recordings::{Device, alloc, chain, free, kernel, single, unary, word, words, zeros};
use crate::compile::{Lifted, Recorded, RecordedKind, TwinError, compare_twins, lift};

const INPUT: u64 = 0x100_0000;
const RESULT: u64 = 0x200_0000;

fn device() -> Device {
    Device::with(&[(INPUT, 256), (RESULT, 256)]).holding(INPUT, &[2, 2, 1, 2])
}

/// A region with its block at an address, and a number in the arguments of its unknown kernel.
fn recording(block: u64, number: u64) -> Recorded {
    chain(vec![
        alloc(block, 64),
        zeros(block, 64),
        unary("uexp_f32", 16, RESULT, block),
        kernel("mystery", vec![single(2.0), [word(number), word(block + 8)].concat()]),
        RecordedKind::Copy { source: block, destination: RESULT, bytes: 16 },
        free(block),
    ])
}

fn compare(first: &Recorded, second: &Recorded) -> Result<usize, TwinError> {
    let lifted = |recorded: &Recorded| -> Lifted { lift(recorded, &mut device()).unwrap() };
    compare_twins((first, &lifted(first)), (second, &lifted(second)))
}

const HERE: u64 = 0x7000_0000;
const THERE: u64 = 0x7100_0000;

#[test]
fn addresses_that_move_with_their_block_are_counted() {
    let (first, second) = (recording(HERE, 5), recording(THERE, 5));
    // Allocation, memset, two kernels, copy, release.
    assert_eq!(compare(&first, &second), Ok(6));
    assert_eq!(compare(&first, &first), Ok(0));
}

#[test]
fn the_order_of_releases_may_differ() {
    let recording = |block: u64, releases: [u64; 2]| {
        let [first, second] = releases;
        chain(vec![
            alloc(block, 64),
            alloc(block + 64, 64),
            zeros(block, 64),
            free(block + first),
            free(block + second),
        ])
    };
    assert_eq!(compare(&recording(HERE, [0, 64]), &recording(THERE, [64, 0])), Ok(5));
    // A block is not released before its last use, and so not in another place.
    let mut early = recording(THERE, [64, 0]);
    early.nodes.swap(2, 3);
    let early = chain(early.nodes.into_iter().map(|node| node.kind).collect());
    assert_eq!(compare(&recording(HERE, [64, 0]), &early), Err(TwinError::Node { node: 2 }));
}

#[test]
fn a_number_that_looks_like_an_address_is_found() {
    let address = |byte| TwinError::Address { node: 3, kernel: "mystery".into(), argument: 1, byte };
    assert_eq!(compare(&recording(HERE, HERE + 4), &recording(THERE, HERE + 4)), Err(address(0)));
    assert_eq!(compare(&recording(HERE, THERE), &recording(THERE, THERE)), Err(address(0)));
    // Inside both blocks, but not in one place.
    assert_eq!(compare(&recording(HERE, HERE + 40), &recording(HERE + 32, HERE + 40)), Err(address(0)));
    // Outside the graph it points to the same memory both times, and nothing is lost.
    assert_eq!(compare(&recording(HERE, INPUT), &recording(THERE, INPUT)), Ok(6));
}

#[test]
fn an_address_that_was_missed_and_a_changed_number_are_found() {
    let byte = |byte| Err(TwinError::Byte { node: 3, kernel: "mystery".into(), argument: 1, byte });
    assert_eq!(compare(&recording(HERE, 5), &recording(THERE, 6)), byte(0));
    assert_eq!(compare(&recording(HERE, 5), &recording(THERE, 0x105)), byte(1));
    let mut second = recording(THERE, 5);
    if let RecordedKind::Kernel { arguments, .. } = &mut second.nodes[3].kind {
        arguments[0][3] ^= 1;
    }
    let changed = TwinError::Byte { node: 3, kernel: "mystery".into(), argument: 0, byte: 3 };
    assert_eq!(compare(&recording(HERE, 5), &second), Err(changed));
}

#[test]
fn every_other_difference_has_its_error() {
    let changed = |change: fn(&mut Recorded)| {
        let mut second = recording(THERE, 5);
        change(&mut second);
        compare(&recording(HERE, 5), &second)
    };
    let node = |node| Err(TwinError::Node { node });
    let launch = Err(TwinError::Launch { node: 3, kernel: "mystery".into() });
    assert_eq!(changed(|of| of.nodes.truncate(0)), Err(TwinError::NumNodes { first: 6, second: 0 }));
    assert_eq!(changed(|of| of.nodes[4].kind = RecordedKind::Empty), node(4));
    assert_eq!(changed(|of| of.nodes[4].dependencies = vec![2, 3]), node(4));
    assert_eq!(changed(|of| of.nodes[1].kind = zeros(THERE, 63)), node(1));
    assert_eq!(changed(|of| of.nodes[0].kind = alloc(THERE, 128)), node(0));
    assert_eq!(changed(|of| of.nodes[3].kind = words("mystery", &[THERE])), launch);
    assert_eq!(
        changed(|of| {
            if let RecordedKind::Kernel { launch, .. } = &mut of.nodes[3].kind {
                launch.grid[2] = 7;
            }
        }),
        launch
    );
    let moved = |of: &mut Recorded| {
        of.nodes[4].kind = RecordedKind::Copy { source: THERE + 8, destination: RESULT, bytes: 16 };
    };
    assert!(matches!(changed(moved), Err(TwinError::Operation { .. })));
    let elsewhere = |of: &mut Recorded| {
        of.nodes[4].kind = RecordedKind::Copy { source: THERE, destination: INPUT, bytes: 16 };
    };
    assert!(matches!(changed(elsewhere), Err(TwinError::Block { .. })));
}

#[test]
fn dimensions_that_changed_between_the_recordings_are_found() {
    let recorded = chain(vec![kernel("uexp_f32", [4, 2, INPUT, RESULT, RESULT + 64].map(word).to_vec())]);
    let first = lift(&recorded, &mut device()).unwrap();
    let second = lift(&recorded, &mut device().holding(INPUT, &[2, 2, 2, 1])).unwrap();
    assert_eq!(compare_twins((&recorded, &first), (&recorded, &first)), Ok(0));
    let changed = Err(TwinError::Effect { node: 0, kernel: "uexp_f32".into() });
    assert_eq!(compare_twins((&recorded, &first), (&recorded, &second)), changed);
}
