//! Quadratic problems over non-negative numbers: min ½uᵀMu − bᵀu for u ≥ 0, by an active-set method.
//!
//! M is symmetric, positive semidefinite up to rounding, with a diagonal of ones. The free unknowns grow by the one
//! with the steepest slope; those that the exact solution over the free ones would make negative leave again. The
//! solution is exact up to rounding where the free part of M is not nearly singular. Coordinate descent would be
//! shorter, and needs as many sweeps as M's condition number.
//!
//! # Source
//! Lawson & Hanson 1974, *Solving Least Squares Problems*, chapter 23, in terms of the normal equations.

/// A slope closer to 0 than this part of its terms is rounding.
const FLAT: f64 = 1e-14;
/// An unknown whose vector is closer to the span of the others than the root of this is not told apart from them.
const DEPENDENT: f64 = 1e-13;
/// The most changes of the free set per unknown; two or three are usual.
const MAX_CHANGES: usize = 8;

const AT_ZERO: f64 = 0.0;
const FREE: f64 = 1.0;
/// At zero, and kept there until the point moves: its slope is rounding.
const BARRED: f64 = 2.0;

/// What [`solve`] needs for n unknowns.
pub(super) const fn scratch_len(n: usize) -> usize {
    n * n + 2 * n
}

/// Writes the minimizer into `u` (n). `matrix` (n, n), `slopes` b (n).
pub(super) fn solve(matrix: &[f64], slopes: &[f64], scratch: &mut [f64], u: &mut [f64]) {
    let n = u.len();
    let (factor, rest) = scratch.split_at_mut(n * n);
    let (state, rest) = rest.split_at_mut(n);
    let trial = &mut rest[..n];
    u.fill(0.0);
    state.fill(AT_ZERO);
    for _ in 0..MAX_CHANGES * n {
        let steepest = steepest(matrix, slopes, state, u);
        if steepest == n {
            return;
        }
        state[steepest] = FREE;
        let independent = factorize(matrix, state, factor);
        if independent {
            substitute(factor, slopes, state, trial);
        }
        if !independent || trial[steepest] <= 0.0 {
            state[steepest] = BARRED;
            continue;
        }
        advance(matrix, slopes, (factor, state, trial), u);
        for state in &mut *state {
            if is(*state, BARRED) {
                *state = AT_ZERO;
            }
        }
    }
}

fn is(state: f64, which: f64) -> bool {
    (state - which).abs() < 0.5
}

/// The unknown at zero that the objective falls most along, or n.
fn steepest(matrix: &[f64], slopes: &[f64], state: &[f64], u: &[f64]) -> usize {
    let n = u.len();
    let (mut steepest, mut largest) = (n, 0.0);
    for i in 0..n {
        if !is(state[i], AT_ZERO) {
            continue;
        }
        let (mut slope, mut scale) = (slopes[i], slopes[i].abs());
        for k in 0..n {
            if is(state[k], FREE) {
                let term = matrix[i * n + k] * u[k];
                slope -= term;
                scale += term.abs();
            }
        }
        if slope > FLAT * scale && slope > largest {
            largest = slope;
            steepest = i;
        }
    }
    steepest
}

/// Moves to the minimizer over the free unknowns, which lose those that reach zero on the way.
///
/// `trial` comes as that minimizer for the factor and states that come.
fn advance(
    matrix: &[f64],
    slopes: &[f64],
    (factor, state, trial): (&mut [f64], &mut [f64], &mut [f64]),
    u: &mut [f64],
) {
    let n = u.len();
    for _ in 0..n {
        let (mut step, mut blocking) = (1.0, n);
        for i in 0..n {
            if is(state[i], FREE) && trial[i] < 0.0 {
                let part = u[i] / (u[i] - trial[i]);
                if part < step {
                    step = part;
                    blocking = i;
                }
            }
        }
        for i in 0..n {
            if is(state[i], FREE) {
                u[i] = if blocking == n { trial[i] } else { u[i] + step * (trial[i] - u[i]) };
                if u[i] < 0.0 {
                    u[i] = 0.0;
                }
            }
        }
        if blocking == n {
            return;
        }
        u[blocking] = 0.0;
        state[blocking] = AT_ZERO;
        factorize(matrix, state, factor);
        substitute(factor, slopes, state, trial);
    }
}

/// Cholesky factor of the free part of M, in place of its rows; false when that part is singular.
fn factorize(matrix: &[f64], state: &[f64], factor: &mut [f64]) -> bool {
    let n = state.len();
    let mut independent = true;
    for i in 0..n {
        if !is(state[i], FREE) {
            continue;
        }
        for j in 0..=i {
            if !is(state[j], FREE) {
                continue;
            }
            let mut value = matrix[i * n + j];
            for k in 0..j {
                if is(state[k], FREE) {
                    value -= factor[i * n + k] * factor[j * n + k];
                }
            }
            if j < i {
                factor[i * n + j] = value / factor[j * n + j];
            } else {
                if value <= DEPENDENT {
                    independent = false;
                    value = DEPENDENT;
                }
                factor[i * n + i] = value.sqrt();
            }
        }
    }
    independent
}

/// Solves the free part for `slopes` by both triangles.
fn substitute(factor: &[f64], slopes: &[f64], state: &[f64], trial: &mut [f64]) {
    let n = state.len();
    for i in 0..n {
        if !is(state[i], FREE) {
            continue;
        }
        let mut value = slopes[i];
        for k in 0..i {
            if is(state[k], FREE) {
                value -= factor[i * n + k] * trial[k];
            }
        }
        trial[i] = value / factor[i * n + i];
    }
    for i in (0..n).rev() {
        if !is(state[i], FREE) {
            continue;
        }
        let mut value = trial[i];
        for k in i + 1..n {
            if is(state[k], FREE) {
                value -= factor[k * n + i] * trial[k];
            }
        }
        trial[i] = value / factor[i * n + i];
    }
}
