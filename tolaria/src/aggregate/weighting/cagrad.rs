//! `CAGrad`: the direction near the average gradient along which the least improved owner improves most.
//!
//! With the average `g_0` and a radius c, the direction is `d = g_0 + g_w/s`, where `g_w` is the point of the convex hull
//! that minimizes `g_w · g_0 + c |g_0| |g_w|` and `s = |g_w|/(c |g_0|)`. For a given s, that point is the one whose
//! `g_w + s g_0` is shortest, and `|g_w|/s` falls as s grows, so one unknown is left. The point is a piecewise linear
//! function of s: crossings of the line between the ends of the bracket are exact once both ends lie on one piece.
//!
//! Where a point of the hull is zero, `|d − g_0|` may stay below `c |g_0|` for all s; the search then ends with a
//! direction that conflicts with no gradient, which no other can improve on.
//!
//! # Source
//! Liu et al. 2021, arXiv 2110.14048, equation 3 and section 3; without the rescaling that its code offers.

use super::owners::CANCELLED;
use super::simplex::{self, nearest, product, square};
use super::{Owners, Weighting, grown, keep_finite};

/// The most problems solved per call.
const MAX_STEPS: usize = 60;
/// `|d − g_0|²` is this close to the radius², relative to it.
const ON_RADIUS: f64 = 1e-12;
/// The value of the least improved owner is this close to the best, relative to `|g_0|` times the largest norm.
const OPTIMAL: f64 = 1e-13;

/// The radius where none is given.
pub(super) const DEFAULT_RADIUS: f64 = 0.4;

/// The gradient's average moved by at most `radius` of its norm.
#[derive(Debug, Clone, Copy)]
pub(super) struct CaGrad {
    /// c, in `[0, 1)`; at 0 all weights are 1.
    pub(super) radius: f64,
}

impl CaGrad {
    /// What its radius has to be, where it is not.
    pub(super) fn refusal(radius: f64) -> Option<&'static str> {
        (!(0.0..1.0).contains(&radius)).then_some("a number of at least 0 and below 1")
    }
}

/// What the method needs for S owners.
pub(crate) const fn scratch_len(count: usize) -> usize {
    2 * count * count + 5 * count + simplex::scratch_len(count)
}

/// A point of the hull and what it is nearest for.
struct End<'a> {
    s: f64,
    square: f64,
    point: &'a mut [f64],
}

impl Weighting for CaGrad {
    fn weigh(&self, owners: &Owners<'_>, _orders: &[f64], scratch: &mut Vec<f64>, weights: &mut [f64]) {
        let n = owners.num_usable();
        if n < 2 {
            return;
        }
        let (inner, rest) = grown(scratch, scratch_len(owners.count)).split_at_mut(n * n);
        let (matrix, rest) = rest.split_at_mut(n * n);
        let (average, rest) = rest.split_at_mut(n);
        let (first, rest) = rest.split_at_mut(n);
        let (second, rest) = rest.split_at_mut(n);
        let (point, rest) = rest.split_at_mut(n);
        let (step, rest) = rest.split_at_mut(n);
        owners.normalized(inner);
        let mut average_square = 0.0;
        for i in 0..n {
            average[i] = 0.0;
            for j in 0..n {
                average[i] += inner[i * n + j];
            }
            average[i] /= n as f64;
            average_square += average[i];
        }
        average_square /= n as f64;
        let radius = self.radius * average_square.sqrt();
        if !(average_square > CANCELLED * CANCELLED && radius > 0.0) {
            return;
        }
        let mut solve = |s: f64, point: &mut [f64]| {
            for i in 0..n {
                for j in 0..n {
                    matrix[i * n + j] = inner[i * n + j] + s * (average[i] + average[j]) + s * s * average_square;
                }
            }
            nearest(matrix, rest, point);
            square(inner, point)
        };
        let value = |point: &[f64], square: f64| {
            let mut value = radius * square.sqrt();
            for i in 0..n {
                value += point[i] * average[i];
            }
            value
        };
        let mut low = End { s: 0.0, square: solve(0.0, first), point: first };
        // No vector of the hull is longer than 1, the largest gradient.
        let mut high = End { s: 1.0 / radius, square: solve(1.0 / radius, second), point: second };
        // None is shorter than the first, so s is not below this either. With gradients of very different lengths it
        // is many orders of magnitude below the other end, hence geometric means.
        let floor = low.square.sqrt() / radius;
        let mut best = value(low.point, low.square);
        for turn in 0..MAX_STEPS {
            let from = if low.s > floor { low.s } else { floor };
            let s = if turn % 2 == 1 && from > 0.0 {
                (from * high.s).sqrt()
            } else {
                low.s + crossing(inner, &low, &high, radius, step) * (high.s - low.s)
            };
            if !(s > low.s && s < high.s) {
                break;
            }
            let square = solve(s, point);
            let found = value(point, square);
            if found < best {
                best = found;
            }
            let limit = radius * s * (radius * s);
            let excess = square - limit;
            let end = if excess > ON_RADIUS * limit { &mut low } else { &mut high };
            end.s = s;
            end.square = square;
            end.point.copy_from_slice(point);
            if excess > ON_RADIUS * limit {
                continue;
            }
            let reached = least_improved(inner, average, s, point);
            if excess >= -ON_RADIUS * limit || best - reached <= OPTIMAL * average_square.sqrt() {
                break;
            }
        }
        for (owner, share) in owners.members().zip(&*high.point) {
            weights[owner] = 1.0 + n as f64 * (*share / high.s);
        }
        keep_finite(weights);
    }

    fn scratch_len(&self, count: usize) -> usize {
        scratch_len(count)
    }

    fn parameter(&self) -> f64 {
        self.radius
    }
}

/// Where between both ends, as a part of the way, the line between their points meets the radius.
fn crossing(inner: &[f64], low: &End<'_>, high: &End<'_>, radius: f64, step: &mut [f64]) -> f64 {
    for (step, (low, high)) in step.iter_mut().zip(low.point.iter().zip(&*high.point)) {
        *step = high - low;
    }
    let width = high.s - low.s;
    let a = square(inner, step) - radius * width * (radius * width);
    let b = product(inner, low.point, step) - radius * low.s * (radius * width);
    let c = low.square - radius * low.s * (radius * low.s);
    let under = b * b - a * c;
    let root = if under > 0.0 { under.sqrt() } else { 0.0 };
    let part = if b > 0.0 { -(b + root) / a } else { c / (root - b) };
    if part > 0.0 && part < 1.0 { part } else { 0.5 }
}

/// The smallest inner product of a gradient and the direction `g_0 + g_w/s`.
fn least_improved(inner: &[f64], average: &[f64], s: f64, point: &[f64]) -> f64 {
    let n = point.len();
    let mut least = 0.0;
    for i in 0..n {
        let mut row = 0.0;
        for j in 0..n {
            row += inner[i * n + j] * point[j];
        }
        let improvement = average[i] + row / s;
        if i == 0 || improvement < least {
            least = improvement;
        }
    }
    least
}
