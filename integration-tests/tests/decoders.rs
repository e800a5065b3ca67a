//! Every decoder takes its samples and refuses whatever else, without a panic: bounded, seeded, without a fuzzer.
//!
//! `ESPER_FUZZ_EXECUTIONS=1000000 ESPER_FUZZ_ONLY=csv` for longer runs; `fuzz/` is guided by coverage. See `docs/testing.md`.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a helper of a test fails the test; long runs say what they did"
)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use integration_tests::decoders::{DECODERS, Decoder};
use leyline::clock::{Clock as _, SystemClock};
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Longest time for one input, on a machine that has other things to do.
const LIMIT: Duration = Duration::from_secs(10);
/// Bytes and numbers that readers trip over.
const INTERESTING: &[&[u8]] = &[
    b"\0",
    b"\xff",
    b"\n",
    b"\"",
    b",",
    b"-",
    b"[",
    b"{",
    b"1e999",
    b"NaN",
    b"null",
    b"-1",
    b"18446744073709551615",
    b"\xff\xff\xff\xff",
    b"\xff\xff\xff\xff\xff\xff\xff\x7f",
    b"\0\0\0\x80",
];

fn number(variable: &str, of_every_day: u64) -> u64 {
    std::env::var(variable).map_or(of_every_day, |text| text.parse().unwrap())
}

/// A sample with some places changed.
fn mutated(samples: &[Vec<u8>], rng: &mut impl Rng) -> Vec<u8> {
    let mut bytes = samples[rng.random_range(0..samples.len())].clone();
    for _ in 0..1 << rng.random_range(0..5_u32) {
        let at = rng.random_range(0..=bytes.len());
        let longest = 1 << rng.random_range(0..8_u32);
        let len = rng.random_range(0..=(bytes.len() - at).min(longest));
        match rng.random_range(0..8_u32) {
            0 | 1 if at < bytes.len() => bytes[at] ^= 1 << rng.random_range(0..8_u32),
            2 if at < bytes.len() => bytes[at] = rng.random(),
            3 => bytes.truncate(at),
            4 => drop(bytes.drain(at..at + len)),
            5 => {
                let copied = bytes[at..at + len].to_vec();
                let to = rng.random_range(0..=bytes.len());
                bytes.splice(to..to, copied);
            }
            6 => {
                let new = INTERESTING[rng.random_range(0..INTERESTING.len())];
                bytes.splice(at..(at + new.len()).min(bytes.len()), new.iter().copied());
            }
            _ => {
                let other = &samples[rng.random_range(0..samples.len())];
                let from = rng.random_range(0..=other.len());
                bytes.truncate(at);
                bytes.extend_from_slice(&other[from..]);
            }
        }
    }
    bytes
}

fn run(decoder: &Decoder, num_executions: u64) {
    let samples = (decoder.samples)();
    let mut rng = ChaCha8Rng::seed_from_u64(number("ESPER_FUZZ_SEED", 3));
    let (clock, mut longest, mut num_accepted) = (SystemClock::new(), Duration::ZERO, 0_u64);
    for execution in 0..num_executions {
        let input = samples.get(usize::try_from(execution).unwrap()).cloned();
        let input = input.unwrap_or_else(|| mutated(&samples, &mut rng));
        let began = clock.now();
        let read = catch_unwind(AssertUnwindSafe(|| (decoder.read)(&input)));
        let took = clock.now() - began;
        longest = longest.max(took);
        num_accepted += u64::from(matches!(read, Ok(true)));
        if read.is_err() || took > LIMIT {
            let path = std::env::temp_dir().join(format!("{}-{execution}.finding", decoder.name));
            std::fs::write(&path, &input).unwrap();
            panic!("{}: execution {execution} took {took:?}; its input is in {}", decoder.name, path.display());
        }
    }
    println!(
        "{}: {num_executions} executions, {num_accepted} accepted, in {:.1} s, the longest {longest:?}",
        decoder.name,
        clock.now().as_secs_f64()
    );
}

#[test]
fn no_decoder_panics_or_takes_long_whatever_its_bytes() {
    let only = std::env::var("ESPER_FUZZ_ONLY").ok();
    for decoder in DECODERS.iter().filter(|decoder| only.as_ref().is_none_or(|only| only == decoder.name)) {
        run(decoder, number("ESPER_FUZZ_EXECUTIONS", 150));
    }
}

#[test]
fn what_decoders_read_in_real_life_is_accepted() {
    for decoder in DECODERS {
        for (index, sample) in (decoder.samples)().iter().enumerate() {
            assert!((decoder.read)(sample), "{}, sample {index}", decoder.name);
        }
    }
}
