// Attention of bf16 on tensor cores: products of bf16 are summed in f32, and weights are rounded to bf16 for the next product.
//
// A block of 4 warps has 64 rows of one head, a warp 16 of them. A thread has, of each 8 columns of a product, two neighbors
// of row `lane / 4` and the same of the row 8 below: what a product gives lies as the next one takes its left factor. Rows in
// shared memory are WIDTH + 8 long, so that 8 lanes that read 16 bytes of 8 rows use all banks.
// qkv: (batches, length, 3, heads, width), log_sums and deltas: (batches, heads, length).

namespace attention_half {

#define ROWS 64
#define THREADS 128

using attention::copy16;
using attention::end_group;
using attention::LOG2_E;
using attention::Shape;
using attention::wait_for_groups;
typedef __nv_bfloat16 Half;

// sums += left · right, for 16 rows, 16 terms and 8 columns.
__device__ void multiply(float (&sums)[4], const u32 (&left)[4], u32 right0, u32 right1) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right0), "r"(right1));
#else
    __trap();
#endif
}

// Four matrices of 8 rows of 8 numbers, whose rows the lanes point at, 8 lanes for each.
__device__ void load_matrices(u32 (&matrices)[4], const Half* row) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    u32 address = (u32)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
                 : "r"(address)
                 : "memory");
#endif
}

// The same, rows and columns exchanged.
__device__ void load_transposed(u32 (&matrices)[4], const Half* row) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    u32 address = (u32)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
                 : "r"(address)
                 : "memory");
#endif
}

// 2 to a power, as one instruction: weights are rounded to 8 bits later.
__device__ float power_of_two(float x) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(power) : "f"(x));
    return power;
}

__device__ u32 rounded(float low, float high) {
    __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    return *(u32*)&both;
}

// COUNT rows from `first` on into shared memory; zeros beyond `length` and `width`.
template <int COUNT, int WIDTH>
__device__ void load_rows(Half* tile, const Half* source, u64 stride, u32 first, const Shape& shape) {
    constexpr int CHUNKS = WIDTH / 8;
    for (u32 i = threadIdx.x; i < COUNT * CHUNKS; i += THREADS) {
        u32 row = i / CHUNKS, column = i % CHUNKS * 8;
        bool is_there = first + row < shape.length && column < shape.width;
        const Half* from = is_there ? source + (first + row) * stride + column : source;
        copy16((float*)(tile + row * (WIDTH + 8) + column), (const float*)from, is_there);
    }
}

// 16 rows of a tile as a left factor: in registers, or read again each time where they would not fit.
template <int WIDTH>
struct Left {
    static constexpr bool IS_KEPT = WIDTH <= 64;
    u32 kept[IS_KEPT ? WIDTH / 16 : 1][4];
    const Half* place;

    __device__ void open(const Half* tile, u32 first) {
        u32 lane = threadIdx.x % 32;
        place = tile + (first + lane % 16) * (WIDTH + 8) + lane / 16 * 8;
        if (IS_KEPT) {
#pragma unroll
            for (int k = 0; k < WIDTH / 16; k++) load_matrices(kept[IS_KEPT ? k : 0], place + 16 * k);
        }
    }

    __device__ void step(int k, u32 (&factor)[4]) const {
        if (IS_KEPT) {
#pragma unroll
            for (int i = 0; i < 4; i++) factor[i] = kept[IS_KEPT ? k : 0][i];
        } else {
            load_matrices(factor, place + 16 * k);
        }
    }
};

// result = 16 rows · COLUMNS rows of the tile.
template <int COLUMNS, int WIDTH>
__device__ void products(const Left<WIDTH>& left, const Half* tile, float (&result)[COLUMNS / 8][4]) {
    u32 lane = threadIdx.x % 32;
    const Half* place = tile + (lane / 16 * 8 + lane % 8) * (WIDTH + 8) + lane / 8 % 2 * 8;
#pragma unroll
    for (int n = 0; n < COLUMNS / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) result[n][i] = 0.0f;
    }
#pragma unroll
    for (int k = 0; k < WIDTH / 16; k++) {
        u32 a[4];
        left.step(k, a);
#pragma unroll
        for (int n = 0; n < COLUMNS / 16; n++) {
            u32 b[4];
            load_matrices(b, place + 16 * n * (WIDTH + 8) + 16 * k);
            multiply(result[2 * n], a, b[0], b[1]);
            multiply(result[2 * n + 1], a, b[2], b[3]);
        }
    }
}

// sums += weights, rounded, · COUNT rows of the tile.
template <int COUNT, int WIDTH>
__device__ void accumulate(const float (&weights)[COUNT / 8][4], const Half* tile, float (&sums)[WIDTH / 8][4]) {
    u32 lane = threadIdx.x % 32;
    const Half* place = tile + (lane / 8 % 2 * 8 + lane % 8) * (WIDTH + 8) + lane / 16 * 8;
#pragma unroll
    for (int k = 0; k < COUNT / 16; k++) {
        const float(&low)[4] = weights[2 * k];
        const float(&high)[4] = weights[2 * k + 1];
        u32 a[4] = {rounded(low[0], low[1]), rounded(low[2], low[3]), rounded(high[0], high[1]), rounded(high[2], high[3])};
#pragma unroll
        for (int n = 0; n < WIDTH / 16; n++) {
            u32 b[4];
            load_transposed(b, place + 16 * k * (WIDTH + 8) + 16 * n);
            multiply(sums[2 * n], a, b[0], b[1]);
            multiply(sums[2 * n + 1], a, b[2], b[3]);
        }
    }
}

// Writes this thread's columns of one of its two rows, times `factor`.
template <int WIDTH>
__device__ void store_row(Half* target, const float (&sums)[WIDTH / 8][4], int row, float factor, const Shape& shape) {
    u32 lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < WIDTH / 8; n++) {
        u32 column = 8 * n + 2 * (lane % 4);
        // Eight columns are inside of the row or beyond it: the width is a multiple of 8.
        if (column < shape.width) {
            *(u32*)(target + column) = rounded(sums[n][2 * row] * factor, sums[n][2 * row + 1] * factor);
        }
    }
}

__device__ float max_of_four(float value) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 1));
    return fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 2));
}

__device__ float sum_of_four(float value) {
    value += __shfl_xor_sync(0xffffffffu, value, 1);
    return value + __shfl_xor_sync(0xffffffffu, value, 2);
}

// A block per 64 queries, head and batch. With two stages a tile travels while the one before it is multiplied.
template <int WIDTH, int KEYS, int STAGES>
__device__ void attend(const Half* qkv, Half* out, float* log_sums, const Shape& shape) {
    constexpr int PITCH = WIDTH + 8;
    alignas(16) __shared__ Half queries[ROWS * PITCH];
    alignas(16) __shared__ Half keys[STAGES][KEYS * PITCH];
    alignas(16) __shared__ Half values[STAGES][KEYS * PITCH];
    // Where queries see what came before them only, the last ones have most to do: they begin.
    u32 first = (gridDim.x - 1 - blockIdx.x) * ROWS;
    u64 head = blockIdx.y, batch = blockIdx.z, stride = 3 * shape.stride();
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    u32 own = first + 16 * warp;
    const Half* q = qkv + batch * shape.length * stride + head * shape.width;
    const Half* k = q + shape.stride();
    const Half* v = k + shape.stride();
    u32 end = shape.is_causal && first + ROWS < shape.length ? first + ROWS : shape.length;
    u32 tiles = (end + KEYS - 1) / KEYS;
    float factor = shape.scale * LOG2_E;
    float max[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f}, sums[WIDTH / 8][4] = {};
    Left<WIDTH> left;

    load_rows<ROWS, WIDTH>(queries, q, stride, first, shape);
    load_rows<KEYS, WIDTH>(keys[0], k, stride, 0, shape);
    load_rows<KEYS, WIDTH>(values[0], v, stride, 0, shape);
    end_group();
    for (u32 tile = 0; tile < tiles; tile++) {
        u32 start = tile * KEYS, stage = tile % STAGES, next = (tile + 1) % STAGES;
        if (STAGES == 2 && tile + 1 < tiles) {
            load_rows<KEYS, WIDTH>(keys[next], k, stride, start + KEYS, shape);
            load_rows<KEYS, WIDTH>(values[next], v, stride, start + KEYS, shape);
        }
        if (STAGES == 2) end_group();
        wait_for_groups<STAGES - 1>();
        __syncthreads();
        if (tile == 0) left.open(queries, 16 * warp);
        float scores[KEYS / 8][4];
        products<KEYS, WIDTH>(left, keys[stage], scores);
        if (start + KEYS > shape.length || (shape.is_causal && start + KEYS > own)) {
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    u32 key = start + 8 * n + 2 * (lane % 4) + i % 2, query = own + lane / 4 + 8 * (i / 2);
                    if (key >= shape.length || (shape.is_causal && key > query)) scores[n][i] = -INFINITY;
                }
            }
        }
#pragma unroll
        for (int row = 0; row < 2; row++) {
            float new_max = max[row], tile_sum = 0.0f;
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++) {
                new_max = fmaxf(new_max, fmaxf(scores[n][2 * row], scores[n][2 * row + 1]));
            }
            // Every query sees the first key: the maximum is one of what it sees.
            new_max = max_of_four(new_max);
            float shrink = power_of_two((max[row] - new_max) * factor), shift = -new_max * factor;
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++) {
#pragma unroll
                for (int i = 2 * row; i < 2 * row + 2; i++) {
                    scores[n][i] = power_of_two(fmaf(scores[n][i], factor, shift));
                    tile_sum += scores[n][i];
                }
            }
            sum[row] = fmaf(sum[row], shrink, tile_sum);
            max[row] = new_max;
#pragma unroll
            for (int n = 0; n < WIDTH / 8; n++) {
                sums[n][2 * row] *= shrink;
                sums[n][2 * row + 1] *= shrink;
            }
        }
        accumulate<KEYS, WIDTH>(scores, values[stage], sums);
        __syncthreads();
        if (STAGES == 1) {
            if (tile + 1 < tiles) {
                load_rows<KEYS, WIDTH>(keys[0], k, stride, start + KEYS, shape);
                load_rows<KEYS, WIDTH>(values[0], v, stride, start + KEYS, shape);
            }
            end_group();
        }
    }
#pragma unroll
    for (int row = 0; row < 2; row++) {
        u32 query = own + lane / 4 + 8 * row;
        float total = sum_of_four(sum[row]);
        if (query < shape.length) {
            Half* target = out + (batch * shape.length + query) * shape.stride() + head * shape.width;
            store_row<WIDTH>(target, sums, row, 1.0f / total, shape);
            if (lane % 4 == 0) {
                log_sums[(batch * shape.heads + head) * shape.length + query] = fmaf(max[row], factor, log2f(total));
            }
        }
    }
}

// What a block of the backward pass keeps in shared memory: its own rows of two kinds, and tiles of rows of two others.
template <int WIDTH, int TILE, int STAGES>
struct Workspace {
    Half own[2][ROWS * (WIDTH + 8)];
    Half tile[STAGES][2][TILE * (WIDTH + 8)];
    float log_sums[STAGES][TILE];
    float deltas[STAGES][TILE];
};

// Where the rows of one head and batch lie.
struct Head {
    const Half *q, *k, *v, *upstream;
    const float *log_sums, *deltas;
    Half* gradient;
};

// Gradient of 64 queries. With P the weights of attention, dP = dO Vᵀ and delta = rowsum(dO O): dS = P (dP - delta),
// dQ = dS K scale.
template <int WIDTH, int TILE, int STAGES>
__device__ void query_gradient(Workspace<WIDTH, TILE, STAGES>& shared, const Head& at, u32 first, const Shape& shape) {
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, own = first + 16 * warp;
    u64 stride = shape.stride();
    u32 end = shape.is_causal && first + ROWS < shape.length ? first + ROWS : shape.length;
    u32 tiles = (end + TILE - 1) / TILE;
    float factor = shape.scale * LOG2_E, sums[WIDTH / 8][4] = {}, log_sums[2], deltas[2];
    Left<WIDTH> queries, upstream;
    auto load = [&](u32 tile) {
        Half(&target)[2][TILE * (WIDTH + 8)] = shared.tile[tile % STAGES];
        load_rows<TILE, WIDTH>(target[0], at.k, 3 * stride, tile * TILE, shape);
        load_rows<TILE, WIDTH>(target[1], at.v, 3 * stride, tile * TILE, shape);
    };

    load_rows<ROWS, WIDTH>(shared.own[0], at.q, 3 * stride, first, shape);
    load_rows<ROWS, WIDTH>(shared.own[1], at.upstream, stride, first, shape);
    load(0);
    end_group();
#pragma unroll
    for (int row = 0; row < 2; row++) {
        u32 query = own + lane / 4 + 8 * row;
        log_sums[row] = query < shape.length ? at.log_sums[query] : INFINITY;
        deltas[row] = query < shape.length ? at.deltas[query] : 0.0f;
    }
    for (u32 tile = 0; tile < tiles; tile++) {
        u32 start = tile * TILE, stage = tile % STAGES;
        if (STAGES == 2 && tile + 1 < tiles) load(tile + 1);
        if (STAGES == 2) end_group();
        wait_for_groups<STAGES - 1>();
        __syncthreads();
        if (tile == 0) {
            queries.open(shared.own[0], 16 * warp);
            upstream.open(shared.own[1], 16 * warp);
        }
        float scores[TILE / 8][4], slopes[TILE / 8][4];
        products<TILE, WIDTH>(queries, shared.tile[stage][0], scores);
        products<TILE, WIDTH>(upstream, shared.tile[stage][1], slopes);
        bool is_edge = start + TILE > shape.length || (shape.is_causal && start + TILE > own);
#pragma unroll
        for (int n = 0; n < TILE / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                u32 key = start + 8 * n + 2 * (lane % 4) + i % 2, query = own + lane / 4 + 8 * (i / 2);
                float weight = power_of_two(fmaf(scores[n][i], factor, -log_sums[i / 2]));
                // A key beyond the last one is zero, and so is its score: far above those of a query that has large negative ones.
                bool is_seen = key < shape.length && (!shape.is_causal || key <= query);
                if (is_edge && !is_seen) weight = 0.0f;
                scores[n][i] = weight * (slopes[n][i] - deltas[i / 2]);
            }
        }
        accumulate<TILE, WIDTH>(scores, shared.tile[stage][0], sums);
        __syncthreads();
        if (STAGES == 1) {
            if (tile + 1 < tiles) load(tile + 1);
            end_group();
        }
    }
#pragma unroll
    for (int row = 0; row < 2; row++) {
        u32 query = own + lane / 4 + 8 * row;
        if (query < shape.length) store_row<WIDTH>(at.gradient + query * 3 * stride, sums, row, shape.scale, shape);
    }
}

// Gradients of 64 keys and of their values: dV = Pᵀ dO, dK = dSᵀ Q scale.
template <int WIDTH, int TILE, int STAGES>
__device__ void key_gradient(Workspace<WIDTH, TILE, STAGES>& shared, const Head& at, u32 first, const Shape& shape) {
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, own = first + 16 * warp;
    u64 stride = shape.stride();
    // Queries before the keys do not see them.
    u32 begin = shape.is_causal ? first / TILE : 0, tiles = (shape.length + TILE - 1) / TILE;
    float factor = shape.scale * LOG2_E, key_sums[WIDTH / 8][4] = {}, value_sums[WIDTH / 8][4] = {};
    Left<WIDTH> keys, values;
    auto load = [&](u32 tile) {
        u32 stage = tile % STAGES, query = tile * TILE + threadIdx.x;
        load_rows<TILE, WIDTH>(shared.tile[stage][0], at.q, 3 * stride, tile * TILE, shape);
        load_rows<TILE, WIDTH>(shared.tile[stage][1], at.upstream, stride, tile * TILE, shape);
        if (threadIdx.x < TILE) {
            // Queries beyond the last one weigh nothing.
            shared.log_sums[stage][threadIdx.x] = query < shape.length ? at.log_sums[query] : INFINITY;
            shared.deltas[stage][threadIdx.x] = query < shape.length ? at.deltas[query] : 0.0f;
        }
    };

    load_rows<ROWS, WIDTH>(shared.own[0], at.k, 3 * stride, first, shape);
    load_rows<ROWS, WIDTH>(shared.own[1], at.v, 3 * stride, first, shape);
    load(begin);
    end_group();
    for (u32 tile = begin; tile < tiles; tile++) {
        u32 start = tile * TILE, stage = tile % STAGES;
        if (STAGES == 2 && tile + 1 < tiles) load(tile + 1);
        if (STAGES == 2) end_group();
        wait_for_groups<STAGES - 1>();
        __syncthreads();
        if (tile == begin) {
            keys.open(shared.own[0], 16 * warp);
            values.open(shared.own[1], 16 * warp);
        }
        float scores[TILE / 8][4], slopes[TILE / 8][4];
        products<TILE, WIDTH>(keys, shared.tile[stage][0], scores);
        products<TILE, WIDTH>(values, shared.tile[stage][1], slopes);
        bool is_edge = shape.is_causal && start < own + 16;
#pragma unroll
        for (int n = 0; n < TILE / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                u32 place = 8 * n + 2 * (lane % 4) + i % 2, key = own + lane / 4 + 8 * (i / 2);
                float weight = power_of_two(fmaf(scores[n][i], factor, -shared.log_sums[stage][place]));
                if (is_edge && key > start + place) weight = 0.0f;
                scores[n][i] = weight;
                slopes[n][i] = weight * (slopes[n][i] - shared.deltas[stage][place]);
            }
        }
        accumulate<TILE, WIDTH>(scores, shared.tile[stage][1], value_sums);
        accumulate<TILE, WIDTH>(slopes, shared.tile[stage][0], key_sums);
        __syncthreads();
        if (STAGES == 1) {
            if (tile + 1 < tiles) load(tile + 1);
            end_group();
        }
    }
#pragma unroll
    for (int row = 0; row < 2; row++) {
        u32 key = own + lane / 4 + 8 * row;
        if (key < shape.length) {
            Half* target = at.gradient + key * 3 * stride;
            store_row<WIDTH>(target + stride, key_sums, row, shape.scale, shape);
            store_row<WIDTH>(target + 2 * stride, value_sums, row, 1.0f, shape);
        }
    }
}

// Two blocks per 64 rows, head and batch: one for keys and values, which have more to do and begin, one for queries.
template <int WIDTH, int TILE, int STAGES>
__device__ void attend_backward(
    const Half* qkv, const float* log_sums, const float* deltas, const Half* upstream, Half* gradient, const Shape& shape) {
    alignas(16) __shared__ Workspace<WIDTH, TILE, STAGES> shared;
    u64 head = blockIdx.y, batch = blockIdx.z, stride = shape.stride();
    u64 packed = batch * shape.length * 3 * stride + head * shape.width;
    u64 row = (batch * shape.heads + head) * shape.length;
    const Half* q = qkv + packed;
    const Half* of_output = upstream + batch * shape.length * stride + head * shape.width;
    Head at = {q, q + stride, q + 2 * stride, of_output, log_sums + row, deltas + row, gradient + packed};
    u32 tiles = gridDim.x / 2;
    if (blockIdx.x < tiles) {
        key_gradient(shared, at, blockIdx.x * ROWS, shape);
    } else {
        query_gradient(shared, at, (2 * tiles - 1 - blockIdx.x) * ROWS, shape);
    }
}

// delta = out · upstream of each row of each head: 16 threads for each, with 8 neighbors at once. Rows are (batches, length,
// heads, width).
extern "C" __global__ void attention_deltas_half(
    const Half* out, const Half* upstream, float* deltas, u32 length, u32 heads, u32 width, u32 rows) {
    WAIT_FOR_INPUTS;
    u32 row = (blockIdx.x * THREADS + threadIdx.x) / 16, lane = threadIdx.x % 16;
    float sum = 0.0f;
    if (row < rows && 8 * lane < width) {
        u64 place = (u64)row * width + 8 * lane;
        uint4 left = *(const uint4*)(out + place), right = *(const uint4*)(upstream + place);
        const __nv_bfloat162 *a = (const __nv_bfloat162*)&left, *b = (const __nv_bfloat162*)&right;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float2 x = __bfloat1622float2(a[i]), y = __bfloat1622float2(b[i]);
            sum = fmaf(x.x, y.x, fmaf(x.y, y.y, sum));
        }
    }
    for (int other = 8; other > 0; other /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, other);
    u32 position = row / heads;
    if (row < rows && lane == 0) {
        deltas[((u64)(position / length) * heads + row % heads) * length + position % length] = sum;
    }
}

#define ATTENTION(WIDTH, KEYS, TILE, STAGES, BLOCKS)                                                                          \
    extern "C" __global__ void __launch_bounds__(THREADS, 4) attention_half_##WIDTH(                                   \
        const Half* qkv, Half* out, float* log_sums, u32 length, u32 heads, u32 width, u32 is_causal, u32 is_aligned,  \
        float scale) {                                                                                                 \
        WAIT_FOR_INPUTS;                                                                                               \
        attend<WIDTH, KEYS, STAGES>(qkv, out, log_sums, Shape{length, heads, width, is_causal, is_aligned, scale});    \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) attention_backward_half_##WIDTH(                     \
        const Half* qkv, const float* log_sums, const float* deltas, const Half* upstream, Half* gradient, u32 length, \
        u32 heads, u32 width, u32 is_causal, u32 is_aligned, float scale) {                                            \
        WAIT_FOR_INPUTS;                                                                                               \
        attend_backward<WIDTH, TILE, STAGES>(                                                                          \
            qkv, log_sums, deltas, upstream, gradient, Shape{length, heads, width, is_causal, is_aligned, scale});     \
    }

// Shared memory of a block stays below 48 KiB. Last: blocks of the backward pass that share a multiprocessor.
ATTENTION(32, 64, 32, 2, 4)
ATTENTION(64, 64, 32, 2, 3)
ATTENTION(128, 32, 16, 1, 2)

#undef ROWS
#undef THREADS
#undef ATTENTION

}  // namespace attention_half
