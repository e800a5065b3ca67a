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

// What a thread adds at once: four numbers of a row, or one.
__device__ float4 plus(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }
__device__ float plus(float a, float b) { return a + b; }

// target[i] = the sum of upstream[n][i] over the listed positions n, after what is there where this is not the first list.
template <class T>
__device__ void add_rows(const u32* found, u32 total, const float* upstream, float* target, u32 width, bool is_first) {
    u32 count = width * sizeof(float) / sizeof(T);
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
        T sum = is_first ? T{} : ((const T*)target)[i];
#pragma unroll 8
        for (u32 match = 0; match < total; match++) sum = plus(sum, ((const T*)(upstream + (u64)found[match] * width))[i]);
        ((T*)target)[i] = sum;
    }
}

// target = sum of upstream[n] over the n in [from, positions) with ids[n] == id, by a block of 128 threads. Each looks at GROUPS ids
// at once.
__device__ void sum_of_positions(
    const u32* ids, const float* upstream, float* target, u32 id, u32 from, u32 positions, u32 width) {
    const u32 GROUPS = 8, WARPS = 4;
    __shared__ u32 found[128 * GROUPS];
    __shared__ u32 counts[GROUPS * WARPS];
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    bool is_first = true, in_fours = width % 4 == 0 && ((u64)upstream | (u64)target) % 16 == 0;
    for (u32 start = from; start < positions; start += 128 * GROUPS) {
        u32 matches[GROUPS];
#pragma unroll
        for (u32 group = 0; group < GROUPS; group++) {
            u32 position = start + 128 * group + threadIdx.x;
            matches[group] = __ballot_sync(0xffffffffu, position < positions && ids[position] == id);
            if (lane == 0) counts[WARPS * group + warp] = __popc(matches[group]);
        }
        __syncthreads();
        u32 total = 0;
#pragma unroll
        for (u32 group = 0; group < GROUPS; group++) {
#pragma unroll
            for (u32 w = 0; w < WARPS; w++) {
                // Positions ascend with group, warp and lane.
                u32 place = total + __popc(matches[group] & ((1u << lane) - 1));
                if (w == warp && (matches[group] >> lane) % 2 == 1) found[place] = start + 128 * group + threadIdx.x;
                total += counts[WARPS * group + w];
            }
        }
        __syncthreads();
        if (total > 0 && in_fours) add_rows<float4>(found, total, upstream, target, width, is_first);
        if (total > 0 && !in_fours) add_rows<float>(found, total, upstream, target, width, is_first);
        is_first = is_first && total == 0;
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
