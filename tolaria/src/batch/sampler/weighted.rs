//! Draws with replacement, by weight.

use leyline::id::EpochIndex;
use rand::Rng as _;

use crate::rng::{self, Purpose};

/// The weights of all samples, added up: sample i has the interval from the sum before it to its own.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Weighted {
    sums: Vec<f64>,
}

impl Weighted {
    /// # Errors
    /// Why no sample can be drawn by these weights, with the first that cannot be used.
    pub(crate) fn new(weights: impl IntoIterator<Item = f64>) -> Result<Self, String> {
        let mut sums = Vec::new();
        let mut sum = 0.0;
        for (sample, weight) in weights.into_iter().enumerate() {
            if !(weight >= 0.0 && weight.is_finite()) {
                return Err(format!("weights from 0 on, found {weight} for sample {sample}"));
            }
            sum += weight;
            sums.push(sum);
        }
        if sum > 0.0 && sum.is_finite() {
            Ok(Self { sums })
        } else {
            Err(format!("weights with a finite sum above 0, found the sum {sum}"))
        }
    }

    /// One over the number of samples of its class, so that each class that occurs is as likely as any other one.
    pub(crate) fn inverse_frequency(classes: &[u32]) -> Result<Self, String> {
        let mut counts = std::collections::BTreeMap::new();
        for class in classes {
            *counts.entry(class).or_insert(0.0) += 1.0;
        }
        Self::new(classes.iter().map(|class| 1.0 / counts[class]))
    }

    /// As many draws as there are samples.
    pub(crate) fn draw(&self, seed: u64, epoch: EpochIndex) -> Vec<u32> {
        let mut rng = rng::stream(seed, Purpose::SampleDraw, epoch.0);
        let total = self.sums.last().copied().unwrap_or_default();
        // A product that is rounded up to the total would be behind the last sample of any weight.
        let last = self.sums.partition_point(|sum| *sum < total);
        let mut one = || {
            // 53 bits: all that an f64 below 1 can tell apart.
            let uniform = (rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
            let sample = self.sums.partition_point(|sum| *sum <= uniform * total);
            u32::try_from(sample.min(last)).expect("a data set has at most u32::MAX samples")
        };
        (0..self.sums.len()).map(|_| one()).collect()
    }

    /// For comparison with those of another run.
    pub(crate) fn digest(&self) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new();
        for sum in &self.sums {
            hasher.update(&sum.to_bits().to_le_bytes());
        }
        hasher.finalize()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Draws of each sample over some epochs.
    fn counts(weighted: &Weighted, epochs: u64) -> Vec<u32> {
        let mut counts = vec![0; weighted.sums.len()];
        for sample in (0..epochs).flat_map(|epoch| weighted.draw(3, EpochIndex(epoch))) {
            counts[sample as usize] += 1;
        }
        counts
    }

    #[track_caller]
    fn check(weights: &[f64]) {
        let counts = counts(&Weighted::new(weights.iter().copied()).unwrap(), 20_000);
        let (num_draws, total) = (20_000.0 * weights.len() as f64, weights.iter().sum::<f64>());
        for (sample, (weight, count)) in weights.iter().zip(&counts).enumerate() {
            let p = weight / total;
            // Five standard deviations of a binomial count.
            let bound = 5.0 * (num_draws * p * (1.0 - p)).sqrt();
            let (found, expected) = (f64::from(*count), num_draws * p);
            assert!(
                (found - expected).abs() <= bound,
                "{weights:?}: sample {sample} {found} times, expected {expected}"
            );
        }
    }

    #[test]
    fn samples_are_drawn_at_the_rates_of_their_weights_and_those_of_weight_zero_never() {
        check(&[1.0, 1.0, 1.0, 1.0]);
        check(&[0.0, 1.0, 3.0, 0.0, 6.0, 0.0]);
        check(&[1e-3, 5.0, 0.25]);
        check(&[7.0]);
    }

    #[test]
    fn classes_are_equally_likely_by_inverse_frequency() {
        let classes = [0, 0, 0, 0, 0, 0, 5, 5, 2];
        let counts = counts(&Weighted::inverse_frequency(&classes).unwrap(), 4000);
        for class in [0, 5, 2] {
            let of_class: u32 = classes.iter().zip(&counts).filter(|(c, _)| **c == class).map(|(_, count)| count).sum();
            // Five standard deviations of 36 000 draws with probability 1/3.
            assert!(of_class.abs_diff(12_000) < 447, "class {class}: {of_class}");
        }
    }

    #[test]
    fn an_epoch_is_drawn_again_as_it_was_and_others_differ() {
        let weighted = Weighted::new([1.0; 30]).unwrap();
        let epoch = |seed, epoch| weighted.draw(seed, EpochIndex(epoch));
        assert_eq!(epoch(1, 2), epoch(1, 2));
        assert!(epoch(1, 2) != epoch(1, 3) && epoch(1, 2) != epoch(2, 2));
    }

    #[test]
    fn weights_by_which_nothing_can_be_drawn_are_refused() {
        for (weights, text) in [
            (vec![1.0, -1.0], "found -1 for sample 1"),
            (vec![f64::NAN], "found NaN for sample 0"),
            (vec![f64::INFINITY], "found inf for sample 0"),
            (vec![0.0, 0.0], "found the sum 0"),
            (vec![f64::MAX, f64::MAX], "found the sum inf"),
            (vec![], "found the sum 0"),
        ] {
            let found = Weighted::new(weights.clone()).unwrap_err();
            assert!(found.contains(text), "{weights:?}: {found}");
        }
    }
}
