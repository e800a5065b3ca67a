// UPGrad: a port, line by line, of src/aggregate/weighting/upgrad.rs, a thread for each owner's projection. A change
// here is a change there.
//
// Scratch for S owners: S*S*S + 5*S*S + S.
#pragma once
#include "nonnegative.cuh"
#include "owners.cuh"

__device__ constexpr u32 upgrad_row(u32 count) {
    return 2 * count + nonnegative_scratch(count);
}

__device__ constexpr u32 upgrad_scratch(u32 count) {
    return count * count + count + count * upgrad_row(count);
}

__device__ inline void weigh_upgrad(const Owners& owners, double* scratch, double* weights) {
    u32 n = num_usable(owners);
    double* cosines = scratch;
    double* norms = cosines + n * n;
    double* rows = norms + n;
    if (n >= 2) {
        normalized(owners, n, cosines, threadIdx.x, blockDim.x);
        __syncthreads();
        for (u32 i = threadIdx.x; i < n; i += blockDim.x) norms[i] = sqrt(cosines[i * n + i]);
        __syncthreads();
        for (u32 at = threadIdx.x; at < n * n; at += blockDim.x) {
            u32 i = at / n, j = at % n;
            cosines[at] = i == j ? 1.0 : cosines[at] / norms[i] / norms[j];
        }
        __syncthreads();
        for (u32 i = threadIdx.x; i < n; i += blockDim.x) {
            double* u = rows + i * upgrad_row(n);
            double* slopes = u + n;
            double* rest = slopes + n;
            u32 current = member(owners, i);
            for (u32 j = 0; j < n; j++) {
                u32 other = member(owners, j);
                double inner = owners.inner[current * owners.count + other];
                bool conflicts = inner < -NEGLIGIBLE_INNER * owners.scale[current] * owners.scale[other];
                slopes[j] = conflicts || cosines[i * n + j] > 0.0 ? -cosines[i * n + j] : 0.0;
            }
            solve_nonnegative(n, cosines, slopes, rest, u);
        }
        __syncthreads();
        for (u32 j = threadIdx.x; j < n; j += blockDim.x) {
            double weight = 1.0;
            for (u32 i = 0; i < n; i++) weight += rows[i * upgrad_row(n) + j] * (norms[i] / norms[j]);
            weights[member(owners, j)] = weight;
        }
    }
    keep_finite(owners, weights);
}
