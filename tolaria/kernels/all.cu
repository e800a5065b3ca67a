// Every kernel of the crate, as one module: loading it is one call.
//
// Arithmetic rounds after each operation (the build passes --fmad=false) and reductions add in a fixed order, so that
// a step gives the same bits eagerly and in a graph, and elementwise kernels give those of the CPU.

#include <cuda_bf16.h>

typedef unsigned int u32;
typedef unsigned long long u64;

// The position of this thread among those that share blockIdx.y, and their number.
#define FIRST ((u64)blockIdx.x * blockDim.x + threadIdx.x)
#define STRIDE ((u64)gridDim.x * blockDim.x)

// Adds the values of the threads of a block of 256; thread 0 has the sum. The order is that of a binary tree.
__device__ double block_sum(double value) {
    __shared__ double lanes[256];
    lanes[threadIdx.x] = value;
    __syncthreads();
    for (u32 half = 128; half > 0; half /= 2) {
        if (threadIdx.x < half) lanes[threadIdx.x] += lanes[threadIdx.x + half];
        __syncthreads();
    }
    double sum = lanes[0];
    __syncthreads();
    return sum;
}

#include "geometry.cuh"
#include "gram.cu"
#include "solve.cu"
#include "combine.cu"
#include "optimizer.cu"
#include "sums.cu"
#include "scale.cu"
#include "loss.cu"
#include "random.cu"
