// Products of matrices of f32 on tensor cores, by warpgroups, for the card itself (sm_90a), with the error of f32.
//
// Three numbers of bf16 hold the 24 bits of one of f32, and of the nine products of two such sums the six that are
// above 2^-24 are added (bf16x6). Tensor cores cut what they add off: so they add 32 terms at a time, and sums of those are added here, rounded to the nearest.
//
// A block has a tile of the result, in shared memory two stages of 32 terms of both factors, a row for each row and column of the tile, whichever
// way they are stored, and reads the terms after those meanwhile. Where a sum is cut into parts (split-K), the blocks of a cluster have one each,
// and add them in order.

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

namespace split {

using tensor_cores::Half;

const u32 TERMS = 32, CHUNK = 8, CHUNKS = TERMS / CHUNK, PARTS = 3;

// Every thread of a cluster is here, and what they wrote to shared memory before is seen.
__device__ void everybody() {
    __syncwarp();
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n" ::: "memory");
}

// What another block of the cluster has at a place of its shared memory.
__device__ float4 of_block(const float* place, u32 other) {
    u32 address;
    float4 four;
    asm("mapa.shared::cluster.u32 %0, %1, %2;\n" : "=r"(address) : "r"((u32)__cvta_generic_to_shared(place)), "r"(other));
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];\n"
                 : "=f"(four.x), "=f"(four.y), "=f"(four.z), "=f"(four.w)
                 : "r"(address)
                 : "memory");
    return four;
}

// Both numbers rounded to bf16, which are subtracted from them.
__device__ u32 take_bf16(float& low, float& high) {
    __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    u32 bits = *(u32*)&both;
    low -= __uint_as_float(bits << 16);
    high -= __uint_as_float(bits & 0xffff0000);
    return bits;
}

// added = 32 terms of 64 of ROWS rows · COLUMNS columns, the small products first. Begins it.
template <u32 ROWS, u32 COLUMNS>
__device__ void multiply(float (&added)[COLUMNS / 8][4], const Half* rows, const Half* columns) {
    constexpr u32 PAIRS[6][2] = {{2, 0}, {0, 2}, {1, 1}, {1, 0}, {0, 1}, {0, 0}}, UNIT = 16 / sizeof(Half);
    u64 left = tensor_cores::description<TERMS, ROWS>(rows), right = tensor_cores::description<TERMS, COLUMNS>(columns);
    tensor_cores::begin();
#pragma unroll
    for (int pair = 0; pair < 6; pair++) {
        u64 of_left = left + PAIRS[pair][0] * (ROWS * TERMS / UNIT), of_right = right + PAIRS[pair][1] * (COLUMNS * TERMS / UNIT);
        tensor_cores::product(added, of_left, of_right, pair > 0);
        tensor_cores::product(added, of_left + 2, of_right + 2, 1);
    }
    tensor_cores::commit();
}

// A factor in memory: of each of `count` rows `terms` terms, which lie beside each other (BY_ROWS), or those of one term do.
struct Factor {
    const float* at;
    u32 count, terms;
};

// What a thread reads of 32 terms of ROWS rows.
template <u32 ROWS, bool BY_ROWS, u32 THREADS>
struct Read {
    static constexpr u32 COUNT = ROWS * CHUNKS / THREADS;
    alignas(16) float chunks[COUNT][CHUNK];

    // Neighbors in memory are read by neighbors.
    static __device__ u32 row(u32 i) { return BY_ROWS ? (i * THREADS + threadIdx.x) / CHUNKS : (i * THREADS + threadIdx.x) % ROWS; }
    static __device__ u32 chunk(u32 i) { return BY_ROWS ? (i * THREADS + threadIdx.x) % CHUNKS : (i * THREADS + threadIdx.x) / ROWS; }

    // Reads chunk `i`; 0 beyond rows and terms.
    __device__ void load(u32 i, const Factor& from, u32 first_row, u32 first_term) {
        u64 stride = BY_ROWS ? 1 : from.count;
        u32 at_row = first_row + row(i), at_term = first_term + chunk(i) * CHUNK;
        const float* at = from.at + (BY_ROWS ? (u64)at_row * from.terms + at_term : (u64)at_term * from.count + at_row);
        bool is_whole = at_row < from.count && at_term + CHUNK <= from.terms;
        if (BY_ROWS && is_whole && from.terms % 4 == 0 && (u64)from.at % 16 == 0) {
            *(float4*)chunks[i] = *(const float4*)at;
            *(float4*)(chunks[i] + 4) = *(const float4*)(at + 4);
        } else if (!BY_ROWS && is_whole) {
#pragma unroll
            for (u32 j = 0; j < CHUNK; j++) chunks[i][j] = at[j * stride];
        } else {
#pragma unroll
            for (u32 j = 0; j < CHUNK; j++) chunks[i][j] = at_row < from.count && at_term + j < from.terms ? at[j * stride] : 0.0f;
        }
    }

    // Puts the parts of chunk `i` into their tiles, which lie one after the other.
    __device__ void put(u32 i, Half* tiles) {
        Half* place = tiles + tensor_cores::Tile<Half, TERMS, ROWS>::place(row(i), chunk(i));
#pragma unroll
        for (u32 part = 0; part < PARTS; part++) {
            uint4 bits;
            bits.x = take_bf16(chunks[i][0], chunks[i][1]);
            bits.y = take_bf16(chunks[i][2], chunks[i][3]);
            bits.z = take_bf16(chunks[i][4], chunks[i][5]);
            bits.w = take_bf16(chunks[i][6], chunks[i][7]);
            *(uint4*)(place + part * ROWS * TERMS) = bits;
        }
    }

    // Puts what was read, and reads the terms from `first_term` on meanwhile, if there are any before `end`.
    __device__ void put_and_load(Half* tiles, const Factor& from, u32 first_row, u32 first_term, u32 end) {
#pragma unroll
        for (u32 i = 0; i < COUNT; i++) {
            put(i, tiles);
            if (first_term < end) load(i, from, first_row, first_term);
        }
    }
};

// What is done with a sum besides writing it, and where.
struct Result {
    float* at;
    const float* bias;
    float* before;
    u32 rows, columns, activation;

    // Four neighbors of a row, from column `column` on.
    __device__ void put(u32 row, u32 column, float4 sums, bool in_quads) const {
        if (row >= rows) return;
        u64 place = (u64)row * columns + column;
        float four[4] = {sums.x, sums.y, sums.z, sums.w};
        if (bias) {
#pragma unroll
            for (u32 i = 0; i < 4; i++) four[i] += column + i < columns ? bias[column + i] : 0.0f;
        }
        if (before) write(before + place, column, four, in_quads);
        if (activation != linear::NONE) {
#pragma unroll
            for (u32 i = 0; i < 4; i++) four[i] = linear::activation(four[i], activation);
        }
        write(at + place, column, four, in_quads);
    }

    __device__ void write(float* to, u32 column, const float (&four)[4], bool in_quads) const {
        if (in_quads && column < columns) {
            *(float4*)to = make_float4(four[0], four[1], four[2], four[3]);
        } else {
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                if (column + i < columns) to[i] = four[i];
            }
        }
    }
};

// A tile of ROWS rows and COLUMNS columns, by a warpgroup for each 64 rows.
template <u32 ROWS, u32 COLUMNS, bool LEFT_BY_ROWS, bool RIGHT_BY_ROWS>
__device__ void tile(const Factor& left, const Factor& right, const Result& result) {
    constexpr u32 THREADS = 2 * ROWS, BLOCKS = COLUMNS / 8, STAGE = PARTS * (ROWS + COLUMNS) * TERMS;
    extern __shared__ __align__(1024) Half stages[];
    u32 group = threadIdx.x / 128, lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
    u32 first_row = blockIdx.x * ROWS, first_column = blockIdx.y * COLUMNS, part = blockIdx.z, parts = gridDim.z;
    u32 steps = (left.terms + TERMS - 1) / TERMS;
    u32 from = (u64)part * steps / parts, to = (u64)(part + 1) * steps / parts;

    Read<ROWS, LEFT_BY_ROWS, THREADS> of_left;
    Read<COLUMNS, RIGHT_BY_ROWS, THREADS> of_right;
    // Puts the terms of a step, which were read, into its stage, and reads those of the next.
    auto put_and_load = [&](u32 step) {
        Half* stage = stages + (step - from) % 2 * STAGE;
        of_left.put_and_load(stage, left, first_row, (step + 1) * TERMS, to * TERMS);
        of_right.put_and_load(stage + PARTS * ROWS * TERMS, right, first_column, (step + 1) * TERMS, to * TERMS);
        tensor_cores::seen();
    };
    float sums[BLOCKS][4], added[BLOCKS][4];
#pragma unroll
    for (u32 n = 0; n < BLOCKS; n++) {
#pragma unroll
        for (u32 i = 0; i < 4; i++) sums[n][i] = added[n][i] = 0.0f;
    }
    if (from < to) {
#pragma unroll
        for (u32 i = 0; i < of_left.COUNT; i++) of_left.load(i, left, first_row, from * TERMS);
#pragma unroll
        for (u32 i = 0; i < of_right.COUNT; i++) of_right.load(i, right, first_column, from * TERMS);
        put_and_load(from);
    }
    __syncthreads();
    for (u32 step = from; step < to; step++) {
        const Half* stage = stages + (step - from) % 2 * STAGE;
        multiply<ROWS, COLUMNS>(added, stage + group * 64 * TERMS, stage + PARTS * ROWS * TERMS);
        if (step + 1 < to) put_and_load(step + 1);
        __syncwarp();
        tensor_cores::wait<0>(added);
#pragma unroll
        for (u32 n = 0; n < BLOCKS; n++) {
#pragma unroll
            for (u32 i = 0; i < 4; i++) sums[n][i] += added[n][i];
        }
        __syncthreads();
    }
    // Padded, so that rows begin in different banks.
    constexpr u32 WIDTH = COLUMNS + 8, QUADS = COLUMNS / 4;
    static_assert(ROWS * WIDTH * sizeof(float) <= 2 * STAGE * sizeof(Half), "the sums of a tile have the place of its factors");
    float* kept = (float*)stages;
#pragma unroll
    for (u32 n = 0; n < BLOCKS; n++) {
#pragma unroll
        for (u32 below = 0; below < 2; below++) {
            float* place = kept + (row + 8 * below) * WIDTH + 8 * n + lane % 4 * 2;
            *(float2*)place = make_float2(sums[n][2 * below], sums[n][2 * below + 1]);
        }
    }
    bool in_quads = result.columns % 4 == 0 && ((u64)result.at | (u64)result.before) % 16 == 0;
    if (parts == 1) {
        __syncthreads();
#pragma unroll
        for (u32 quad = threadIdx.x; quad < ROWS * QUADS; quad += THREADS) {
            float4 four = *(const float4*)(kept + quad / QUADS * WIDTH + quad % QUADS * 4);
            result.put(first_row + quad / QUADS, first_column + quad % QUADS * 4, four, in_quads);
        }
        return;
    }
    everybody();
    for (u32 quad = part * ROWS * QUADS / parts + threadIdx.x; quad < (part + 1) * ROWS * QUADS / parts; quad += THREADS) {
        const float* place = kept + quad / QUADS * WIDTH + quad % QUADS * 4;
        float4 four = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 4
        for (u32 other = 0; other < parts; other++) {
            float4 more = of_block(place, other);
            four = make_float4(four.x + more.x, four.y + more.y, four.z + more.z, four.w + more.w);
        }
        result.put(first_row + quad / QUADS, first_column + quad % QUADS * 4, four, in_quads);
    }
    // Nobody goes while others read its sums.
    everybody();
}

}  // namespace split

// result (m, n) = left (m, k) · right (k, n); in memory left is (k, m) where LEFT is false, and right (n, k) where RIGHT is true.
#define PRODUCT(NAME, ROWS, COLUMNS, BLOCKS, LEFT, RIGHT)                                                              \
    extern "C" __global__ void __launch_bounds__(2 * ROWS, BLOCKS) product_##NAME##_##ROWS##x##COLUMNS(                \
        const float* left, const float* right, float* result, const float* bias, float* before, u32 m, u32 n, u32 k,   \
        u32 activation) {                                                                                              \
        WAIT_FOR_INPUTS;                                                                                               \
        split::Result to = {result, bias, before, m, n, activation};                                                   \
        split::tile<ROWS, COLUMNS, LEFT, RIGHT>({left, m, k}, {right, n, k}, to);                                      \
    }
#define PRODUCTS(ROWS, COLUMNS, BLOCKS)                                                                                \
    PRODUCT(nn, ROWS, COLUMNS, BLOCKS, true, false)                                                                    \
    PRODUCT(nt, ROWS, COLUMNS, BLOCKS, true, true)                                                                     \
    PRODUCT(tn, ROWS, COLUMNS, BLOCKS, false, false)

PRODUCTS(128, 128, 1)
PRODUCTS(128, 64, 2)
PRODUCTS(64, 64, 4)

#undef PRODUCT
#undef PRODUCTS

#endif
