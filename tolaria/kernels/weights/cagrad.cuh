// CAGrad: a port, line by line, of src/aggregate/weighting/cagrad.rs, by the first thread of the block, since every step
// of the search follows from the one before. A change here is a change there.
//
// Scratch for S owners: 4*S*S + 9*S.
#pragma once
#include "owners.cuh"
#include "simplex.cuh"

const u32 MAX_STEPS = 60;
const double ON_RADIUS = 1e-12;
const double OPTIMAL = 1e-13;

__device__ constexpr u32 cagrad_scratch(u32 count) {
    return 2 * count * count + 5 * count + simplex_scratch(count);
}

// A point of the hull and what it is nearest for.
struct End {
    double s;
    double square;
    double* point;
};

// The gradients, their average and what is found for a given s.
struct Hull {
    u32 n;
    const double* inner;
    double* matrix;
    double* average;
    double* rest;
    double average_square;
    double radius;
};

__device__ inline double hull_point(const Hull& hull, double s, double* point) {
    u32 n = hull.n;
    for (u32 i = 0; i < n; i++) {
        for (u32 j = 0; j < n; j++) {
            hull.matrix[i * n + j] =
                hull.inner[i * n + j] + s * (hull.average[i] + hull.average[j]) + s * s * hull.average_square;
        }
    }
    nearest(n, hull.matrix, hull.rest, point);
    return square_of(n, hull.inner, point);
}

__device__ inline double hull_value(const Hull& hull, const double* point, double square) {
    double value = hull.radius * sqrt(square);
    for (u32 i = 0; i < hull.n; i++) value += point[i] * hull.average[i];
    return value;
}

// Where between both ends, as a part of the way, the line between their points meets the radius.
__device__ inline double crossing(const Hull& hull, const End& low, const End& high, double* step) {
    u32 n = hull.n;
    double radius = hull.radius;
    for (u32 i = 0; i < n; i++) step[i] = high.point[i] - low.point[i];
    double width = high.s - low.s;
    double a = square_of(n, hull.inner, step) - radius * width * (radius * width);
    double b = product_of(n, hull.inner, low.point, step) - radius * low.s * (radius * width);
    double c = low.square - radius * low.s * (radius * low.s);
    double under = b * b - a * c;
    double root = under > 0.0 ? sqrt(under) : 0.0;
    double part = b > 0.0 ? -(b + root) / a : c / (root - b);
    return part > 0.0 && part < 1.0 ? part : 0.5;
}

// The smallest inner product of a gradient and the direction g_0 + g_w/s.
__device__ inline double least_improved(const Hull& hull, double s, const double* point) {
    u32 n = hull.n;
    double least = 0.0;
    for (u32 i = 0; i < n; i++) {
        double row = 0.0;
        for (u32 j = 0; j < n; j++) row += hull.inner[i * n + j] * point[j];
        double improvement = hull.average[i] + row / s;
        if (i == 0 || improvement < least) least = improvement;
    }
    return least;
}

// By one thread.
__device__ inline void search_cagrad(const Owners& owners, u32 n, double* scratch, double* weights) {
    double* inner = scratch;
    double* matrix = inner + n * n;
    double* average = matrix + n * n;
    double* first = average + n;
    double* second = first + n;
    double* point = second + n;
    double* step = point + n;
    double* rest = step + n;
    normalized(owners, n, inner, 0, 1);
    double average_square = 0.0;
    for (u32 i = 0; i < n; i++) {
        average[i] = 0.0;
        for (u32 j = 0; j < n; j++) average[i] += inner[i * n + j];
        average[i] /= (double)n;
        average_square += average[i];
    }
    average_square /= (double)n;
    double radius = owners.parameter * sqrt(average_square);
    if (!(average_square > CANCELLED * CANCELLED && radius > 0.0)) return;
    Hull hull = {n, inner, matrix, average, rest, average_square, radius};
    End low = {0.0, hull_point(hull, 0.0, first), first};
    End high = {1.0 / radius, hull_point(hull, 1.0 / radius, second), second};
    double floor = sqrt(low.square) / radius;
    double best = hull_value(hull, low.point, low.square);
    for (u32 turn = 0; turn < MAX_STEPS; turn++) {
        double from = low.s > floor ? low.s : floor;
        double s = turn % 2 == 1 && from > 0.0 ? sqrt(from * high.s)
                                               : low.s + crossing(hull, low, high, step) * (high.s - low.s);
        if (!(s > low.s && s < high.s)) break;
        double square = hull_point(hull, s, point);
        double found = hull_value(hull, point, square);
        if (found < best) best = found;
        double limit = radius * s * (radius * s);
        double excess = square - limit;
        End& end = excess > ON_RADIUS * limit ? low : high;
        end.s = s;
        end.square = square;
        for (u32 i = 0; i < n; i++) end.point[i] = point[i];
        if (excess > ON_RADIUS * limit) continue;
        double reached = least_improved(hull, s, point);
        if (excess >= -ON_RADIUS * limit || best - reached <= OPTIMAL * sqrt(average_square)) break;
    }
    for (u32 i = 0; i < n; i++) weights[member(owners, i)] = 1.0 + (double)n * (high.point[i] / high.s);
}

__device__ inline void weigh_cagrad(const Owners& owners, double* scratch, double* weights) {
    u32 n = num_usable(owners);
    if (n >= 2 && threadIdx.x == 0) search_cagrad(owners, n, scratch, weights);
    keep_finite(owners, weights);
}
