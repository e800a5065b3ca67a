//! The point of the simplex with the smallest wᵀNw: the weights of the shortest vector of a convex hull.
//!
//! The shortest vector of the hull of x_i has the direction of the solution of min |Σ u_i x_i|² + (Σ u_i − 1)² over
//! u ≥ 0: for u = t·w with w in the simplex, the best t leaves |x_w|²/(1 + |x_w|²), which grows with |x_w|.

use super::nonnegative;

/// The least unit of length² relative to the largest vector's.
const SMALLEST_UNIT: f64 = 1e-100;

/// What [`nearest`] needs for n vectors.
pub(super) const fn scratch_len(n: usize) -> usize {
    n * n + 2 * n + nonnegative::scratch_len(n)
}

/// Writes the weights (n) of the shortest vector of the convex hull, given the vectors' inner products (n, n).
pub(super) fn nearest(inner: &[f64], scratch: &mut [f64], weights: &mut [f64]) {
    let n = weights.len();
    let (matrix, rest) = scratch.split_at_mut(n * n);
    let (roots, rest) = rest.split_at_mut(n);
    let (slopes, rest) = rest.split_at_mut(n);
    // The smallest vector as the unit of length keeps its square visible beside the ones that are added.
    let (mut smallest, mut largest) = (inner[0], inner[0]);
    for i in 1..n {
        let square = inner[i * n + i];
        if square < smallest {
            smallest = square;
        }
        if square > largest {
            largest = square;
        }
    }
    let least = SMALLEST_UNIT * largest;
    let unit = if smallest > least { smallest } else { least };
    for i in 0..n {
        let square = inner[i * n + i];
        roots[i] = ((if square > 0.0 { square / unit } else { 0.0 }) + 1.0).sqrt();
        slopes[i] = 1.0 / roots[i];
    }
    for i in 0..n {
        for j in 0..n {
            matrix[i * n + j] = if i == j { 1.0 } else { (inner[i * n + j] / unit + 1.0) / roots[i] / roots[j] };
        }
    }
    nonnegative::solve(matrix, slopes, rest, weights);
    let mut sum = 0.0;
    for i in 0..n {
        weights[i] /= roots[i];
        sum += weights[i];
    }
    for weight in weights {
        *weight /= sum;
    }
}

/// The square of the vector that `weights` combine.
pub(super) fn square(inner: &[f64], weights: &[f64]) -> f64 {
    let square = product(inner, weights, weights);
    if square > 0.0 { square } else { 0.0 }
}

/// The inner product of the vectors that `left` and `right` combine.
pub(super) fn product(inner: &[f64], left: &[f64], right: &[f64]) -> f64 {
    let n = left.len();
    let mut sum = 0.0;
    for i in 0..n {
        let mut row = 0.0;
        for j in 0..n {
            row += inner[i * n + j] * right[j];
        }
        sum += left[i] * row;
    }
    sum
}
