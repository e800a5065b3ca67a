// Aligned-MTL: a port, line by line, of src/aggregate/weighting/aligned_mtl.rs, a thread for each row of a rotation. A
// change here is a change there.
//
// Scratch for S owners: 2*S*S + S.
#pragma once
#include "owners.cuh"

const u32 MAX_SWEEPS = 30;
const double DIAGONAL = 1e-34;

__device__ constexpr u32 aligned_mtl_scratch(u32 count) {
    return 2 * count * count + count;
}

__device__ inline bool is_diagonal(const double* matrix, u32 n) {
    double off = 0.0, on = 0.0;
    for (u32 i = 0; i < n; i++) {
        on += matrix[i * n + i] * matrix[i * n + i];
        for (u32 j = i + 1; j < n; j++) off += matrix[i * n + j] * matrix[i * n + j];
    }
    return off <= DIAGONAL * on;
}

// Tangent, cosine and sine of the rotation that makes `off` zero; false when it is.
__device__ inline bool rotation(double left, double right, double off, double* tangent, double* cosine, double* sine) {
    if (fabs(off) <= 0.0) return false;
    double ratio = (right - left) / (2.0 * off);
    double size = 1.0 / (fabs(ratio) + sqrt(ratio * ratio + 1.0));
    *tangent = ratio < 0.0 ? -size : size;
    *cosine = 1.0 / sqrt(*tangent * *tangent + 1.0);
    *sine = *tangent * *cosine;
    return true;
}

// Leaves the eigenvalues on the diagonal of `matrix` (n, n) and the eigenvectors in the columns of `vectors`. Called by
// all threads, after what they wrote to `matrix`; ends with a barrier.
__device__ inline void diagonalize(double* matrix, double* vectors, u32 n) {
    for (u32 at = threadIdx.x; at < n * n; at += blockDim.x) vectors[at] = at / n == at % n ? 1.0 : 0.0;
    __syncthreads();
    for (u32 sweep = 0; sweep < MAX_SWEEPS; sweep++) {
        // Every rotation ends with a barrier, so all threads find the same answer.
        if (is_diagonal(matrix, n)) break;
        for (u32 p = 0; p < n; p++) {
            for (u32 q = p + 1; q < n; q++) {
                double left = matrix[p * n + p], right = matrix[q * n + q], off = matrix[p * n + q];
                double tangent, cosine, sine;
                bool rotates = rotation(left, right, off, &tangent, &cosine, &sine);
                __syncthreads();
                for (u32 k = threadIdx.x; rotates && k < n; k += blockDim.x) {
                    double x = vectors[k * n + p], y = vectors[k * n + q];
                    vectors[k * n + p] = cosine * x - sine * y;
                    vectors[k * n + q] = sine * x + cosine * y;
                    if (k == p) {
                        matrix[p * n + p] = left - tangent * off;
                        matrix[q * n + q] = right + tangent * off;
                        matrix[p * n + q] = 0.0;
                        matrix[q * n + p] = 0.0;
                    } else if (k != q) {
                        double before = matrix[k * n + p], after = matrix[k * n + q];
                        x = cosine * before - sine * after;
                        y = sine * before + cosine * after;
                        matrix[k * n + p] = x;
                        matrix[p * n + k] = x;
                        matrix[k * n + q] = y;
                        matrix[q * n + k] = y;
                    }
                }
                __syncthreads();
            }
        }
    }
}

__device__ inline void weigh_aligned_mtl(const Owners& owners, double* scratch, double* weights) {
    u32 n = num_usable(owners);
    double* inner = scratch;
    double* vectors = inner + n * n;
    double* sums = vectors + n * n;
    if (n >= 2) {
        normalized(owners, n, inner, threadIdx.x, blockDim.x);
        diagonalize(inner, vectors, n);
        double largest = 0.0;
        for (u32 r = 0; r < n; r++) {
            if (inner[r * n + r] > largest) largest = inner[r * n + r];
        }
        double least = CANCELLED * CANCELLED * largest;
        double smallest = largest;
        for (u32 r = 0; r < n; r++) {
            double value = inner[r * n + r];
            if (value > least && value < smallest) smallest = value;
        }
        for (u32 r = threadIdx.x; r < n; r += blockDim.x) {
            sums[r] = 0.0;
            for (u32 i = 0; i < n; i++) sums[r] += vectors[i * n + r];
        }
        __syncthreads();
        for (u32 i = threadIdx.x; i < n; i += blockDim.x) {
            double weight = 0.0;
            for (u32 r = 0; r < n; r++) {
                double value = inner[r * n + r];
                if (value > least) weight += sqrt(smallest / value) * sums[r] * vectors[i * n + r];
            }
            weights[member(owners, i)] = weight;
        }
    }
    keep_finite(owners, weights);
}
