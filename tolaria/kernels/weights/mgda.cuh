// The shortest vector of the convex hull: a port, line by line, of src/aggregate/weighting/mgda.rs, by the first thread
// of the block, since every step of the active-set method follows from the one before. A change here is a change there.
//
// Scratch for S owners: 3*S*S + 5*S.
#pragma once
#include "owners.cuh"
#include "simplex.cuh"

__device__ constexpr u32 mgda_scratch(u32 count) {
    return count * count + count + simplex_scratch(count);
}

__device__ inline void weigh_mgda(const Owners& owners, double* scratch, double* weights) {
    u32 n = num_usable(owners);
    if (n >= 2 && threadIdx.x == 0) {
        double* inner = scratch;
        double* point = inner + n * n;
        double* rest = point + n;
        normalized(owners, n, inner, 0, 1);
        nearest(n, inner, rest, point);
        for (u32 i = 0; i < n; i++) weights[member(owners, i)] = (double)n * point[i];
    }
    keep_finite(owners, weights);
}
