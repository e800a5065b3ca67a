//! The multiple-gradient descent algorithm: the shortest vector of the gradients' convex hull.
//!
//! # Source
//! Désidéri 2012, *Comptes Rendus Mathématique* 350 (5–6); Sener & Koltun 2018, arXiv 1810.04650.

use super::simplex;
use super::{Owners, Weighting, grown, keep_finite};

/// n times the weights of the shortest vector of the convex hull.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mgda;

/// What the method needs for S owners.
pub(crate) const fn scratch_len(count: usize) -> usize {
    count * count + count + simplex::scratch_len(count)
}

impl Weighting for Mgda {
    fn weigh(&self, owners: &Owners<'_>, _orders: &[f64], scratch: &mut Vec<f64>, weights: &mut [f64]) {
        let n = owners.num_usable();
        if n < 2 {
            return;
        }
        let (inner, rest) = grown(scratch, scratch_len(owners.count)).split_at_mut(n * n);
        let (point, rest) = rest.split_at_mut(n);
        owners.normalized(inner);
        simplex::nearest(inner, rest, point);
        for (owner, share) in owners.members().zip(point) {
            weights[owner] = n as f64 * *share;
        }
        keep_finite(weights);
    }

    fn scratch_len(&self, count: usize) -> usize {
        scratch_len(count)
    }
}
