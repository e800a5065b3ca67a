// PCGrad in coefficients: a port, line by line, of src/aggregate/weighting/pcgrad.rs, a thread for each owner. A change
// here is a change there.
//
// Scratch for S owners: S*S.
#pragma once
#include "owners.cuh"

__device__ constexpr u32 pcgrad_scratch(u32 count) {
    return count * count;
}

__device__ inline void weigh_pcgrad(const Owners& owners, double* scratch, double* weights) {
    u32 count = owners.count;
    for (u32 owner = threadIdx.x; owner < count; owner += blockDim.x) {
        // Neighboring threads in neighboring places.
        double* combination = scratch + owner;
        for (u32 i = 0; i < count; i++) combination[i * count] = i == owner ? 1.0 : 0.0;
        for (u32 visit = 0; visit < count - 1; visit++) {
            double visited = owners.orders[owner * (count - 1) + visit];
            if (!(visited >= 0.0 && visited < (double)count)) continue;
            u32 j = (u32)visited;
            double coefficient;
            if (conflict(owners, combination, count, j, &coefficient)) combination[j * count] -= coefficient;
        }
    }
    __syncthreads();
    for (u32 of = threadIdx.x; of < count; of += blockDim.x) {
        double total = 0.0;
#pragma unroll 8
        for (u32 owner = 0; owner < count; owner++) total += scratch[of * count + owner];
        weights[of] = total;
    }
    keep_finite(owners, weights);
}
