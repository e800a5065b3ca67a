//! Attribution of each sample of a batch.

use leyline::id::SeedId;
use leyline::seed::{Attribution, AttributionError, AttributionMode};

/// Weights of the samples of one batch; what a row leaves of 1 is the host share of that sample.
#[derive(Debug, Clone, PartialEq)]
pub struct SampleAttribution {
    used: AttributionMode,
    num_samples: usize,
    seeds: Vec<SeedId>,
    weights: Vec<f64>,
}

impl SampleAttribution {
    /// `weights` are shares (B, S), each row of sum at most 1.
    pub(super) fn new(used: AttributionMode, num_samples: usize, seeds: Vec<SeedId>, weights: Vec<f64>) -> Self {
        debug_assert_eq!(weights.len(), num_samples * seeds.len(), "shares are (B, S)");
        Self { used, num_samples, seeds, weights }
    }

    /// The same `attribution` for every sample.
    pub(super) fn repeated(attribution: &Attribution, num_samples: usize) -> Self {
        let (seeds, row): (Vec<SeedId>, Vec<f64>) = attribution.weights().iter().copied().unzip();
        let weights = std::iter::repeat_n(row, num_samples).flatten().collect();
        Self::new(attribution.used(), num_samples, seeds, weights)
    }

    /// The mode that produced the weights.
    #[must_use]
    pub fn used(&self) -> AttributionMode {
        self.used
    }

    /// Samples of the batch (B).
    #[must_use]
    pub fn num_samples(&self) -> usize {
        self.num_samples
    }

    /// The seeds that act (S), ordered by id.
    #[must_use]
    pub fn seeds(&self) -> &[SeedId] {
        &self.seeds
    }

    /// Weights in `[0, 1]`, (B, S) row-major.
    #[must_use]
    pub fn weights(&self) -> &[f64] {
        &self.weights
    }

    /// The weights of one sample (S); none beyond the batch.
    #[must_use]
    pub fn row(&self, sample: usize) -> Option<&[f64]> {
        let num_seeds = self.seeds.len();
        (sample < self.num_samples).then(|| &self.weights[sample * num_seeds..(sample + 1) * num_seeds])
    }

    /// The mean over the samples.
    ///
    /// # Errors
    /// [`AttributionError`] when rule SM-4 is broken.
    pub fn mean(&self) -> Result<Attribution, AttributionError> {
        if self.seeds.is_empty() || self.num_samples == 0 {
            return Ok(Attribution::host_only());
        }
        let mut sums = vec![0.0; self.seeds.len()];
        for row in self.weights.chunks_exact(self.seeds.len()) {
            sums.iter_mut().zip(row).for_each(|(sum, weight)| *sum += weight);
        }
        #[expect(clippy::cast_precision_loss, reason = "a batch has far fewer than 2^53 samples")]
        let num_samples = self.num_samples as f64;
        let means = self.seeds.iter().zip(sums).map(|(&seed, sum)| (seed, sum / num_samples));
        Attribution::new(self.used, means.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_is_that_of_each_column() {
        let seeds = vec![SeedId(1), SeedId(4)];
        let shares = vec![0.25, 0.5, 0.75, 0.0];
        let samples = SampleAttribution::new(AttributionMode::Probe, 2, seeds, shares);
        assert_eq!((samples.row(1), samples.row(2)), (Some([0.75, 0.0].as_slice()), None));
        let mean = samples.mean().unwrap();
        assert_eq!(
            (mean.used(), mean.weights()),
            (AttributionMode::Probe, [(SeedId(1), 0.5), (SeedId(4), 0.25)].as_slice())
        );
    }

    #[test]
    fn without_seeds_every_sample_is_the_hosts() {
        let samples = SampleAttribution::repeated(&Attribution::host_only(), 3);
        assert_eq!((samples.num_samples(), samples.row(2)), (3, Some([].as_slice())));
        assert_eq!(samples.mean().unwrap(), Attribution::host_only());
    }
}
