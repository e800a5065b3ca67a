//! How much of a microbatch's loss each seed is responsible for.

use serde::{Deserialize, Serialize};

use crate::id::SeedId;

/// How the weights were found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttributionMode {
    /// Everything belongs to the host.
    HostOnly,
    /// A fixed weight per stage.
    Stage,
    /// In proportion to alpha.
    #[default]
    Alpha,
    /// In proportion to the norm of the seed's share of its slot's output, per batch.
    Contribution,
    /// In proportion to the change of the batch's loss when the seed is switched off.
    Probe,
}

/// Weights that break rule SM-4.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum AttributionError {
    /// A weight is negative or not finite.
    #[error("the weight of {seed} is {weight}: expected a finite number of at least 0")]
    Weight {
        /// The seed.
        seed: SeedId,
        /// Its weight.
        weight: f64,
    },
    /// The weights exceed 1 together.
    #[error("the weights sum to {sum}: expected at most 1")]
    Sum {
        /// Their sum.
        sum: f64,
    },
    /// A seed is named twice, or the order is not by id.
    #[error("{seed} is out of order or named twice")]
    Order {
        /// The seed.
        seed: SeedId,
    },
}

/// Weights of one microbatch; the host share is what they leave of 1.
#[derive(Debug, Clone, PartialEq)]
pub struct Attribution {
    used: AttributionMode,
    weights: Vec<(SeedId, f64)>,
}

impl Attribution {
    /// Rounding slack for the sum of weights.
    const SUM_SLACK: f64 = 1e-9;

    /// Checks and keeps the weights, ordered by seed id. `used` is the mode that really produced them.
    ///
    /// # Errors
    /// [`AttributionError`] when SM-4 is broken.
    pub fn new(used: AttributionMode, weights: Vec<(SeedId, f64)>) -> Result<Self, AttributionError> {
        let mut sum = 0.0;
        for &(seed, weight) in &weights {
            if !(weight.is_finite() && weight >= 0.0) {
                return Err(AttributionError::Weight { seed, weight });
            }
            sum += weight;
        }
        if let Some(pair) = weights.windows(2).find(|pair| pair[0].0 >= pair[1].0) {
            return Err(AttributionError::Order { seed: pair[1].0 });
        }
        if sum > 1.0 + Self::SUM_SLACK {
            return Err(AttributionError::Sum { sum });
        }
        Ok(Self { used, weights })
    }

    /// Everything belongs to the host.
    #[must_use]
    pub fn host_only() -> Self {
        Self { used: AttributionMode::HostOnly, weights: Vec::new() }
    }

    /// The mode that produced the weights.
    #[must_use]
    pub fn used(&self) -> AttributionMode {
        self.used
    }

    /// Weights in `[0, 1]`, ordered by seed id.
    #[must_use]
    pub fn weights(&self) -> &[(SeedId, f64)] {
        &self.weights
    }

    /// What no seed is responsible for, in `[0, 1]`.
    #[must_use]
    pub fn host_share(&self) -> f64 {
        (1.0 - self.weights.iter().map(|(_, weight)| weight).sum::<f64>()).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(weights: &[(u32, f64)], host_share: Option<f64>) {
        let weights = weights.iter().map(|&(id, w)| (SeedId(id), w)).collect();
        let built = Attribution::new(AttributionMode::Alpha, weights);
        match host_share {
            Some(share) => assert!((built.unwrap().host_share() - share).abs() < 1e-12),
            None => assert!(built.is_err()),
        }
    }

    #[test]
    fn the_rest_is_the_host_share() {
        check(&[], Some(1.0));
        check(&[(1, 0.25), (4, 0.5)], Some(0.25));
        check(&[(1, 1.0)], Some(0.0));
    }

    #[test]
    fn broken_weights_are_refused() {
        check(&[(1, -0.1)], None);
        check(&[(1, f64::NAN)], None);
        check(&[(1, 0.6), (2, 0.6)], None);
        check(&[(2, 0.1), (1, 0.1)], None);
        check(&[(1, 0.1), (1, 0.1)], None);
    }
}
