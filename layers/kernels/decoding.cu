// Attention of one query per head over keys and values that are kept at one place, of which a number on the device says how many there are.
//
// A block of 128 threads has `chunk` places of one head; LANES threads share a place, each with 8 coordinates. A block keeps the running
// maximum, the sum and the weighted values of its places; the last block of a head to finish adds up those of all, in order.
// queries, out: (batches, heads of queries, width); new_keys, new_values: (batches, heads, width); keys, values: (batches, heads, capacity, width).
// parts: width + 2 numbers per chunk of each head of queries. counters: one per head of queries, 0 before and after.

#include <cuda_fp16.h>

namespace decoding {

#define DECODE_THREADS 128

// 8 numbers as f32.
struct Eight {
    float at[8];
};

__device__ Eight load(const float* from) {
    float4 low = ((const float4*)from)[0], high = ((const float4*)from)[1];
    return {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
}

__device__ Eight load(const __nv_bfloat16* from) {
    uint4 bits = *(const uint4*)from;
    u32 pairs[4] = {bits.x, bits.y, bits.z, bits.w};
    Eight found;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        found.at[2 * i] = __uint_as_float(pairs[i] << 16);
        found.at[2 * i + 1] = __uint_as_float(pairs[i] & 0xffff0000u);
    }
    return found;
}

__device__ Eight load(const __half* from) {
    uint4 bits = *(const uint4*)from;
    const __half2* pairs = (const __half2*)&bits;
    Eight found;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float2 pair = __half22float2(pairs[i]);
        found.at[2 * i] = pair.x;
        found.at[2 * i + 1] = pair.y;
    }
    return found;
}

__device__ void store(float* to, float value) { *to = value; }
__device__ void store(__nv_bfloat16* to, float value) { *to = __float2bfloat16_rn(value); }
__device__ void store(__half* to, float value) { *to = __float2half_rn(value); }

// 8 numbers as they are.
template <typename T>
__device__ void copy8(T* to, const T* from) {
#pragma unroll
    for (int i = 0; i < (int)(8 * sizeof(T) / 16); i++) ((uint4*)to)[i] = ((const uint4*)from)[i];
}

// A maximum of nothing weighs nothing, and is no number to subtract.
__device__ float base_of(float max) { return max == -INFINITY ? 0.0f : max; }

template <typename T, int WIDTH>
__device__ void attend(
    const T* queries, const T* new_keys, const T* new_values, T* keys, T* values, const u32* position, T* out, float* parts,
    u32* counters, u32 heads, u32 groups, u32 capacity, u32 chunk, float factor) {
    constexpr int LANES = WIDTH / 8, PLACES = DECODE_THREADS / LANES, UNROLL = 4;
    __shared__ float maxima[PLACES], sums[PLACES], rows[PLACES * WIDTH];
    __shared__ bool is_last;
    u32 query = blockIdx.y, batch = blockIdx.z, head = query / groups, chunks = gridDim.x;
    u32 lane = threadIdx.x % LANES, group = threadIdx.x / LANES;
    u64 row = ((u64)batch * heads + head), query_row = (u64)batch * heads * groups + query;
    u32 place = *position;
    T* target = out + query_row * WIDTH;
    if (place >= capacity) {
        // There is no place for it: no number is the answer, and nothing is kept.
        if (blockIdx.x == 0) {
            for (u32 i = threadIdx.x; i < WIDTH; i += DECODE_THREADS) store(target + i, NAN);
        }
        for (u32 i = threadIdx.x; i < WIDTH + 2; i += DECODE_THREADS) parts[(query_row * chunks + blockIdx.x) * (WIDTH + 2) + i] = 0.0f;
        return;
    }
    const T* new_key = new_keys + row * WIDTH + lane * 8;
    const T* new_value = new_values + row * WIDTH + lane * 8;
    T* key = keys + row * capacity * WIDTH + lane * 8;
    T* value = values + row * capacity * WIDTH + lane * 8;
    u32 start = blockIdx.x * chunk, end = min(start + chunk, place + 1);
    // Who has its place keeps the new token; others do not read it there.
    if (query % groups == 0 && start <= place && place < start + chunk && group == 0) {
        copy8(key + (u64)place * WIDTH, new_key);
        copy8(value + (u64)place * WIDTH, new_value);
    }
    Eight q = load(queries + query_row * WIDTH + lane * 8), sum = {};
    float max = -INFINITY, total = 0.0f;
    for (u32 first = start + group; first < end; first += PLACES * UNROLL) {
        float scores[UNROLL];
        Eight found[UNROLL];
#pragma unroll
        for (int i = 0; i < UNROLL; i++) {
            u32 at = first + i * PLACES;
            found[i] = at < end ? load(at == place ? new_key : key + (u64)at * WIDTH) : Eight{};
        }
#pragma unroll
        for (int i = 0; i < UNROLL; i++) {
            float product = 0.0f;
#pragma unroll
            for (int c = 0; c < 8; c++) product = fmaf(q.at[c], found[i].at[c], product);
#pragma unroll
            for (int distance = LANES / 2; distance > 0; distance /= 2) {
                // Threads of one place, which are together in a warp, are here together.
                product += __shfl_xor_sync(LANES == 32 ? 0xffffffffu : ((1u << (LANES % 32)) - 1) << (threadIdx.x % 32 / LANES * LANES), product, distance);
            }
            scores[i] = first + i * PLACES < end ? product * factor : -INFINITY;
        }
#pragma unroll
        for (int i = 0; i < UNROLL; i++) {
            u32 at = first + i * PLACES;
            found[i] = at < end ? load(at == place ? new_value : value + (u64)at * WIDTH) : Eight{};
        }
        float new_max = max;
#pragma unroll
        for (int i = 0; i < UNROLL; i++) new_max = fmaxf(new_max, scores[i]);
        float base = base_of(new_max), shrink = exp2f(max - base);
        total *= shrink;
#pragma unroll
        for (int c = 0; c < 8; c++) sum.at[c] *= shrink;
#pragma unroll
        for (int i = 0; i < UNROLL; i++) {
            if (first + i * PLACES >= end) continue;
            float weight = exp2f(scores[i] - base);
            total += weight;
#pragma unroll
            for (int c = 0; c < 8; c++) sum.at[c] = fmaf(weight, found[i].at[c], sum.at[c]);
        }
        max = new_max;
    }
    if (lane == 0) {
        maxima[group] = max;
        sums[group] = total;
    }
#pragma unroll
    for (int c = 0; c < 8; c++) rows[group * WIDTH + lane * 8 + c] = sum.at[c];
    __syncthreads();
    float block_max = -INFINITY, block_sum = 0.0f;
    for (int i = 0; i < PLACES; i++) block_max = fmaxf(block_max, maxima[i]);
    float base = base_of(block_max);
    for (int i = 0; i < PLACES; i++) block_sum = fmaf(sums[i], exp2f(maxima[i] - base), block_sum);
    float* own = parts + (query_row * chunks + blockIdx.x) * (WIDTH + 2);
    for (u32 column = threadIdx.x; column < WIDTH; column += DECODE_THREADS) {
        float weighted = 0.0f;
        for (int i = 0; i < PLACES; i++) weighted = fmaf(rows[i * WIDTH + column], exp2f(maxima[i] - base), weighted);
        if (chunks == 1) store(target + column, weighted / block_sum);
        own[2 + column] = weighted;
    }
    if (threadIdx.x == 0) {
        own[0] = block_max;
        own[1] = block_sum;
    }
    if (chunks == 1) return;
    __threadfence();
    __syncthreads();
    // Counts up to the number of chunks and is 0 again then.
    if (threadIdx.x == 0) is_last = atomicInc(counters + query_row, chunks - 1) == chunks - 1;
    __syncthreads();
    if (!is_last) return;
    __threadfence();
    const float* all = parts + query_row * chunks * (WIDTH + 2);
    u32 used = (place + chunk) / chunk;
    float all_max = -INFINITY;
    for (u32 i = 0; i < used; i++) all_max = fmaxf(all_max, __ldcg(all + (u64)i * (WIDTH + 2)));
    base = base_of(all_max);
    for (u32 column = threadIdx.x; column < WIDTH; column += DECODE_THREADS) {
        float weighted = 0.0f, weights = 0.0f;
        for (u32 i = 0; i < used; i++) {
            const float* part = all + (u64)i * (WIDTH + 2);
            float weight = exp2f(__ldcg(part) - base);
            weights = fmaf(__ldcg(part + 1), weight, weights);
            weighted = fmaf(__ldcg(part + 2 + column), weight, weighted);
        }
        store(target + column, weighted / weights);
    }
}

#define DECODE(T, K, WIDTH)                                                                                                       \
    extern "C" __global__ void __launch_bounds__(DECODE_THREADS) decode_##K##_##WIDTH(                                            \
        const T* queries, const T* new_keys, const T* new_values, T* keys, T* values, const u32* position, T* out, float* parts, \
        u32* counters, u32 heads, u32 groups, u32 capacity, u32 chunk, float factor) {                                            \
        WAIT_FOR_INPUTS;                                                                                                          \
        attend<T, WIDTH>(queries, new_keys, new_values, keys, values, position, out, parts, counters, heads, groups, capacity,    \
                         chunk, factor);                                                                                          \
    }
#define DECODES(T, K)  \
    DECODE(T, K, 32)   \
    DECODE(T, K, 64)   \
    DECODE(T, K, 128)  \
    DECODE(T, K, 256)

DECODES(float, f32)
DECODES(__nv_bfloat16, bf16)
DECODES(__half, f16)

// y[n] = x · W[n] for one row x of `inputs` numbers, a multiple of 8, and weights (outputs, inputs): a warp per output.
template <typename T>
__device__ void row_product(const T* x, const T* weight, T* y, u32 inputs, u32 outputs) {
    u32 output = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (output >= outputs) return;
    const T* row = weight + (u64)output * inputs;
    float sums[4] = {};
    u32 at = lane * 8;
    for (; at + 3 * 256 < inputs; at += 4 * 256) {
        Eight left[4], right[4];
#pragma unroll
        for (int i = 0; i < 4; i++) right[i] = load(row + at + i * 256);
#pragma unroll
        for (int i = 0; i < 4; i++) left[i] = load(x + at + i * 256);
#pragma unroll
        for (int i = 0; i < 4; i++) {
#pragma unroll
            for (int c = 0; c < 8; c++) sums[i] = fmaf(left[i].at[c], right[i].at[c], sums[i]);
        }
    }
    for (int i = 0; at < inputs; at += 256, i = (i + 1) % 4) {
        Eight left = load(x + at), right = load(row + at);
#pragma unroll
        for (int c = 0; c < 8; c++) sums[i] = fmaf(left.at[c], right.at[c], sums[i]);
    }
    float sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
    if (lane == 0) store(y + output, sum);
}

#define ROW_PRODUCT(T, K)                                                                   \
    extern "C" __global__ void __launch_bounds__(128) row_product_##K(                      \
        const T* x, const T* weight, T* y, u32 inputs, u32 outputs) {                       \
        WAIT_FOR_INPUTS;                                                                    \
        row_product<T>(x, weight, y, inputs, outputs);                                      \
    }
ROW_PRODUCT(float, f32)
ROW_PRODUCT(__nv_bfloat16, bf16)

}  // namespace decoding
