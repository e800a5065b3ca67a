//! Aligned-MTL: the gradients are replaced by the nearest balanced system, in which all directions count alike.
//!
//! With the eigenvectors V and eigenvalues λ of the inner products, the weights are `√λ_min V Λ^(−½) Vᵀ 1` over the
//! directions that the gradients span. A direction counts when its `√λ` is not below 1e-5 of the largest: less is
//! what the rounding of gradients to `f32` leaves.
//!
//! # Source
//! Senushkin et al. 2023, arXiv 2305.19000, equation 9 and algorithm 1, scaled to the smallest singular value.
//! Eigenvectors by cyclic Jacobi rotations: Golub & Van Loan 2013, *Matrix Computations*, section 8.5.

use super::owners::CANCELLED;
use super::{Owners, Weighting, grown, keep_finite};

/// The most sweeps over all pairs; six to nine are usual.
const MAX_SWEEPS: usize = 30;
/// Sum of squares off the diagonal, relative to that on it, at which the rotations end.
const DIAGONAL: f64 = 1e-34;

/// The sum of the gradients after their inner products were made those of a balanced system.
#[derive(Debug, Clone, Copy)]
pub(super) struct AlignedMtl;

/// What the method needs for S owners.
pub(crate) const fn scratch_len(count: usize) -> usize {
    2 * count * count + count
}

impl Weighting for AlignedMtl {
    fn weigh(&self, owners: &Owners<'_>, _orders: &[f64], scratch: &mut Vec<f64>, weights: &mut [f64]) {
        let n = owners.num_usable();
        if n < 2 {
            return;
        }
        let (inner, rest) = grown(scratch, scratch_len(owners.count)).split_at_mut(n * n);
        let (vectors, rest) = rest.split_at_mut(n * n);
        let sums = &mut rest[..n];
        owners.normalized(inner);
        diagonalize(inner, vectors, n);
        let mut largest = 0.0;
        for r in 0..n {
            if inner[r * n + r] > largest {
                largest = inner[r * n + r];
            }
        }
        let least = CANCELLED * CANCELLED * largest;
        let mut smallest = largest;
        for r in 0..n {
            let value = inner[r * n + r];
            if value > least && value < smallest {
                smallest = value;
            }
        }
        for (r, sum) in sums.iter_mut().enumerate() {
            *sum = 0.0;
            for i in 0..n {
                *sum += vectors[i * n + r];
            }
        }
        for (i, owner) in owners.members().enumerate() {
            let mut weight = 0.0;
            for r in 0..n {
                let value = inner[r * n + r];
                if value > least {
                    weight += (smallest / value).sqrt() * sums[r] * vectors[i * n + r];
                }
            }
            weights[owner] = weight;
        }
        keep_finite(weights);
    }

    fn scratch_len(&self, count: usize) -> usize {
        scratch_len(count)
    }
}

/// Leaves the eigenvalues on the diagonal of `matrix` (n, n) and the eigenvectors in the columns of `vectors`.
fn diagonalize(matrix: &mut [f64], vectors: &mut [f64], n: usize) {
    for i in 0..n {
        for j in 0..n {
            vectors[i * n + j] = if i == j { 1.0 } else { 0.0 };
        }
    }
    for _ in 0..MAX_SWEEPS {
        if is_diagonal(matrix, n) {
            return;
        }
        for p in 0..n {
            for q in p + 1..n {
                let (left, right, off) = (matrix[p * n + p], matrix[q * n + q], matrix[p * n + q]);
                let Some((tangent, cosine, sine)) = rotation(left, right, off) else { continue };
                for k in 0..n {
                    let (x, y) = (vectors[k * n + p], vectors[k * n + q]);
                    vectors[k * n + p] = cosine * x - sine * y;
                    vectors[k * n + q] = sine * x + cosine * y;
                    if k == p {
                        matrix[p * n + p] = left - tangent * off;
                        matrix[q * n + q] = right + tangent * off;
                        matrix[p * n + q] = 0.0;
                        matrix[q * n + p] = 0.0;
                    } else if k != q {
                        let (x, y) = (matrix[k * n + p], matrix[k * n + q]);
                        let (x, y) = (cosine * x - sine * y, sine * x + cosine * y);
                        matrix[k * n + p] = x;
                        matrix[p * n + k] = x;
                        matrix[k * n + q] = y;
                        matrix[q * n + k] = y;
                    }
                }
            }
        }
    }
}

fn is_diagonal(matrix: &[f64], n: usize) -> bool {
    let (mut off, mut on) = (0.0, 0.0);
    for i in 0..n {
        on += matrix[i * n + i] * matrix[i * n + i];
        for j in i + 1..n {
            off += matrix[i * n + j] * matrix[i * n + j];
        }
    }
    off <= DIAGONAL * on
}

/// Tangent, cosine and sine of the rotation that makes `off` zero; absent when it is.
fn rotation(left: f64, right: f64, off: f64) -> Option<(f64, f64, f64)> {
    if off.abs() <= 0.0 {
        return None;
    }
    let ratio = (right - left) / (2.0 * off);
    let size = 1.0 / (ratio.abs() + (ratio * ratio + 1.0).sqrt());
    let tangent = if ratio < 0.0 { -size } else { size };
    let cosine = 1.0 / (tangent * tangent + 1.0).sqrt();
    Some((tangent, cosine, tangent * cosine))
}
