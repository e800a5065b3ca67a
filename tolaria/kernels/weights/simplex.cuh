// The weights of the shortest vector of a convex hull, by one thread: a port, line by line, of
// src/aggregate/weighting/simplex.rs, which documents it. A change here is a change there.
//
// Scratch for n vectors: 2*n*n + 4*n.
#pragma once
#include "nonnegative.cuh"

const double SMALLEST_UNIT = 1e-100;

__device__ constexpr u32 simplex_scratch(u32 n) {
    return n * n + 2 * n + nonnegative_scratch(n);
}

__device__ inline void nearest(u32 n, const double* inner, double* scratch, double* weights) {
    double* matrix = scratch;
    double* roots = matrix + n * n;
    double* slopes = roots + n;
    double* rest = slopes + n;
    double smallest = inner[0], largest = inner[0];
    for (u32 i = 1; i < n; i++) {
        double square = inner[i * n + i];
        if (square < smallest) smallest = square;
        if (square > largest) largest = square;
    }
    double least = SMALLEST_UNIT * largest;
    double unit = smallest > least ? smallest : least;
    for (u32 i = 0; i < n; i++) {
        double square = inner[i * n + i];
        roots[i] = sqrt((square > 0.0 ? square / unit : 0.0) + 1.0);
        slopes[i] = 1.0 / roots[i];
    }
    for (u32 i = 0; i < n; i++) {
        for (u32 j = 0; j < n; j++) {
            matrix[i * n + j] = i == j ? 1.0 : (inner[i * n + j] / unit + 1.0) / roots[i] / roots[j];
        }
    }
    solve_nonnegative(n, matrix, slopes, rest, weights);
    double sum = 0.0;
    for (u32 i = 0; i < n; i++) {
        weights[i] /= roots[i];
        sum += weights[i];
    }
    for (u32 i = 0; i < n; i++) weights[i] /= sum;
}

// The inner product of the vectors that `left` and `right` combine.
__device__ inline double product_of(u32 n, const double* inner, const double* left, const double* right) {
    double sum = 0.0;
    for (u32 i = 0; i < n; i++) {
        double row = 0.0;
        for (u32 j = 0; j < n; j++) row += inner[i * n + j] * right[j];
        sum += left[i] * row;
    }
    return sum;
}

// The square of the vector that `weights` combine.
__device__ inline double square_of(u32 n, const double* inner, const double* weights) {
    double square = product_of(n, inner, weights, weights);
    return square > 0.0 ? square : 0.0;
}
