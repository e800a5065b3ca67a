// min (1/2) u'Mu - b'u for u >= 0, by one thread: a port, line by line, of src/aggregate/weighting/nonnegative.rs,
// which documents it. A change here is a change there.
//
// Scratch for n unknowns: n*n + 2*n.
#pragma once

const double FLAT = 1e-14;
const double DEPENDENT = 1e-13;
const u32 MAX_CHANGES = 8;

const double AT_ZERO = 0.0;
const double FREE = 1.0;
const double BARRED = 2.0;

__device__ constexpr u32 nonnegative_scratch(u32 n) {
    return n * n + 2 * n;
}

__device__ inline bool is_state(double state, double which) {
    return fabs(state - which) < 0.5;
}

// The unknown at zero that the objective falls most along, or n.
__device__ inline u32 steepest_unknown(
    u32 n, const double* matrix, const double* slopes, const double* state, const double* u
) {
    u32 steepest = n;
    double largest = 0.0;
    for (u32 i = 0; i < n; i++) {
        if (!is_state(state[i], AT_ZERO)) continue;
        double slope = slopes[i], scale = fabs(slopes[i]);
        for (u32 k = 0; k < n; k++) {
            if (is_state(state[k], FREE)) {
                double term = matrix[i * n + k] * u[k];
                slope -= term;
                scale += fabs(term);
            }
        }
        if (slope > FLAT * scale && slope > largest) {
            largest = slope;
            steepest = i;
        }
    }
    return steepest;
}

// Cholesky factor of the free part of M; false when that part is singular.
__device__ inline bool factorize(u32 n, const double* matrix, const double* state, double* factor) {
    bool independent = true;
    for (u32 i = 0; i < n; i++) {
        if (!is_state(state[i], FREE)) continue;
        for (u32 j = 0; j <= i; j++) {
            if (!is_state(state[j], FREE)) continue;
            double value = matrix[i * n + j];
            for (u32 k = 0; k < j; k++) {
                if (is_state(state[k], FREE)) value -= factor[i * n + k] * factor[j * n + k];
            }
            if (j < i) {
                factor[i * n + j] = value / factor[j * n + j];
            } else {
                if (value <= DEPENDENT) {
                    independent = false;
                    value = DEPENDENT;
                }
                factor[i * n + i] = sqrt(value);
            }
        }
    }
    return independent;
}

// Solves the free part for `slopes` by both triangles.
__device__ inline void substitute(u32 n, const double* factor, const double* slopes, const double* state, double* trial) {
    for (u32 i = 0; i < n; i++) {
        if (!is_state(state[i], FREE)) continue;
        double value = slopes[i];
        for (u32 k = 0; k < i; k++) {
            if (is_state(state[k], FREE)) value -= factor[i * n + k] * trial[k];
        }
        trial[i] = value / factor[i * n + i];
    }
    for (u32 i = n; i-- > 0;) {
        if (!is_state(state[i], FREE)) continue;
        double value = trial[i];
        for (u32 k = i + 1; k < n; k++) {
            if (is_state(state[k], FREE)) value -= factor[k * n + i] * trial[k];
        }
        trial[i] = value / factor[i * n + i];
    }
}

// Moves to the minimizer over the free unknowns, which lose those that reach zero on the way.
__device__ inline void advance(
    u32 n, const double* matrix, const double* slopes, double* factor, double* state, double* trial, double* u
) {
    for (u32 turn = 0; turn < n; turn++) {
        double step = 1.0;
        u32 blocking = n;
        for (u32 i = 0; i < n; i++) {
            if (is_state(state[i], FREE) && trial[i] < 0.0) {
                double part = u[i] / (u[i] - trial[i]);
                if (part < step) {
                    step = part;
                    blocking = i;
                }
            }
        }
        for (u32 i = 0; i < n; i++) {
            if (is_state(state[i], FREE)) {
                u[i] = blocking == n ? trial[i] : u[i] + step * (trial[i] - u[i]);
                if (u[i] < 0.0) u[i] = 0.0;
            }
        }
        if (blocking == n) return;
        u[blocking] = 0.0;
        state[blocking] = AT_ZERO;
        factorize(n, matrix, state, factor);
        substitute(n, factor, slopes, state, trial);
    }
}

__device__ inline void solve_nonnegative(
    u32 n, const double* matrix, const double* slopes, double* scratch, double* u
) {
    double* factor = scratch;
    double* state = factor + n * n;
    double* trial = state + n;
    for (u32 i = 0; i < n; i++) {
        u[i] = 0.0;
        state[i] = AT_ZERO;
    }
    for (u32 turn = 0; turn < MAX_CHANGES * n; turn++) {
        u32 steepest = steepest_unknown(n, matrix, slopes, state, u);
        if (steepest == n) return;
        state[steepest] = FREE;
        bool independent = factorize(n, matrix, state, factor);
        if (independent) substitute(n, factor, slopes, state, trial);
        if (!independent || trial[steepest] <= 0.0) {
            state[steepest] = BARRED;
            continue;
        }
        advance(n, matrix, slopes, factor, state, trial, u);
        for (u32 i = 0; i < n; i++) {
            if (is_state(state[i], BARRED)) state[i] = AT_ZERO;
        }
    }
}
