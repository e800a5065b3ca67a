//! `PCGrad` in coefficients: everything follows from inner products, no vector is touched.
//!
//! For each owner i: start with `G_i`; for every other owner j in the given order, when `G_i · G_j < 0`, subtract
//! `(G_i · G_j / |G_j|²) G_j`, where `G_j` is the original. The result is the sum of all `G_i`. Without a conflict
//! every weight is exactly 1; NaN conflicts with nothing.
//!
//! # Source
//! Yu et al. 2020, arXiv 2001.06782, algorithm 1: projections onto the original gradients.

use super::{Owners, Weighting, grown};

/// Each gradient is projected, one after the other, off those that it conflicts with.
#[derive(Debug, Clone, Copy)]
pub(super) struct PcGrad;

/// What the method needs for S owners.
pub(crate) const fn scratch_len(count: usize) -> usize {
    count * count
}

impl Weighting for PcGrad {
    fn weigh(&self, owners: &Owners<'_>, orders: &[f64], scratch: &mut Vec<f64>, weights: &mut [f64]) {
        let count = owners.count;
        let combinations = grown(scratch, scratch_len(count));
        for owner in 0..count {
            let combination = &mut combinations[owner * count..][..count];
            combination.fill(0.0);
            combination[owner] = 1.0;
            for visit in 0..count - 1 {
                let Some(j) = index(orders[owner * (count - 1) + visit], count) else { continue };
                if let Some(coefficient) = owners.conflict(combination, j) {
                    combination[j] -= coefficient;
                }
            }
        }
        for (of, weight) in weights.iter_mut().enumerate() {
            let mut total = 0.0;
            for owner in 0..count {
                total += combinations[owner * count + of];
            }
            *weight = total;
        }
        super::keep_finite(weights);
    }

    fn scratch_len(&self, count: usize) -> usize {
        scratch_len(count)
    }
}

/// The owner that an order names.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "exact small integers, as in the kernel")]
pub(super) fn index(visited: f64, count: usize) -> Option<usize> {
    (visited >= 0.0 && visited < count as f64).then_some(visited as usize)
}
