//! The time that memory alone takes: bytes that must move over bytes per second that the machine moved.

use std::hint::black_box;
use std::time::Duration;

use leyline::clock::Clock;

/// Bytes of an element.
const ELEMENT: usize = size_of::<f32>();
/// Elements of a buffer for the bandwidth: 256 MiB, beyond any cache.
const BUFFER_LEN: usize = 1 << 26;
const REPETITIONS: usize = 7;
const LANES: usize = 32;

/// Bytes that a combination of K rows of P elements must move, whatever computes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Traffic {
    /// Rows (K).
    pub(crate) num_rows: usize,
    /// Elements of a row (P).
    pub(crate) num_elements: usize,
}

impl Traffic {
    /// Two reads of all rows and a write of the result: (2K + 1) 4P.
    pub(crate) fn combine_bytes(self) -> usize {
        (2 * self.num_rows + 1) * ELEMENT * self.num_elements
    }

    /// Two reads of all rows, and parameter and two moments read and written: (2K + 6) 4P.
    pub(crate) fn fused_adam_w_bytes(self) -> usize {
        (2 * self.num_rows + 6) * ELEMENT * self.num_elements
    }
}

/// Bytes per second that were moved, by the kind of loop.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Bandwidth {
    /// One buffer read.
    pub(crate) read: f64,
    /// One buffer copied to another: both count.
    pub(crate) copy: f64,
    /// One buffer added to another: two reads and a write count.
    pub(crate) update: f64,
}

impl Bandwidth {
    /// The fastest of the kinds, which no work is expected to exceed.
    pub(crate) fn best(self) -> f64 {
        self.read.max(self.copy).max(self.update)
    }

    /// The least time for so many bytes, µs.
    pub(crate) fn floor_us(self, num_bytes: usize) -> f64 {
        num_bytes as f64 / self.best() * 1e6
    }

    /// Measures this machine's memory with so many threads, each in a part of its own.
    pub(crate) fn of_memory(num_threads: usize, clock: &dyn Clock) -> Self {
        Self::with_buffers(BUFFER_LEN, num_threads, clock)
    }

    fn with_buffers(len: usize, num_threads: usize, clock: &dyn Clock) -> Self {
        // Not zeros: pages that were never written would all be one page.
        let (mut to, from) = (vec![1.0_f32; len], vec![2.0_f32; len]);
        let part = len.div_ceil(num_threads.max(1)).max(1);
        let passes = |count: usize, seconds: f64| (count * ELEMENT * len) as f64 / seconds;
        let read = fastest(clock, || {
            std::thread::scope(|scope| {
                for from in from.chunks(part) {
                    scope.spawn(|| black_box(sum(black_box(from))));
                }
            });
        });
        let mut over_pairs = |work: fn(&mut [f32], &[f32])| {
            fastest(clock, || {
                std::thread::scope(|scope| {
                    for (to, from) in to.chunks_mut(part).zip(from.chunks(part)) {
                        scope.spawn(move || work(black_box(to), black_box(from)));
                    }
                });
            })
        };
        let copy = over_pairs(|to, from| to.copy_from_slice(from));
        let update = over_pairs(|to, from| to.iter_mut().zip(from).for_each(|(to, from)| *to += from));
        Self { read: passes(1, read), copy: passes(2, copy), update: passes(3, update) }
    }
}

/// Seconds of the fastest repetition: whatever else the machine does only slows one down.
fn fastest(clock: &dyn Clock, mut work: impl FnMut()) -> f64 {
    let mut best = Duration::MAX;
    for _ in 0..REPETITIONS {
        let started = clock.now();
        work();
        best = best.min(clock.now() - started);
    }
    best.as_secs_f64()
}

fn sum(values: &[f32]) -> f32 {
    let mut lanes = [0.0_f32; LANES];
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            lanes[lane] += chunk[lane];
        }
    }
    lanes.iter().chain(rest).sum()
}

#[cfg(test)]
mod tests {
    use leyline::clock::SystemClock;

    use super::*;

    #[test]
    fn bytes_are_those_of_two_passes() {
        let traffic = Traffic { num_rows: 8, num_elements: 1_000_000 };
        assert_eq!((traffic.combine_bytes(), traffic.fused_adam_w_bytes()), (68_000_000, 88_000_000));
        let one = Traffic { num_rows: 1, num_elements: 3 };
        assert_eq!((one.combine_bytes(), one.fused_adam_w_bytes()), (36, 96));
    }

    #[test]
    fn the_floor_is_that_of_the_fastest_kind() {
        let bandwidth = Bandwidth { read: 2e9, copy: 4e9, update: 3e9 };
        assert!((bandwidth.floor_us(68_000_000) - 17_000.0).abs() < 1e-6);
    }

    #[test]
    fn every_kind_moves_bytes_with_any_number_of_threads() {
        for num_threads in [0, 1, 3] {
            let found = Bandwidth::with_buffers(10_007, num_threads, &SystemClock::new());
            for rate in [found.read, found.copy, found.update] {
                assert!(rate > 0.0, "{found:?} with {num_threads} threads");
            }
        }
    }

    #[test]
    fn a_sum_takes_every_value_in() {
        assert!((sum(&[0.5_f32; 71]) - 35.5).abs() < 1e-6);
    }
}
