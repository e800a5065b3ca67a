//! PCGrad in coefficients: everything follows from the Gram matrix, no vector is touched.
//!
//! For each owner i: start with `G_i`; for every other owner j in random order, when `G_i · G_j < 0`, subtract
//! `(G_i · G_j / |G_j|²) G_j`, where `G_j` is the original. The result is the sum of all `G_i`.
//!
//! `kernels/pcgrad.cu` does the same on the GPU, bit for bit: a change here is a change there.

use rand::Rng;

use super::gram::Gram;
use super::plan::OwnersPlan;
use super::report::ConflictStats;
use super::shares::Shares;
use crate::rng;

/// An inner product closer to 0 than this part of its scale is rounding: `f64` sums of 10⁷ products err by 1e-13.
pub(super) const NEGLIGIBLE_INNER: f64 = 1e-12;
/// An owner's gradient below this part of its terms' norms is what their rounding to `f32` left of a cancellation; it
/// has no direction that means anything.
pub(super) const CANCELLED: f64 = 1e-5;
/// An owner's gradient below this part of the largest one is left out as well: the coefficient of a projection onto it
/// would leave the range of `f32`.
pub(super) const VANISHING: f64 = 1e-30;

/// Result of [`project`].
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Projection {
    pub(super) stats: ConflictStats,
    /// L2 norm of each owner's gradient before projections.
    pub(super) norms: Vec<f64>,
    /// One per microbatch; absent when nothing conflicts, so that the plain gradient is used as it is.
    pub(super) coefficients: Option<Vec<f64>>,
}

/// Finds conflicts between owners and resolves them. Ends for any input: NaN conflicts with nothing.
pub(super) fn project(gram: &Gram, OwnersPlan { shares, orders }: &OwnersPlan) -> Projection {
    let owners = Owners::new(gram, shares);
    let count = owners.count;
    let pairs = (0..count).flat_map(|i| (0..count).filter(move |j| *j != i).map(move |j| (i, j)));
    let mut stats = ConflictStats::default();
    for (i, j) in pairs {
        stats.all_pairs += 1;
        stats.conflicting_pairs += u64::from(owners.conflict(&owners.unit(i), j).is_some());
    }
    let norms = (0..count).map(|i| norm(owners.inner(i, i))).collect();
    let coefficients = (stats.conflicting_pairs > 0).then(|| {
        let total = owners.resolve(orders);
        let coefficient = |k| (0..count).fold(0.0, |sum, owner| sum + total[owner] * shares.row(owner)[k]);
        (0..shares.row(0).len()).map(coefficient).collect()
    });
    Projection { stats, norms, coefficients }
}

/// For each owner the others, in random order.
pub(super) fn visiting_orders(count: usize, rng: &mut impl Rng) -> Vec<Vec<usize>> {
    (0..count)
        .map(|i| {
            let mut others: Vec<usize> = (0..count).filter(|j| *j != i).collect();
            rng::shuffle(&mut others, rng);
            others
        })
        .collect()
}

/// Inner products and scales of the owners' gradients.
struct Owners {
    count: usize,
    inner: Vec<f64>,
    scales: Vec<f64>,
    /// Whether a gradient counts as zero: it conflicts with nothing.
    is_zero: Vec<bool>,
}

impl Owners {
    fn new(gram: &Gram, shares: &Shares) -> Self {
        let count = shares.owners().len();
        let inner: Vec<f64> =
            (0..count * count).map(|at| gram.inner(shares.row(at / count), shares.row(at % count))).collect();
        let scales: Vec<f64> = (0..count).map(|owner| gram.scale(shares.row(owner))).collect();
        let norms = || (0..count).map(|owner| norm(inner[owner * count + owner]));
        let largest = norms().fold(0.0, f64::max);
        let is_zero = norms().zip(&scales).map(|(norm, scale)| norm <= (CANCELLED * scale).max(VANISHING * largest));
        Self { count, is_zero: is_zero.collect(), inner, scales }
    }

    fn inner(&self, i: usize, j: usize) -> f64 {
        self.inner[i * self.count + j]
    }

    /// The original gradient of an owner, as a combination of owners.
    fn unit(&self, owner: usize) -> Vec<f64> {
        (0..self.count).map(|i| f64::from(u8::from(i == owner))).collect()
    }

    /// The coefficient of the projection of `combination` onto `G_j`, when the two conflict.
    fn conflict(&self, combination: &[f64], j: usize) -> Option<f64> {
        let (mut inner, mut scale) = (0.0, 0.0);
        for (i, weight) in combination.iter().enumerate().filter(|(i, _)| !self.is_zero[*i]) {
            inner += weight * self.inner(i, j);
            scale += weight.abs() * self.scales[i];
        }
        let conflicts = inner < -NEGLIGIBLE_INNER * scale * self.scales[j] && !self.is_zero[j];
        conflicts.then(|| inner / self.inner(j, j))
    }

    /// How often each original gradient is in the result.
    fn resolve(&self, orders: &[Vec<usize>]) -> Vec<f64> {
        let mut total = vec![0.0; self.count];
        for (i, order) in orders.iter().enumerate() {
            let mut combination = self.unit(i);
            for &j in order {
                if let Some(coefficient) = self.conflict(&combination, j) {
                    combination[j] -= coefficient;
                }
            }
            for (total, weight) in total.iter_mut().zip(combination) {
                *total += weight;
            }
        }
        total
    }
}

/// Rounding can leave a square slightly below 0; NaN stays NaN.
fn norm(square: f64) -> f64 {
    if square < 0.0 { 0.0 } else { square.sqrt() }
}
