//! Every sample once, all orders equally likely.

use leyline::id::EpochIndex;

use crate::rng::{self, Purpose};

/// Orders samples; the order of an epoch is a pure function of (seed, epoch), so a resume needs no generator state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sampler {
    seed: u64,
}

impl Sampler {
    /// Orders that follow from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { seed }
    }

    /// A permutation of `0..num_samples`, uniform over all permutations.
    ///
    /// # Panics
    /// For more samples than `u32` can number; a [`Dataset`](crate::batch::Dataset) never has them.
    #[must_use]
    pub fn permutation(&self, epoch: EpochIndex, num_samples: usize) -> Vec<u32> {
        let num_samples = u32::try_from(num_samples).expect("a data set has at most u32::MAX samples");
        let mut order: Vec<u32> = (0..num_samples).collect();
        rng::shuffle(&mut order, &mut rng::stream(self.seed, Purpose::SampleOrder, epoch.0));
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_epoch_has_its_own_order_of_the_same_samples() {
        let sampler = Sampler::new(3);
        let epochs: Vec<Vec<u32>> = (0..4).map(|epoch| sampler.permutation(EpochIndex(epoch), 50)).collect();
        for (index, order) in epochs.iter().enumerate() {
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert!(sorted.iter().copied().eq(0..50), "epoch {index} is no permutation");
            assert!(!epochs[..index].contains(order), "epoch {index} repeats an order");
        }
        assert_eq!(epochs[2], Sampler::new(3).permutation(EpochIndex(2), 50), "a resume sees another order");
        assert_ne!(epochs[2], Sampler::new(4).permutation(EpochIndex(2), 50));
    }

    #[test]
    fn no_samples_and_one_sample_have_one_order() {
        assert_eq!(Sampler::new(0).permutation(EpochIndex(0), 0), [0_u32; 0]);
        assert_eq!(Sampler::new(0).permutation(EpochIndex(9), 1), [0]);
    }
}
