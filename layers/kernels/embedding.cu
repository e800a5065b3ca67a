// Rows of a table, and the sums of their gradients in the order of their positions.

namespace embedding {

// y[n] = table[ids[n]]; an id that is no row gives NaN, the largest number zeros. A block per position.
extern "C" __global__ void __launch_bounds__(128) embedding_rows(
    const float* table, const u32* ids, float* y, u32 rows, u32 width) {
    WAIT_FOR_INPUTS;
    u32 id = ids[blockIdx.x];
    float* target = y + (u64)blockIdx.x * width;
    const float* source = table + (u64)id * width;
    for (u32 i = threadIdx.x; i < width; i += blockDim.x) target[i] = id < rows ? source[i] : id == 0xffffffffu ? 0.0f : NAN;
}

// target = sum of upstream[n] over the n in [from, positions) with ids[n] == id, by a block of 128 threads.
__device__ void sum_of_positions(
    const u32* ids, const float* upstream, float* target, u32 id, u32 from, u32 positions, u32 width) {
    __shared__ u32 found[128];
    __shared__ u32 counts[4];
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    bool is_first = true;
    for (u32 start = from; start < positions; start += 128) {
        u32 position = start + threadIdx.x;
        bool is_match = position < positions && ids[position] == id;
        u32 matches = __ballot_sync(0xffffffffu, is_match);
        if (lane == 0) counts[warp] = __popc(matches);
        __syncthreads();
        u32 total = 0, before = 0;
        for (u32 w = 0; w < 4; w++) {
            before += w < warp ? counts[w] : 0;
            total += counts[w];
        }
        if (is_match) found[before + __popc(matches & ((1u << lane) - 1))] = position;
        __syncthreads();
        if (total > 0) {
            for (u32 i = threadIdx.x; i < width; i += 128) {
                float sum = is_first ? 0.0f : target[i];
#pragma unroll 4
                for (u32 match = 0; match < total; match++) sum += upstream[(u64)found[match] * width + i];
                target[i] = sum;
            }
            is_first = false;
        }
        // The next round writes what this one reads.
        __syncthreads();
    }
    if (is_first) {
        for (u32 i = threadIdx.x; i < width; i += 128) target[i] = 0.0f;
    }
}

// A block per row of the table. Writes every row.
extern "C" __global__ void __launch_bounds__(128) embedding_gradient_by_row(
    const u32* ids, const float* upstream, float* gradient, u32 positions, u32 width) {
    WAIT_FOR_INPUTS;
    sum_of_positions(ids, upstream, gradient + (u64)blockIdx.x * width, blockIdx.x, 0, positions, width);
}

// A block per position: the first one of an id sums for all of them. The other rows stay as they are.
extern "C" __global__ void __launch_bounds__(128) embedding_gradient_by_position(
    const u32* ids, const float* upstream, float* gradient, u32 positions, u32 rows, u32 width) {
    WAIT_FOR_INPUTS;
    u32 id = ids[blockIdx.x];
    if (id >= rows) return;
    for (u32 start = 0; start < blockIdx.x; start += 128) {
        u32 position = start + threadIdx.x;
        if (__syncthreads_or(position < blockIdx.x && ids[position] == id)) return;
    }
    sum_of_positions(ids, upstream, gradient + (u64)id * width, id, blockIdx.x, positions, width);
}

}  // namespace embedding
