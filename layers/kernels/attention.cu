// Attention of one block of 16 rows of one head at a time: softmax(Q Kᵀ scale) V, tile by tile with a running maximum.
//
// A block of 128 threads is 8 groups of 16 lanes; a group has 2 rows of the block. Of a tile of columns a lane has every
// 16th, and of the sums over columns WIDTH / 16 coordinates. Rows in shared memory are WIDTH + 4 long, so that 8 lanes
// that read one vector of 4 each from 8 rows use all banks.
// qkv: (batches, length, 3, heads, width). log_sums: log2 of the sum of exponentials of each row, (batches, heads, length).

namespace attention {

#define ROWS 16
#define THREADS 128

// 16 bytes to shared memory, zeros where the source is not there.
__device__ void copy16(float* target, const float* source, bool is_there) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    u32 address = (u32)__cvta_generic_to_shared(target), bytes = is_there ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(address), "l"(source), "r"(bytes) : "memory");
#else
    *(float4*)target = is_there ? *(const float4*)source : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#endif
}

// Ends a group of copies.
__device__ void end_group() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;\n" ::: "memory");
#endif
}

// Waits for this thread's copies but those of the last PENDING groups.
template <int PENDING>
__device__ void wait_for_groups() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;\n" ::"n"(PENDING) : "memory");
#endif
}

template <int COUNT>
struct alignas(COUNT * sizeof(float)) Vector {
    float at[COUNT];
};

// How a lane's coordinates lie in a row: CHUNKS vectors of VECTOR.
template <int WIDTH>
struct Share {
    static constexpr int VECTOR = WIDTH >= 64 ? 4 : WIDTH / 16;
    static constexpr int CHUNKS = WIDTH / 16 / VECTOR;
    static constexpr int PITCH = WIDTH + 4;
    static __device__ u32 column(u32 lane, int chunk) { return chunk * 16 * VECTOR + lane * VECTOR; }
};

// What the rows of all blocks have in common.
struct Shape {
    u32 length, heads, width, is_causal, is_aligned;
    float scale;
    __device__ u64 stride() const { return (u64)heads * width; }
};

// COUNT rows from `first` on into shared memory; zeros beyond `length` and `width`.
template <int COUNT, int WIDTH>
__device__ void load_rows(float* tile, const float* source, u64 stride, u32 first, const Shape& shape) {
    constexpr int PITCH = Share<WIDTH>::PITCH;
    if (shape.is_aligned) {
        for (u32 i = threadIdx.x; i < COUNT * WIDTH / 4; i += THREADS) {
            u32 row = i / (WIDTH / 4), column = i % (WIDTH / 4) * 4;
            bool is_there = first + row < shape.length && column < shape.width;
            copy16(tile + row * PITCH + column, is_there ? source + (first + row) * stride + column : source, is_there);
        }
    } else {
        for (u32 i = threadIdx.x; i < COUNT * WIDTH; i += THREADS) {
            u32 row = i / WIDTH, column = i % WIDTH;
            bool is_there = first + row < shape.length && column < shape.width;
            tile[row * PITCH + column] = is_there ? source[(first + row) * stride + column] : 0.0f;
        }
    }
}

// result[i][j] = left[i] · right[16 j]
template <int COLUMNS, int WIDTH>
__device__ void products(const float* left, const float* right, float (&result)[2][COLUMNS]) {
    constexpr int PITCH = Share<WIDTH>::PITCH;
#pragma unroll
    for (int j = 0; j < COLUMNS; j++) result[0][j] = result[1][j] = 0.0f;
#pragma unroll 4
    for (int k = 0; k < WIDTH; k += 4) {
        Vector<4> a[2];
#pragma unroll
        for (int i = 0; i < 2; i++) a[i] = *(const Vector<4>*)(left + i * PITCH + k);
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
            Vector<4> b = *(const Vector<4>*)(right + 16 * j * PITCH + k);
#pragma unroll
            for (int i = 0; i < 2; i++) {
#pragma unroll
                for (int e = 0; e < 4; e++) result[i][j] = fmaf(a[i].at[e], b.at[e], result[i][j]);
            }
        }
    }
}

// sums[i] += weights[i] · rows, for the coordinates of this lane
template <int COUNT, int WIDTH>
__device__ void accumulate(const float* weights, const float* rows, u32 lane, float (&sums)[2][WIDTH / 16]) {
    constexpr int VECTOR = Share<WIDTH>::VECTOR, PITCH = Share<WIDTH>::PITCH;
#pragma unroll 4
    for (int k = 0; k < COUNT; k += 4) {
        Vector<4> w[2];
#pragma unroll
        for (int i = 0; i < 2; i++) w[i] = *(const Vector<4>*)(weights + i * (COUNT + 4) + k);
#pragma unroll
        for (int e = 0; e < 4; e++) {
#pragma unroll
            for (int chunk = 0; chunk < Share<WIDTH>::CHUNKS; chunk++) {
                const float* place = rows + (k + e) * PITCH + Share<WIDTH>::column(lane, chunk);
                Vector<VECTOR> value = *(const Vector<VECTOR>*)place;
#pragma unroll
                for (int c = 0; c < VECTOR; c++) {
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        float& sum = sums[i][chunk * VECTOR + c];
                        sum = fmaf(w[i].at[e], value.at[c], sum);
                    }
                }
            }
        }
    }
}

// Writes the coordinates of this lane of one row, times `factor`.
template <int WIDTH>
__device__ void store_row(float* target, const float (&sums)[WIDTH / 16], float factor, u32 lane, const Shape& shape) {
    constexpr int VECTOR = Share<WIDTH>::VECTOR;
#pragma unroll
    for (int chunk = 0; chunk < Share<WIDTH>::CHUNKS; chunk++) {
        u32 column = Share<WIDTH>::column(lane, chunk);
        Vector<VECTOR> value;
#pragma unroll
        for (int c = 0; c < VECTOR; c++) value.at[c] = sums[chunk * VECTOR + c] * factor;
        if (shape.is_aligned) {
            // A vector is inside of the row or beyond it: the width is a multiple of 4.
            if (column < shape.width) *(Vector<VECTOR>*)(target + column) = value;
        } else {
#pragma unroll
            for (int c = 0; c < VECTOR; c++) {
                if (column + c < shape.width) target[column + c] = value.at[c];
            }
        }
    }
}

__device__ float max_of_lanes(float value) {
    for (int lane = 8; lane > 0; lane /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, lane));
    return value;
}

__device__ float sum_of_lanes(float value) {
    for (int lane = 8; lane > 0; lane /= 2) value += __shfl_xor_sync(0xffffffffu, value, lane);
    return value;
}

// left · right of one row, by its 16 lanes; 0 beyond the rows.
template <int WIDTH>
__device__ float row_product(const float* left, const float* right, bool is_there, u32 lane, const Shape& shape) {
    constexpr int VECTOR = Share<WIDTH>::VECTOR;
    float sum = 0.0f;
#pragma unroll
    for (int chunk = 0; chunk < Share<WIDTH>::CHUNKS; chunk++) {
        u32 column = Share<WIDTH>::column(lane, chunk);
        if (is_there && shape.is_aligned) {
            if (column < shape.width) {
                Vector<VECTOR> a = *(const Vector<VECTOR>*)(left + column);
                Vector<VECTOR> b = *(const Vector<VECTOR>*)(right + column);
#pragma unroll
                for (int c = 0; c < VECTOR; c++) sum = fmaf(a.at[c], b.at[c], sum);
            }
        } else if (is_there) {
            for (int c = 0; c < VECTOR; c++) {
                if (column + c < shape.width) sum = fmaf(left[column + c], right[column + c], sum);
            }
        }
    }
    return sum_of_lanes(sum);
}

constexpr float LOG2_E = 1.44269504088896340736f;

// A block per 16 queries, head and batch.
template <int WIDTH, int KEYS>
__device__ void attend(const float* qkv, float* out, float* log_sums, const Shape& shape) {
    constexpr int PITCH = Share<WIDTH>::PITCH, COLUMNS = KEYS / 16;
    alignas(16) __shared__ float queries[ROWS * PITCH];
    alignas(16) __shared__ float keys[KEYS * PITCH];
    alignas(16) __shared__ float values[KEYS * PITCH];
    alignas(16) __shared__ float weights[ROWS * (KEYS + 4)];
    // Where queries see what came before them only, the last ones have most to do: they begin.
    u32 first = (gridDim.x - 1 - blockIdx.x) * ROWS;
    u64 head = blockIdx.y, batch = blockIdx.z;
    u32 group = threadIdx.x / 16, lane = threadIdx.x % 16;
    u64 stride = 3 * shape.stride();
    const float* q = qkv + batch * shape.length * stride + head * shape.width;
    const float* k = q + shape.stride();
    const float* v = k + shape.stride();
    u32 end = shape.is_causal && first + ROWS < shape.length ? first + ROWS : shape.length;
    float factor = shape.scale * LOG2_E;
    float max[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f}, sums[2][WIDTH / 16] = {};
    float* own_weights = weights + 2 * group * (KEYS + 4);

    load_rows<ROWS, WIDTH>(queries, q, stride, first, shape);
    load_rows<KEYS, WIDTH>(keys, k, stride, 0, shape);
    end_group();
    load_rows<KEYS, WIDTH>(values, v, stride, 0, shape);
    end_group();
    // A tile begins with a key that every row of this block sees: KEYS is a multiple of ROWS.
    for (u32 start = 0; start < end; start += KEYS) {
        float scores[2][COLUMNS];
        wait_for_groups<1>();
        __syncthreads();
        products<COLUMNS, WIDTH>(queries + 2 * group * PITCH, keys + lane * PITCH, scores);
        __syncthreads();
        // The next keys travel while this tile's values are added up.
        if (start + KEYS < end) load_rows<KEYS, WIDTH>(keys, k, stride, start + KEYS, shape);
        end_group();
#pragma unroll
        for (int i = 0; i < 2; i++) {
            u32 query = first + 2 * group + i;
            float tile_max = -INFINITY, tile_sum = 0.0f;
#pragma unroll
            for (int j = 0; j < COLUMNS; j++) {
                u32 key = start + lane + 16 * j;
                bool is_seen = key < shape.length && (!shape.is_causal || key <= query);
                if (!is_seen) scores[i][j] = -INFINITY;
                tile_max = fmaxf(tile_max, scores[i][j]);
            }
            float new_max = fmaxf(max[i], max_of_lanes(tile_max));
            float shrink = exp2f((max[i] - new_max) * factor);
#pragma unroll
            for (int j = 0; j < COLUMNS; j++) {
                float weight = exp2f((scores[i][j] - new_max) * factor);
                tile_sum += weight;
                own_weights[i * (KEYS + 4) + lane + 16 * j] = weight;
            }
            sum[i] = fmaf(sum[i], shrink, tile_sum);
            max[i] = new_max;
#pragma unroll
            for (int c = 0; c < WIDTH / 16; c++) sums[i][c] *= shrink;
        }
        wait_for_groups<1>();
        __syncthreads();
        accumulate<KEYS, WIDTH>(own_weights, values, lane, sums);
        __syncthreads();
        if (start + KEYS < end) load_rows<KEYS, WIDTH>(values, v, stride, start + KEYS, shape);
        end_group();
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        u32 query = first + 2 * group + i;
        float total = sum_of_lanes(sum[i]);
        if (query < shape.length) {
            float* target = out + (batch * shape.length + query) * shape.stride() + head * shape.width;
            store_row<WIDTH>(target, sums[i], 1.0f / total, lane, shape);
            if (lane == 0) {
                u64 row = (batch * shape.heads + head) * shape.length + query;
                log_sums[row] = fmaf(max[i], factor, log2f(total));
            }
        }
    }
}

// What a block of the backward pass keeps in shared memory: its own rows of two kinds, and a tile of rows of two others.
template <int WIDTH, int TILE>
struct Workspace {
    float own[2][ROWS * (WIDTH + 4)];
    float tile[2][TILE * (WIDTH + 4)];
    float weights[ROWS * (TILE + 4)];
    float log_sums[TILE];
    float deltas[TILE];
};

// Where the rows of one head and batch lie.
struct Head {
    const float *q, *k, *v, *out, *upstream, *log_sums;
    float* gradient;
};

// Gradient of 16 queries. With P the weights of attention, dP = dO Vᵀ and delta = rowsum(dO O): dS = P (dP - delta),
// dQ = dS K scale.
template <int WIDTH, int TILE>
__device__ void query_gradient(Workspace<WIDTH, TILE>& shared, const Head& at, u32 first, const Shape& shape) {
    constexpr int PITCH = Share<WIDTH>::PITCH, COLUMNS = TILE / 16;
    u32 group = threadIdx.x / 16, lane = threadIdx.x % 16;
    u64 stride = shape.stride();
    u32 end = shape.is_causal && first + ROWS < shape.length ? first + ROWS : shape.length;
    float factor = shape.scale * LOG2_E;
    float sums[2][WIDTH / 16] = {}, log_sums[2], deltas[2];
    float* own_weights = shared.weights + 2 * group * (TILE + 4);

    load_rows<ROWS, WIDTH>(shared.own[0], at.q, 3 * stride, first, shape);
    load_rows<ROWS, WIDTH>(shared.own[1], at.upstream, stride, first, shape);
    load_rows<TILE, WIDTH>(shared.tile[0], at.k, 3 * stride, 0, shape);
    load_rows<TILE, WIDTH>(shared.tile[1], at.v, 3 * stride, 0, shape);
    end_group();
#pragma unroll
    for (int i = 0; i < 2; i++) {
        u32 query = first + 2 * group + i;
        bool is_there = query < shape.length;
        log_sums[i] = is_there ? at.log_sums[query] : 0.0f;
        deltas[i] = row_product<WIDTH>(at.out + query * stride, at.upstream + query * stride, is_there, lane, shape);
    }
    for (u32 start = 0; start < end; start += TILE) {
        float scores[2][COLUMNS], slopes[2][COLUMNS];
        wait_for_groups<0>();
        __syncthreads();
        products<COLUMNS, WIDTH>(shared.own[0] + 2 * group * PITCH, shared.tile[0] + lane * PITCH, scores);
        products<COLUMNS, WIDTH>(shared.own[1] + 2 * group * PITCH, shared.tile[1] + lane * PITCH, slopes);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            u32 query = first + 2 * group + i;
#pragma unroll
            for (int j = 0; j < COLUMNS; j++) {
                u32 key = start + lane + 16 * j;
                bool is_seen = key < shape.length && (!shape.is_causal || key <= query);
                float weight = is_seen ? exp2f(fmaf(scores[i][j], factor, -log_sums[i])) : 0.0f;
                own_weights[i * (TILE + 4) + lane + 16 * j] = weight * (slopes[i][j] - deltas[i]);
            }
        }
        // A group's weights are read by the same group alone.
        __syncwarp();
        accumulate<TILE, WIDTH>(own_weights, shared.tile[0], lane, sums);
        __syncthreads();
        if (start + TILE < end) {
            load_rows<TILE, WIDTH>(shared.tile[0], at.k, 3 * stride, start + TILE, shape);
            load_rows<TILE, WIDTH>(shared.tile[1], at.v, 3 * stride, start + TILE, shape);
            end_group();
        }
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        u32 query = first + 2 * group + i;
        if (query < shape.length) {
            store_row<WIDTH>(at.gradient + query * 3 * stride, sums[i], shape.scale, lane, shape);
        }
    }
}

// A tile of queries with the gradients of their outputs, and what belongs to each of them.
template <int WIDTH, int TILE>
__device__ void load_queries(Workspace<WIDTH, TILE>& shared, const Head& at, u32 start, const Shape& shape) {
    u32 group = threadIdx.x / 16, lane = threadIdx.x % 16;
    u64 stride = shape.stride();
    load_rows<TILE, WIDTH>(shared.tile[0], at.q, 3 * stride, start, shape);
    load_rows<TILE, WIDTH>(shared.tile[1], at.upstream, stride, start, shape);
    end_group();
#pragma unroll 2
    for (int row = 0; row < TILE; row += 8) {
        u32 query = start + row + group;
        bool is_there = query < shape.length;
        float delta = row_product<WIDTH>(at.out + query * stride, at.upstream + query * stride, is_there, lane, shape);
        if (lane == 0) {
            shared.log_sums[row + group] = is_there ? at.log_sums[query] : 0.0f;
            shared.deltas[row + group] = delta;
        }
    }
}

// Gradients of 16 keys and of their values: dV = Pᵀ dO, dK = dSᵀ Q scale.
template <int WIDTH, int TILE>
__device__ void key_gradient(Workspace<WIDTH, TILE>& shared, const Head& at, u32 first, const Shape& shape) {
    constexpr int PITCH = Share<WIDTH>::PITCH, COLUMNS = TILE / 16;
    u32 group = threadIdx.x / 16, lane = threadIdx.x % 16;
    u64 stride = shape.stride();
    float factor = shape.scale * LOG2_E;
    float key_sums[2][WIDTH / 16] = {}, value_sums[2][WIDTH / 16] = {};
    float* own_weights = shared.weights + 2 * group * (TILE + 4);
    // Queries before the keys do not see them.
    u32 begin = shape.is_causal ? first / TILE * TILE : 0;

    load_rows<ROWS, WIDTH>(shared.own[0], at.k, 3 * stride, first, shape);
    load_rows<ROWS, WIDTH>(shared.own[1], at.v, 3 * stride, first, shape);
    load_queries(shared, at, begin, shape);
    for (u32 start = begin; start < shape.length; start += TILE) {
        float scores[2][COLUMNS], slopes[2][COLUMNS];
        wait_for_groups<0>();
        __syncthreads();
        products<COLUMNS, WIDTH>(shared.own[0] + 2 * group * PITCH, shared.tile[0] + lane * PITCH, scores);
        products<COLUMNS, WIDTH>(shared.own[1] + 2 * group * PITCH, shared.tile[1] + lane * PITCH, slopes);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            u32 key = first + 2 * group + i;
#pragma unroll
            for (int j = 0; j < COLUMNS; j++) {
                u32 place = lane + 16 * j, query = start + place;
                bool is_seen = query < shape.length && (!shape.is_causal || key <= query);
                float weight = is_seen ? exp2f(fmaf(scores[i][j], factor, -shared.log_sums[place])) : 0.0f;
                own_weights[i * (TILE + 4) + place] = weight;
                slopes[i][j] = weight * (slopes[i][j] - shared.deltas[place]);
            }
        }
        __syncwarp();
        accumulate<TILE, WIDTH>(own_weights, shared.tile[1], lane, value_sums);
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 2; i++) {
#pragma unroll
            for (int j = 0; j < COLUMNS; j++) own_weights[i * (TILE + 4) + lane + 16 * j] = slopes[i][j];
        }
        __syncwarp();
        accumulate<TILE, WIDTH>(own_weights, shared.tile[0], lane, key_sums);
        __syncthreads();
        if (start + TILE < shape.length) load_queries(shared, at, start + TILE, shape);
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        u32 key = first + 2 * group + i;
        if (key < shape.length) {
            float* target = at.gradient + key * 3 * stride;
            store_row<WIDTH>(target + stride, key_sums[i], shape.scale, lane, shape);
            store_row<WIDTH>(target + 2 * stride, value_sums[i], 1.0f, lane, shape);
        }
    }
}

// Two blocks per 16 rows, head and batch: one for keys and values, which have more to do and begin, one for queries.
template <int WIDTH, int TILE>
__device__ void attend_backward(
    const float* qkv, const float* out, const float* log_sums, const float* upstream, float* gradient,
    const Shape& shape) {
    alignas(16) __shared__ Workspace<WIDTH, TILE> shared;
    u64 head = blockIdx.y, batch = blockIdx.z, stride = shape.stride();
    u64 packed = batch * shape.length * 3 * stride + head * shape.width;
    u64 plain = batch * shape.length * stride + head * shape.width;
    const float* q = qkv + packed;
    Head at = {q, q + stride, q + 2 * stride, out + plain, upstream + plain,
               log_sums + (batch * shape.heads + head) * shape.length, gradient + packed};
    u32 tiles = gridDim.x / 2;
    if (blockIdx.x < tiles) {
        key_gradient(shared, at, blockIdx.x * ROWS, shape);
    } else {
        query_gradient(shared, at, (2 * tiles - 1 - blockIdx.x) * ROWS, shape);
    }
}

#define ATTENTION(WIDTH, KEYS, TILE)                                                                                   \
    extern "C" __global__ void __launch_bounds__(THREADS) attention_##WIDTH(                                           \
        const float* qkv, float* out, float* log_sums, u32 length, u32 heads, u32 width, u32 is_causal,                \
        u32 is_aligned, float scale) {                                                                                 \
        WAIT_FOR_INPUTS;                                                                                               \
        attend<WIDTH, KEYS>(qkv, out, log_sums, Shape{length, heads, width, is_causal, is_aligned, scale});            \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS) attention_backward_##WIDTH(                                  \
        const float* qkv, const float* out, const float* log_sums, const float* upstream, float* gradient, u32 length, \
        u32 heads, u32 width, u32 is_causal, u32 is_aligned, float scale) {                                            \
        WAIT_FOR_INPUTS;                                                                                               \
        attend_backward<WIDTH, TILE>(                                                                                  \
            qkv, out, log_sums, upstream, gradient, Shape{length, heads, width, is_causal, is_aligned, scale});        \
    }

// Shared memory of a block stays below 48 KiB.
ATTENTION(32, 64, 64)
ATTENTION(64, 64, 64)
ATTENTION(128, 32, 16)

#undef ROWS
#undef THREADS
#undef ATTENTION

}  // namespace attention
