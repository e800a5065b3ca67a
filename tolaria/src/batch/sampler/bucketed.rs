//! Orders in which neighbors have nearly the same length.

use leyline::id::EpochIndex;

use super::Sampler;
use crate::rng::{self, Purpose};

/// Added to the epoch for the order of windows, which is drawn apart from that of samples.
const WINDOW_ORDER: u64 = 1 << 63;

/// The permutation of the epoch, cut into pools of `pool` windows; within a pool samples are sorted by length, and windows come
/// in an order of their own. What the permutation leaves over for a short window stays at the end, sorted by itself.
///
/// With a pool of 1 it is the permutation but for the order within and of windows; with one pool over all samples lengths
/// differ least, and the same samples meet more often.
pub(super) fn order(seed: u64, epoch: EpochIndex, lengths: &[u32], window: usize, pool: usize) -> Vec<u32> {
    let mut samples = Sampler::new(seed).permutation(epoch, lengths.len());
    let num_full = samples.len() / window.max(1);
    // Set aside before anything is sorted: else the longest would be left over in every epoch.
    let (full, rest) = samples.split_at_mut(num_full * window);
    for pool in full.chunks_mut(window.saturating_mul(pool).max(1)).chain([rest]) {
        pool.sort_by_key(|sample| lengths[*sample as usize]);
    }
    let mut windows: Vec<usize> = (0..num_full).collect();
    rng::shuffle(&mut windows, &mut rng::stream(seed, Purpose::SampleOrder, epoch.0 | WINDOW_ORDER));
    let full = windows.iter().flat_map(|index| &samples[index * window..(index + 1) * window]);
    full.chain(&samples[num_full * window..]).copied().collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn lengths(count: u32) -> Vec<u32> {
        (0..count).map(|i| (i * 7919) % 503).collect()
    }

    /// Mean over windows of the longest minus the shortest of each.
    fn spread(order: &[u32], lengths: &[u32], window: usize) -> f64 {
        let of = |window: &[u32]| {
            let of_samples = window.iter().map(|sample| lengths[*sample as usize]);
            f64::from(of_samples.clone().max().unwrap() - of_samples.min().unwrap())
        };
        let full = order.chunks_exact(window);
        full.clone().map(of).sum::<f64>() / full.len() as f64
    }

    #[test]
    fn every_sample_comes_once_whatever_the_sizes() {
        for (count, window, pool) in [(100, 8, 3), (100, 8, 1), (7, 8, 2), (64, 8, 100), (0, 8, 2), (9, 1, 1)] {
            let mut order = order(1, EpochIndex(4), &lengths(count), window, pool);
            order.sort_unstable();
            assert!(order.iter().copied().eq(0..count), "{count} {window} {pool}");
        }
    }

    #[test]
    fn what_is_left_over_is_no_matter_of_length() {
        let lengths: Vec<u32> = (0..65).collect();
        let last = |epoch| *order(1, EpochIndex(epoch), &lengths, 64, 2).last().unwrap();
        let different: BTreeSet<u32> = (0..50).map(last).collect();
        assert!(different.len() > 20, "{different:?}");
    }

    #[test]
    fn lengths_within_a_window_differ_by_the_part_of_a_pool_that_it_is() {
        let lengths = lengths(4000);
        let spread_of = |pool| spread(&order(1, EpochIndex(0), &lengths, 20, pool), &lengths, 20);
        // Uniform lengths below 503: a window of a pool of p windows spans about 1/p of them. Twice that is the bound.
        let plain = spread(&Sampler::new(1).permutation(EpochIndex(0), 4000), &lengths, 20);
        assert!((400.0..503.0).contains(&plain) && (400.0..503.0).contains(&spread_of(1)), "{plain}");
        for pool in [4, 20, 200] {
            let found = spread_of(pool);
            assert!(found < 2.0 * 503.0 / pool as f64, "{pool}: {found}");
        }
    }

    #[test]
    fn windows_come_in_another_order_than_that_of_lengths_and_epochs_differ() {
        let lengths = lengths(400);
        let first = |epoch| -> Vec<u32> {
            let order = order(1, EpochIndex(epoch), &lengths, 10, 40);
            order.chunks(10).map(|window| lengths[window[0] as usize]).collect()
        };
        let mut sorted = first(0);
        sorted.sort_unstable();
        assert_ne!(first(0), sorted);
        assert_ne!(first(0), first(1));
        assert_eq!(first(1), first(1));
    }
}
