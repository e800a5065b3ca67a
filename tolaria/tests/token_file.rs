//! An epoch over a file of tokens needs memory for the order of its windows and for those under way, not for the file.
#![expect(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::io::Write as _;
use std::num::NonZeroUsize;

use leyline::id::EpochIndex;
use leyline::source::{SamplesMut, Source as _};
use tolaria::batch::Sampler;
use tolaria::batch::source::{Element, TokenLayout, TokenSource};

const FILE_BYTES: usize = 24 << 20;
const WINDOW: usize = 1023;
const VOCABULARY: u32 = 50_000;
/// What an epoch may add to the memory of the process: a third of the file.
const MOST_KIB: u64 = 8 << 10;

/// The most that was ever resident, KiB.
fn most_resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

fn token(index: usize) -> u16 {
    u16::try_from((index * 31 + index / 1009) % VOCABULARY as usize).unwrap()
}

#[test]
fn an_epoch_reads_every_window_of_a_file_in_less_memory_than_the_file_has() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let block = 1 << 19;
    for start in (0..FILE_BYTES / 2).step_by(block) {
        let bytes: Vec<u8> = (start..start + block).flat_map(|index| token(index).to_le_bytes()).collect();
        file.write_all(&bytes).unwrap();
    }
    let count = |n| NonZeroUsize::new(n).unwrap();
    let layout = TokenLayout { element: Element::U16, window: count(WINDOW), vocabulary: count(VOCABULARY as usize) };
    let before = most_resident();
    let source = TokenSource::open(file.path(), layout).unwrap();
    let order = Sampler::new(1).permutation(EpochIndex(0), source.len());
    let (mut inputs, mut targets) = (vec![0_u32; 64 * WINDOW], vec![0_u32; 64 * WINDOW]);
    let mut num_read = 0;
    for samples in order.chunks(64) {
        let len = samples.len() * WINDOW;
        source.read(samples, &mut SamplesMut::new(&mut inputs[..len], &mut targets[..len])).unwrap();
        let first = samples[0] as usize * WINDOW;
        assert_eq!((inputs[0], targets[WINDOW - 1]), (u32::from(token(first)), u32::from(token(first + WINDOW))));
        num_read += samples.len();
    }
    assert_eq!(num_read, (FILE_BYTES / 2 - 1) / WINDOW);
    let added = most_resident() - before;
    assert!(added < MOST_KIB, "an epoch over {} KiB made {added} KiB resident", FILE_BYTES >> 10);
}
