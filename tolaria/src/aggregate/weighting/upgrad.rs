//! `UPGrad`: the sum of the projections of each gradient onto the cone of directions that conflict with none.
//!
//! The projection of `G_i` is `G_i + Σ_j u_j G_j` with the u ≥ 0 that makes it shortest. The problems of different i
//! are independent of each other, and are posed for gradients of length 1: the cone does not depend on lengths.
//!
//! # Source
//! Quinton & Rey 2024, arXiv 2406.16232, equation 5 and proposition 1.

use super::nonnegative;
use super::{Owners, Weighting, grown, keep_finite};

/// Each gradient is projected onto the dual cone of all gradients.
#[derive(Debug, Clone, Copy)]
pub(super) struct UpGrad;

/// What one owner's projection needs.
const fn row_len(count: usize) -> usize {
    2 * count + nonnegative::scratch_len(count)
}

/// What the method needs for S owners.
pub(crate) const fn scratch_len(count: usize) -> usize {
    count * count + count + count * row_len(count)
}

impl Weighting for UpGrad {
    fn weigh(&self, owners: &Owners<'_>, _orders: &[f64], scratch: &mut Vec<f64>, weights: &mut [f64]) {
        let n = owners.num_usable();
        if n < 2 {
            return;
        }
        let (cosines, rest) = grown(scratch, scratch_len(owners.count)).split_at_mut(n * n);
        let (norms, rows) = rest.split_at_mut(n);
        owners.normalized(cosines);
        for (i, norm) in norms.iter_mut().enumerate() {
            *norm = cosines[i * n + i].sqrt();
        }
        for i in 0..n {
            for j in 0..n {
                cosines[i * n + j] = if i == j { 1.0 } else { cosines[i * n + j] / norms[i] / norms[j] };
            }
        }
        for ((i, this), row) in owners.members().enumerate().zip(rows.chunks_mut(row_len(n))) {
            let (u, rest) = row.split_at_mut(n);
            let (slopes, rest) = rest.split_at_mut(n);
            for ((j, other), slope) in owners.members().enumerate().zip(slopes.iter_mut()) {
                *slope =
                    if owners.opposed(this, other) || cosines[i * n + j] > 0.0 { -cosines[i * n + j] } else { 0.0 };
            }
            nonnegative::solve(cosines, slopes, rest, u);
        }
        for (j, owner) in owners.members().enumerate() {
            let mut weight = 1.0;
            for i in 0..n {
                weight += rows[i * row_len(n) + j] * (norms[i] / norms[j]);
            }
            weights[owner] = weight;
        }
        keep_finite(weights);
    }

    fn scratch_len(&self, count: usize) -> usize {
        scratch_len(count)
    }
}
