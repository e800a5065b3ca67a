//! What an aggregation came to.

use candle_core::Tensor;
use leyline::layout::Owner;

use super::pcgrad::Projection;
use super::shares::Shares;
use crate::grad::GradientLease;

/// The gradient of one optimizer step.
#[derive(Debug)]
pub struct Aggregated {
    /// The combined gradient, shape (P,).
    pub gradient: GradientLease,
    /// What no seed is responsible for, averaged over samples, in `[0, 1]`.
    pub host_share: f64,
    /// Conflicts between owners; absent when they were not looked for: by configuration, with one microbatch, or with
    /// one owner.
    pub conflicts: Option<ConflictReport>,
}

/// The gradient of one optimizer step, as device work leaves it.
#[derive(Debug)]
pub struct Combined {
    /// The combined gradient, shape (P,).
    pub gradient: GradientLease,
    /// Ordered pairs of owners with a negative inner product, shape (1,) of `f64`, on the device of the gradient;
    /// absent when they were not looked for.
    pub conflicting_pairs: Option<Tensor>,
    /// More on the conflicts; absent when they were not looked for, and where the GPU found the coefficients.
    pub report: Option<ConflictReport>,
}

/// Conflicts between the owners of one window.
#[derive(Debug, Clone, PartialEq)]
pub struct ConflictReport {
    /// How many pairs conflict.
    pub stats: ConflictStats,
    /// The owners: the host first, then seeds by id.
    pub owners: Vec<OwnerReport>,
}

impl ConflictReport {
    pub(super) fn new(shares: &Shares, projection: &Projection) -> Self {
        let norms = &projection.norms;
        let sum: f64 = norms.iter().sum();
        let owner = |(index, owner)| OwnerReport {
            owner,
            weight: shares.weight(index),
            norm: norms[index],
            norm_share: if norms[index] <= 0.0 { 0.0 } else { norms[index] / sum },
        };
        Self { stats: projection.stats, owners: shares.owners().iter().copied().enumerate().map(owner).collect() }
    }
}

/// Pairs of owners.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ConflictStats {
    /// Ordered pairs with a negative inner product.
    pub conflicting_pairs: u64,
    /// All ordered pairs of different owners.
    pub all_pairs: u64,
}

impl ConflictStats {
    /// Conflicting / all ordered pairs, in `[0, 1]`; absent without a pair.
    #[must_use]
    pub fn ratio(&self) -> Option<f64> {
        (self.all_pairs > 0).then(|| self.conflicting_pairs as f64 / self.all_pairs as f64)
    }
}

/// One owner in one window; everything about the segments that are not isolated.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OwnerReport {
    /// The owner.
    pub owner: Owner,
    /// Its part of the samples' attribution, in `[0, 1]`; the weights of all owners sum to 1.
    pub weight: f64,
    /// L2 norm of its gradient before projections.
    pub norm: f64,
    /// Its norm / the sum of all owners' norms, in `[0, 1]`; 0 when all are 0.
    pub norm_share: f64,
}
