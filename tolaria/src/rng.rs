//! Random numbers: independent streams that follow from the seed of the run, what they are for, and an index.
//!
//! Nothing of a generator needs to be saved: the stream of an index is a pure function. The arithmetic is spelled out
//! here, so that a newer version of a dependency cannot change the order of samples of a resumed run.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// What the numbers are for; streams for different purposes are independent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The order of samples; the index is the epoch.
    SampleOrder,
    /// The samples that are drawn by weight; the index is the epoch.
    SampleDraw,
    /// The order of projections; the index is the optimizer step.
    ProjectionOrder,
}

impl Purpose {
    const fn tag(self) -> [u8; 16] {
        match self {
            Self::SampleOrder => *b"sample order    ",
            Self::SampleDraw => *b"sample draw     ",
            Self::ProjectionOrder => *b"projection order",
        }
    }
}

/// The stream of (`seed`, `purpose`, `index`).
pub(crate) fn stream(seed: u64, purpose: Purpose, index: u64) -> ChaCha8Rng {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    key[8..24].copy_from_slice(&purpose.tag());
    let mut rng = ChaCha8Rng::from_seed(key);
    rng.set_stream(index);
    rng
}

/// Fisher-Yates: every order is equally likely. At most `u32::MAX` items.
pub(crate) fn shuffle<T>(items: &mut [T], rng: &mut impl Rng) {
    for last in (1..items.len()).rev() {
        let bound = u32::try_from(last + 1).expect("at most u32::MAX items are shuffled");
        items.swap(last, below(bound, || rng.next_u32()) as usize);
    }
}

/// Uniform in `0..bound` without bias (Lemire 2019, arXiv 1805.10941), from uniform words. `bound` is above 0.
pub(crate) fn below(bound: u32, mut next: impl FnMut() -> u32) -> u32 {
    let threshold = bound.wrapping_neg() % bound;
    loop {
        let product = u64::from(next()) * u64::from(bound);
        if product & 0xFFFF_FFFF >= u64::from(threshold) {
            return (product >> 32) as u32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(seed: u64, purpose: Purpose, index: u64) -> Vec<u32> {
        let mut items: Vec<u32> = (0..16).collect();
        shuffle(&mut items, &mut stream(seed, purpose, index));
        items
    }

    #[test]
    fn a_stream_depends_on_its_seed_purpose_and_index_alone() {
        let straight = order(7, Purpose::SampleOrder, 3);
        assert_eq!(straight, order(7, Purpose::SampleOrder, 3));
        for other in [
            order(8, Purpose::SampleOrder, 3),
            order(7, Purpose::ProjectionOrder, 3),
            order(7, Purpose::SampleOrder, 4),
        ] {
            assert_ne!(straight, other);
        }
    }

    #[test]
    fn the_order_never_changes_between_versions() {
        // From an implementation of ChaCha8, Lemire and Fisher-Yates in another language.
        let expected = [1, 13, 6, 8, 5, 2, 11, 15, 10, 7, 9, 0, 12, 14, 3, 4];
        assert_eq!(order(0, Purpose::SampleOrder, 0), expected);
    }

    #[test]
    fn every_order_is_equally_likely() {
        let mut counts = std::collections::BTreeMap::new();
        for index in 0..6000 {
            let mut items = [0_u8, 1, 2];
            shuffle(&mut items, &mut stream(1, Purpose::ProjectionOrder, index));
            *counts.entry(items).or_insert(0_u32) += 1;
        }
        // Five standard deviations of a count of 6000 draws with probability 1/6.
        assert!(counts.len() == 6 && counts.values().all(|count| count.abs_diff(1000) < 145), "{counts:?}");
    }
}
