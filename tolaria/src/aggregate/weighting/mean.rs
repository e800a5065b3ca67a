//! The plain gradient.

use super::{Owners, Weighting};

/// Every weight is 1.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mean;

impl Weighting for Mean {
    fn weigh(&self, _owners: &Owners<'_>, _orders: &[f64], _scratch: &mut Vec<f64>, _weights: &mut [f64]) {}

    fn scratch_len(&self, _count: usize) -> usize {
        0
    }
}
