// Attention on tensor cores, of bf16 or of f32 whose products are of TF32: products are summed in f32, and weights are rounded for the next
// product.
//
// A block has 64 rows of one head, and goes through the others tile by tile: one travels while the one before it is multiplied.
// qkv: (batches, length, 3, heads, width), log_sums and deltas: (batches, heads, length).

namespace attention_tiles {

#define ROWS 64
#define THREADS 128

using attention::copy16;
using attention::end_group;
using attention::LOG2_E;
using attention::Shape;
using attention::wait_for_groups;
using namespace tensor_cores;

// 2 to a power, as one instruction: weights are rounded to 8 or 11 bits later.
__device__ float power_of_two(float x) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(power) : "f"(x));
    return power;
}

// What a thread copies of rows of one kind into tiles: one chunk of every few rows, zeros beyond `length` and `width`.
template <class T, int WIDTH>
struct Copies {
    static constexpr u32 COUNT_OF_CHUNK = 16 / sizeof(T), CHUNKS = WIDTH / COUNT_OF_CHUNK, APART = THREADS / CHUNKS;
    const T* from;
    u64 stride;
    u32 row, chunk, length;

    __device__ Copies(const T* source, u64 stride, const Shape& shape)
        : stride(stride), row(threadIdx.x / CHUNKS), chunk(threadIdx.x % CHUNKS) {
        bool is_inside = chunk * COUNT_OF_CHUNK < shape.width && row < shape.length;
        from = is_inside ? source + row * stride + chunk * COUNT_OF_CHUNK : source;
        length = is_inside ? shape.length : 0;
    }

    template <int COUNT>
    __device__ void load(T* tile, u32 first) const {
        typedef Tile<T, WIDTH, COUNT> Target;
        const T* source = from + first * stride;
        T* target = tile + Target::place(row, chunk);
        u32 left = first + row < length ? length - first - row : 0;
#pragma unroll
        for (u32 i = 0; i < COUNT; i += APART) {
            bool is_there = i < left;
            // The exchange of chunks repeats every 8 rows.
            T* place = APART % 8 == 0 ? target + i * Target::COLUMNS : tile + Target::place(row + i, chunk);
            copy16((float*)place, (const float*)(is_there ? source + i * stride : from), is_there);
        }
    }
};

// All threads' copies have come, and their products of the tile before are over.
__device__ void meet() {
    wait_for_groups<0>();
    seen();
    __syncthreads();
}

__device__ void put(Half* place, float low, float high) { *(u32*)place = rounded(low, high); }

__device__ void put(float* place, float low, float high) { *(float2*)place = make_float2(low, high); }

// Writes this thread's columns of one of its two rows, times `factor`.
template <class T, int WIDTH>
__device__ void store_row(T* target, const float (&sums)[WIDTH / 8][4], int row, float factor, const Shape& shape) {
    u32 lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < WIDTH / 8; n++) {
        u32 column = 8 * n + 2 * (lane % 4);
        // Both columns are inside of the row or beyond it: the width is a multiple of what is copied at once.
        if (column < shape.width) put(target + column, sums[n][2 * row] * factor, sums[n][2 * row + 1] * factor);
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

// Scores of 64 queries with TILE keys from `start` on: none of a key that is not there or comes later. `own`: the warp's first query.
template <int TILE>
__device__ void hide(float (&scores)[TILE / 8][4], u32 own, u32 start, const Shape& shape) {
    u32 lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < TILE / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u32 key = start + 8 * n + 2 * (lane % 4) + i % 2, query = own + lane / 4 + 8 * (i / 2);
            if (key >= shape.length || (shape.is_causal && key > query)) scores[n][i] = -INFINITY;
        }
    }
}

// The shared memory that the launch gave to a block. A trap where it is too little, or begins where chunks are not exchanged as expected.
template <class Workspace>
__device__ Workspace& in_memory() {
    extern __shared__ __align__(1024) unsigned char memory[];
    u32 given;
    asm("mov.u32 %0, %dynamic_smem_size;" : "=r"(given));
    if (given < sizeof(Workspace) || (u32)__cvta_generic_to_shared(memory) % 1024 != 0) __trap();
    return *(Workspace*)memory;
}

// What a block of the forward pass keeps there.
template <class T, int WIDTH, int KEYS>
struct Forward {
    T queries[ROWS * WIDTH];
    T keys[2][KEYS * WIDTH];
    T values[2][KEYS * WIDTH];
};

// A block per 64 queries, head and batch.
template <class T, int WIDTH, int KEYS>
__device__ void attend(const T* qkv, T* out, float* log_sums, const Shape& shape) {
    auto& [queries, keys, values] = in_memory<Forward<T, WIDTH, KEYS>>();
    // Where queries see what came before them only, the last ones have most to do: they begin.
    u32 first = (gridDim.x - 1 - blockIdx.x) * ROWS;
    u64 head = blockIdx.y, batch = blockIdx.z, stride = 3 * shape.stride();
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    u32 own = first + 16 * warp;
    const T* q = qkv + batch * shape.length * stride + head * shape.width;
    const T* k = q + shape.stride();
    const T* v = k + shape.stride();
    u32 end = shape.is_causal && first + ROWS < shape.length ? first + ROWS : shape.length;
    u32 tiles = (end + KEYS - 1) / KEYS;
    float factor = shape.scale * LOG2_E;
    float max[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f}, sums[WIDTH / 8][4] = {};
    Left<T, WIDTH> left;
    Copies<T, WIDTH> of_keys(k, stride, shape), of_values(v, stride, shape);

    Copies<T, WIDTH>(q, stride, shape).template load<ROWS>(queries, first);
    of_keys.template load<KEYS>(keys[0], 0);
    of_values.template load<KEYS>(values[0], 0);
    end_group();
    for (u32 tile = 0; tile < tiles; tile++) {
        u32 start = tile * KEYS, stage = tile % 2;
        meet();
        if (tile == 0) left.open(queries);
        if (tile + 1 < tiles) {
            of_keys.template load<KEYS>(keys[stage ^ 1], start + KEYS);
            of_values.template load<KEYS>(values[stage ^ 1], start + KEYS);
        }
        end_group();
        float scores[KEYS / 8][4];
        begin();
        products<KEYS, WIDTH>(left, keys[stage], scores);
        wait<0>(scores);
        if (start + KEYS > shape.length || (shape.is_causal && start + KEYS > own)) hide<KEYS>(scores, own, start, shape);
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
        wait<0>(sums);
    }
#pragma unroll
    for (int row = 0; row < 2; row++) {
        u32 query = own + lane / 4 + 8 * row;
        float total = sum_of_four(sum[row]);
        if (query < shape.length) {
            T* target = out + (batch * shape.length + query) * shape.stride() + head * shape.width;
            store_row<T, WIDTH>(target, sums, row, 1.0f / total, shape);
            if (lane % 4 == 0) {
                log_sums[(batch * shape.heads + head) * shape.length + query] = fmaf(max[row], factor, log2f(total));
            }
        }
    }
}

// The same of the backward pass: its own rows of two kinds, and tiles of rows of two others.
template <class T, int WIDTH, int TILE>
struct Backward {
    T own[2][ROWS * WIDTH];
    T tile[2][2][TILE * WIDTH];
    float log_sums[2][TILE];
    float deltas[2][TILE];
};

// Where the rows of one head and batch lie.
template <class T>
struct Head {
    const T *q, *k, *v, *upstream;
    const float *log_sums, *deltas;
    T* gradient;
};

// Gradient of 64 queries. With P the weights of attention, dP = dO Vᵀ and delta = rowsum(dO O): dS = P (dP - delta),
// dQ = dS K scale.
template <class T, int WIDTH, int TILE>
__device__ void query_gradient(Backward<T, WIDTH, TILE>& shared, const Head<T>& at, u32 first, const Shape& shape) {
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, own = first + 16 * warp;
    u64 stride = shape.stride();
    u32 end = shape.is_causal && first + ROWS < shape.length ? first + ROWS : shape.length;
    u32 tiles = (end + TILE - 1) / TILE;
    float factor = shape.scale * LOG2_E, sums[WIDTH / 8][4] = {}, log_sums[2], deltas[2];
    Left<T, WIDTH> queries, upstream;
    Copies<T, WIDTH> of_keys(at.k, 3 * stride, shape), of_values(at.v, 3 * stride, shape);
    auto load = [&](u32 tile) {
        of_keys.template load<TILE>(shared.tile[tile % 2][0], tile * TILE);
        of_values.template load<TILE>(shared.tile[tile % 2][1], tile * TILE);
    };

    Copies<T, WIDTH>(at.q, 3 * stride, shape).template load<ROWS>(shared.own[0], first);
    Copies<T, WIDTH>(at.upstream, stride, shape).template load<ROWS>(shared.own[1], first);
    load(0);
    end_group();
#pragma unroll
    for (int row = 0; row < 2; row++) {
        u32 query = own + lane / 4 + 8 * row;
        log_sums[row] = query < shape.length ? at.log_sums[query] : INFINITY;
        deltas[row] = query < shape.length ? at.deltas[query] : 0.0f;
    }
    for (u32 tile = 0; tile < tiles; tile++) {
        u32 start = tile * TILE, stage = tile % 2;
        meet();
        if (tile == 0) {
            queries.open(shared.own[0]);
            upstream.open(shared.own[1]);
        }
        if (tile + 1 < tiles) load(tile + 1);
        end_group();
        float scores[TILE / 8][4], slopes[TILE / 8][4];
        begin();
        products<TILE, WIDTH>(queries, shared.tile[stage][0], scores);
        products<TILE, WIDTH>(upstream, shared.tile[stage][1], slopes);
        wait<1>(scores);
        if (start + TILE > shape.length || (shape.is_causal && start + TILE > own)) hide<TILE>(scores, own, start, shape);
#pragma unroll
        for (int n = 0; n < TILE / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) scores[n][i] = power_of_two(fmaf(scores[n][i], factor, -log_sums[i / 2]));
        }
        wait<0>(slopes);
#pragma unroll
        for (int n = 0; n < TILE / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) scores[n][i] *= slopes[n][i] - deltas[i / 2];
        }
        accumulate<TILE, WIDTH>(scores, shared.tile[stage][0], sums);
        wait<0>(sums);
    }
#pragma unroll
    for (int row = 0; row < 2; row++) {
        u32 query = own + lane / 4 + 8 * row;
        if (query < shape.length) store_row<T, WIDTH>(at.gradient + query * 3 * stride, sums, row, shape.scale, shape);
    }
}

// Gradients of 64 keys and of their values: dV = Pᵀ dO, dK = dSᵀ Q scale.
template <class T, int WIDTH, int TILE>
__device__ void key_gradient(Backward<T, WIDTH, TILE>& shared, const Head<T>& at, u32 first, const Shape& shape) {
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, own = first + 16 * warp;
    u64 stride = shape.stride();
    // Queries before the keys do not see them.
    u32 begin_tile = shape.is_causal ? first / TILE : 0, tiles = (shape.length + TILE - 1) / TILE;
    float factor = shape.scale * LOG2_E, key_sums[WIDTH / 8][4] = {}, value_sums[WIDTH / 8][4] = {};
    Left<T, WIDTH> keys, values;
    Copies<T, WIDTH> of_queries(at.q, 3 * stride, shape), of_upstream(at.upstream, stride, shape);
    auto load = [&](u32 tile) {
        u32 stage = tile % 2, query = tile * TILE + threadIdx.x;
        of_queries.template load<TILE>(shared.tile[stage][0], tile * TILE);
        of_upstream.template load<TILE>(shared.tile[stage][1], tile * TILE);
        if (threadIdx.x < TILE) {
            // Queries beyond the last one weigh nothing.
            shared.log_sums[stage][threadIdx.x] = query < shape.length ? at.log_sums[query] : INFINITY;
            shared.deltas[stage][threadIdx.x] = query < shape.length ? at.deltas[query] : 0.0f;
        }
    };

    Copies<T, WIDTH>(at.k, 3 * stride, shape).template load<ROWS>(shared.own[0], first);
    Copies<T, WIDTH>(at.v, 3 * stride, shape).template load<ROWS>(shared.own[1], first);
    load(begin_tile);
    end_group();
    for (u32 tile = begin_tile; tile < tiles; tile++) {
        u32 start = tile * TILE, stage = tile % 2;
        meet();
        if (tile == begin_tile) {
            keys.open(shared.own[0]);
            values.open(shared.own[1]);
        }
        if (tile + 1 < tiles) load(tile + 1);
        end_group();
        float scores[TILE / 8][4], slopes[TILE / 8][4];
        begin();
        products<TILE, WIDTH>(keys, shared.tile[stage][0], scores);
        products<TILE, WIDTH>(values, shared.tile[stage][1], slopes);
        wait<1>(scores);
        if (shape.is_causal && start < own + 16) {
#pragma unroll
            for (int n = 0; n < TILE / 8; n++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    u32 query = start + 8 * n + 2 * (lane % 4) + i % 2, key = own + lane / 4 + 8 * (i / 2);
                    if (key > query) scores[n][i] = -INFINITY;
                }
            }
        }
#pragma unroll
        for (int n = 0; n < TILE / 8; n++) {
            float2 sums = *(const float2*)&shared.log_sums[stage][8 * n + 2 * (lane % 4)];
#pragma unroll
            for (int i = 0; i < 4; i++) scores[n][i] = power_of_two(fmaf(scores[n][i], factor, -(i % 2 ? sums.y : sums.x)));
        }
        accumulate<TILE, WIDTH>(scores, shared.tile[stage][1], value_sums);
        wait<1>(slopes);
#pragma unroll
        for (int n = 0; n < TILE / 8; n++) {
            float2 delta = *(const float2*)&shared.deltas[stage][8 * n + 2 * (lane % 4)];
#pragma unroll
            for (int i = 0; i < 4; i++) slopes[n][i] = scores[n][i] * (slopes[n][i] - (i % 2 ? delta.y : delta.x));
        }
        accumulate<TILE, WIDTH>(slopes, shared.tile[stage][0], key_sums);
        wait<0>(key_sums);
        wait<0>(value_sums);
    }
#pragma unroll
    for (int row = 0; row < 2; row++) {
        u32 key = own + lane / 4 + 8 * row;
        if (key < shape.length) {
            T* target = at.gradient + key * 3 * stride;
            store_row<T, WIDTH>(target + stride, key_sums, row, shape.scale, shape);
            store_row<T, WIDTH>(target + 2 * stride, value_sums, row, 1.0f, shape);
        }
    }
}

// Two blocks per 64 rows, head and batch: one for keys and values, which have more to do and begin, one for queries.
template <class T, int WIDTH, int TILE>
__device__ void attend_backward(
    const T* qkv, const float* log_sums, const float* deltas, const T* upstream, T* gradient, const Shape& shape) {
    auto& shared = in_memory<Backward<T, WIDTH, TILE>>();
    u64 head = blockIdx.y, batch = blockIdx.z, stride = shape.stride();
    u64 packed = batch * shape.length * 3 * stride + head * shape.width;
    u64 row = (batch * shape.heads + head) * shape.length;
    const T* q = qkv + packed;
    const T* of_output = upstream + batch * shape.length * stride + head * shape.width;
    Head<T> at = {q, q + stride, q + 2 * stride, of_output, log_sums + row, deltas + row, gradient + packed};
    u32 tiles = gridDim.x / 2;
    if (blockIdx.x < tiles) {
        key_gradient(shared, at, blockIdx.x * ROWS, shape);
    } else {
        query_gradient(shared, at, (2 * tiles - 1 - blockIdx.x) * ROWS, shape);
    }
}

// a · b of the numbers in 16 bytes, added to `sum`.
__device__ float product_of_chunks(uint4 left, uint4 right, float sum, const Half*) {
    const __nv_bfloat162 *a = (const __nv_bfloat162*)&left, *b = (const __nv_bfloat162*)&right;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float2 x = __bfloat1622float2(a[i]), y = __bfloat1622float2(b[i]);
        sum = fmaf(x.x, y.x, fmaf(x.y, y.y, sum));
    }
    return sum;
}

__device__ float product_of_chunks(uint4 left, uint4 right, float sum, const float*) {
    const float *a = (const float*)&left, *b = (const float*)&right;
#pragma unroll
    for (int i = 0; i < 4; i++) sum = fmaf(a[i], b[i], sum);
    return sum;
}

// delta = out · upstream of each row of each head: 16 threads for each, with 16 bytes at once. Rows are (batches, length, heads, width).
template <class T>
__device__ void sum_products(const T* out, const T* upstream, float* deltas, u32 length, u32 heads, u32 width, u32 rows) {
    constexpr u32 COUNT = 16 / sizeof(T);
    u32 row = blockIdx.x * (THREADS / 16) + threadIdx.x / 16, lane = threadIdx.x % 16;
    float sum = 0.0f;
    for (u32 column = COUNT * lane; row < rows && column < width; column += 16 * COUNT) {
        u64 place = (u64)row * width + column;
        sum = product_of_chunks(*(const uint4*)(out + place), *(const uint4*)(upstream + place), sum, out);
    }
    for (int other = 8; other > 0; other /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, other);
    u32 position = row / heads;
    if (row < rows && lane == 0) {
        deltas[((u64)(position / length) * heads + row % heads) * length + position % length] = sum;
    }
}

#define DELTAS(NAME, T)                                                                                                \
    extern "C" __global__ void attention_deltas_##NAME(                                                                \
        const T* out, const T* upstream, float* deltas, u32 length, u32 heads, u32 width, u32 rows) {                  \
        WAIT_FOR_INPUTS;                                                                                               \
        sum_products(out, upstream, deltas, length, heads, width, rows);                                               \
    }

DELTAS(half, Half)
DELTAS(f32, float)

#define ATTENTION(NAME, T, WIDTH, KEYS, TILE, FORWARD, BACKWARD)                                                       \
    extern "C" __global__ void __launch_bounds__(THREADS, FORWARD) attention_##NAME##_##WIDTH(                         \
        const T* qkv, T* out, float* log_sums, u32 length, u32 heads, u32 width, u32 is_causal, u32 is_aligned,        \
        float scale) {                                                                                                 \
        WAIT_FOR_INPUTS;                                                                                               \
        attend<T, WIDTH, KEYS>(qkv, out, log_sums, Shape{length, heads, width, is_causal, is_aligned, scale});         \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS, BACKWARD) attention_backward_##NAME##_##WIDTH(               \
        const T* qkv, const float* log_sums, const float* deltas, const T* upstream, T* gradient, u32 length,          \
        u32 heads, u32 width, u32 is_causal, u32 is_aligned, float scale) {                                            \
        WAIT_FOR_INPUTS;                                                                                               \
        attend_backward<T, WIDTH, TILE>(                                                                               \
            qkv, log_sums, deltas, upstream, gradient, Shape{length, heads, width, is_causal, is_aligned, scale});     \
    }

// Keys of a tile of the forward pass, rows of one of the backward pass, whose memory `cuda.rs` gives; then blocks of each that share a
// multiprocessor.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
ATTENTION(half, Half, 32, 64, 64, 4, 4)
ATTENTION(half, Half, 64, 64, 64, 4, 3)
ATTENTION(half, Half, 128, 32, 32, 3, 2)
#else
ATTENTION(half, Half, 32, 64, 32, 4, 4)
ATTENTION(half, Half, 64, 64, 32, 4, 3)
ATTENTION(half, Half, 128, 32, 16, 4, 2)
#endif
ATTENTION(tf32, float, 32, 32, 32, 4, 3)
ATTENTION(tf32, float, 64, 32, 32, 3, 2)
ATTENTION(tf32, float, 128, 16, 16, 3, 2)

#undef DELTAS
#undef ROWS
#undef THREADS
#undef ATTENTION

}  // namespace attention_tiles
