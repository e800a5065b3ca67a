//! An older variant of `PCGrad`, for comparison only: it projects onto vectors that are adjusted already.
//!
//! The paper projects each gradient onto the *original* others (Yu et al. 2020, arXiv 2001.06782, algorithm 1). This
//! variant overwrites a gradient once it is projected, and later owners see what was written.

use super::pcgrad::index;
use super::{Owners, Weighting, grown};

/// Projections onto adjusted vectors, one owner after the other.
#[derive(Debug, Clone, Copy)]
pub(super) struct Adjusted;

impl Weighting for Adjusted {
    fn weigh(&self, owners: &Owners<'_>, orders: &[f64], scratch: &mut Vec<f64>, weights: &mut [f64]) {
        let count = owners.count;
        let combinations = grown(scratch, count * count);
        for (at, weight) in combinations.iter_mut().enumerate() {
            *weight = if at / count == at % count { 1.0 } else { 0.0 };
        }
        let inner = |a: &[f64], b: &[f64]| super::simplex::product(owners.inner, a, b);
        for owner in 0..count {
            for visit in 0..count - 1 {
                let Some(j) = index(orders[owner * (count - 1) + visit], count) else { continue };
                let onto = combinations[j * count..][..count].to_vec();
                let this = &mut combinations[owner * count..][..count];
                let product = inner(this, &onto);
                if product < 0.0 {
                    let coefficient = product / inner(&onto, &onto);
                    for (this, onto) in this.iter_mut().zip(onto) {
                        *this -= coefficient * onto;
                    }
                }
            }
        }
        for (of, weight) in weights.iter_mut().enumerate() {
            *weight = (0..count).map(|owner| combinations[owner * count + of]).sum();
        }
    }

    fn scratch_len(&self, count: usize) -> usize {
        count * count
    }
}
