// What a weighting knows of the owners' gradients: a port, line by line, of src/aggregate/weighting/owners.rs, which
// documents it. A change here is a change there.
//
// Every function `weigh_*` is called by all threads of one block, with any number of threads; weights come filled with
// 1. No result depends on the number of threads: each element is computed by one thread, and what all threads need,
// each of them computes from memory in the same order. Compiled without fused multiply-adds.
#pragma once

const double NEGLIGIBLE_INNER = 1e-12;
const double CANCELLED = 1e-5;
const double VANISHING = 1e-30;

struct Owners {
    u32 count;
    const double* inner;   // (S, S)
    const double* scale;   // (S)
    const u32* is_idle;    // (S), 0 or 1
    const double* orders;  // (S, S - 1)
    double parameter;      // of the method
};

// Rounding can leave a square slightly below 0; NaN stays NaN.
__device__ inline double norm_of(double square) {
    return square < 0.0 ? 0.0 : sqrt(square);
}

// Whether x is neither infinite nor NaN.
__device__ inline bool is_finite(double x) {
    return fabs(x) <= 1.7976931348623157e308;
}

// `idle` for one owner; takes_part (S), 0 or 1.
__device__ inline bool owner_is_idle(
    const double* inner, const double* scale, const u32* takes_part, u32 count, u32 owner
) {
    double largest = 0.0;
    for (u32 i = 0; i < count; i++) {
        if (takes_part[i]) largest = fmax(largest, norm_of(inner[i * count + i]));
    }
    double smallest = fmax(CANCELLED * scale[owner], VANISHING * largest);
    return !takes_part[owner] || norm_of(inner[owner * count + owner]) <= smallest;
}

// Whether a combination of owners conflicts with owner j, and then the coefficient of its projection. Weight i of the
// combination is at i * stride.
__device__ inline bool conflict(
    const Owners& owners, const double* combination, u32 stride, u32 j, double* coefficient
) {
    double inner = 0.0, scale = 0.0;
    // Without a branch, so that loads are under way together: a zero changes no bit of a sum.
#pragma unroll 8
    for (u32 i = 0; i < owners.count; i++) {
        double weight = combination[i * stride];
        double product = weight * owners.inner[i * owners.count + j];
        double length = fabs(weight) * owners.scale[i];
        inner += owners.is_idle[i] ? 0.0 : product;
        scale += owners.is_idle[i] ? 0.0 : length;
    }
    if (!(inner < -NEGLIGIBLE_INNER * scale * owners.scale[j] && !owners.is_idle[j])) return false;
    *coefficient = inner / owners.inner[j * owners.count + j];
    return true;
}

// The owner that is not idle and has `position` such owners before it.
__device__ inline u32 member(const Owners& owners, u32 position) {
    u32 before = 0;
    for (u32 i = 0; i < owners.count; i++) {
        if (owners.is_idle[i]) continue;
        if (before == position) return i;
        before++;
    }
    return 0;
}

// How many owners are not idle; 0 when their inner products are not those of gradients other than zero.
__device__ inline u32 num_usable(const Owners& owners) {
    u32 usable = 0;
    for (u32 i = 0; i < owners.count; i++) {
        if (owners.is_idle[i]) continue;
        for (u32 j = 0; j < owners.count; j++) {
            if (!owners.is_idle[j] && !is_finite(owners.inner[i * owners.count + j])) return 0;
        }
        if (!(owners.inner[i * owners.count + i] > 0.0)) return 0;
        usable++;
    }
    return usable;
}

// Inner products (n, n) of owners that are not idle, relative to the largest square; elements first, first + stride...
__device__ inline void normalized(const Owners& owners, u32 n, double* matrix, u32 first, u32 stride) {
    u32 count = owners.count;
    double largest = 0.0;
    for (u32 i = 0; i < count; i++) {
        if (owners.is_idle[i]) continue;
        double square = owners.inner[i * count + i];
        if (square > largest) largest = square;
    }
    for (u32 at = first; at < n * n; at += stride) {
        u32 i = member(owners, at / n), j = member(owners, at % n);
        double above = owners.inner[i * count + j], below = owners.inner[j * count + i];
        matrix[at] = 0.5 * (above / largest + below / largest);
    }
}

// All weights are 1 again when one of them is not finite. Called by all threads; ends with a barrier.
__device__ inline void keep_finite(const Owners& owners, double* weights) {
    __syncthreads();
    bool finite = true;
    for (u32 i = 0; i < owners.count; i++) finite = finite && is_finite(weights[i]);
    __syncthreads();
    if (!finite) {
        for (u32 i = threadIdx.x; i < owners.count; i += blockDim.x) weights[i] = 1.0;
    }
    __syncthreads();
}
