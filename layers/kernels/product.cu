// Products of matrices of f32 on tensor cores, by warpgroups, for the card itself (sm_90a), with the error of f32.
//
// Three numbers of bf16 hold the 24 bits of one of f32, and of the nine products of two such sums the six that are
// above 2^-24 are added (bf16x6). Tensor cores cut what they add off: so they add 32 terms at a time, and sums of those are added here, rounded to the nearest.
//
// A block has a tile of the result, and in shared memory stages of 32 terms of both factors, a row for each row and column of the tile, whichever
// way they are stored. Some of its warpgroups read and cut what the others multiply: who begins a product waits until the tensor cores take it, and
// could not cut meanwhile. Where a sum is cut into parts (split-K), the blocks of a cluster have one each, and add them in order.

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

namespace split {

using tensor_cores::Half;

const u32 TERMS = 32, CHUNK = 8, CHUNKS = TERMS / CHUNK, PARTS = 3;
// Threads of a warpgroup, and of those that read, and stages.
const u32 GROUP = 128, READING = 2 * GROUP, STAGES = 3;

// What so many arrive at, again and again (mbarrier).
struct Barrier {
    u64 bits;

    __device__ void init(u32 count) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(address()), "r"(count) : "memory"); }

    __device__ void arrive() { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(address()) : "memory"); }

    // Waits until all have arrived for time `time`, counted from 0, of those that nobody has waited for yet.
    __device__ void wait(u32 time) {
        asm volatile("{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra again;\n}\n" ::"r"(address()),
                     "r"(time & 1)
                     : "memory");
    }

    __device__ u32 address() { return (u32)__cvta_generic_to_shared(&bits); }
};

// Every thread of a cluster is here, and what they wrote to shared memory before is seen.
__device__ void everybody() {
    __syncwarp();
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n" ::: "memory");
}

// Every thread of a cluster is here. Orders no memory.
__device__ void everybody_is_here() {
    __syncwarp();
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;\n" ::: "memory");
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

// What a reading thread has of 32 terms of ROWS rows.
template <u32 ROWS, bool BY_ROWS, u32 FIRST>
struct Read {
    static constexpr u32 COUNT = ROWS * CHUNKS / READING;
    alignas(16) float chunks[COUNT][CHUNK];

    // Neighbors in memory are read by neighbors.
    static __device__ u32 place(u32 i) { return i * READING + (threadIdx.x - FIRST); }
    static __device__ u32 row(u32 i) { return BY_ROWS ? place(i) / CHUNKS : place(i) % ROWS; }
    static __device__ u32 chunk(u32 i) { return BY_ROWS ? place(i) % CHUNKS : place(i) / ROWS; }

    // Whether all of a tile's rows and terms are there, and four neighbors can be read at once.
    static __device__ bool is_plain(const Factor& from, u32 first_row, u32 first_term) {
        bool in_quads = !BY_ROWS || (from.terms % 4 == 0 && (u64)from.at % 16 == 0);
        return in_quads && first_row + ROWS <= from.count && first_term + TERMS <= from.terms;
    }

    // Reads chunk `i`; 0 beyond rows and terms.
    template <bool IS_PLAIN>
    __device__ void load(u32 i, const Factor& from, u32 first_row, u32 first_term) {
        u64 stride = BY_ROWS ? 1 : from.count;
        u32 at_row = first_row + row(i), at_term = first_term + chunk(i) * CHUNK;
        const float* at = from.at + (BY_ROWS ? (u64)at_row * from.terms + at_term : (u64)at_term * from.count + at_row);
        if (BY_ROWS && IS_PLAIN) {
            *(float4*)chunks[i] = *(const float4*)at;
            *(float4*)(chunks[i] + 4) = *(const float4*)(at + 4);
        } else {
#pragma unroll
            for (u32 j = 0; j < CHUNK; j++) {
                bool is_there = IS_PLAIN || (at_row < from.count && at_term + j < from.terms);
                chunks[i][j] = is_there ? at[j * stride] : 0.0f;
            }
        }
    }

    // Reads 32 terms.
    __device__ void load(const Factor& from, u32 first_row, u32 first_term) {
#pragma unroll
        for (u32 i = 0; i < COUNT; i++) load<false>(i, from, first_row, first_term);
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
        if (first_term < end && is_plain(from, first_row, first_term)) {
#pragma unroll
            for (u32 i = 0; i < COUNT; i++) {
                put(i, tiles);
                load<true>(i, from, first_row, first_term);
            }
        } else {
#pragma unroll
            for (u32 i = 0; i < COUNT; i++) put(i, tiles);
            if (first_term < end) load(from, first_row, first_term);
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

// A tile of ROWS rows and COLUMNS columns, by a warpgroup for each 64 rows and those that read, which leave registers to them: FEW and MANY for each thread.
template <u32 ROWS, u32 COLUMNS, u32 FEW, u32 MANY, bool LEFT_BY_ROWS, bool RIGHT_BY_ROWS>
__device__ void tile(const Factor& left, const Factor& right, const Result& result) {
    constexpr u32 MULTIPLYING = 2 * ROWS, THREADS = MULTIPLYING + READING, BLOCKS = COLUMNS / 8, STAGE = PARTS * (ROWS + COLUMNS) * TERMS;
    extern __shared__ __align__(1024) Half stages[];
    __shared__ Barrier full[STAGES], empty[STAGES];
    // Padded, so that rows begin in different banks.
    constexpr u32 WIDTH = COLUMNS + 8, QUADS = COLUMNS / 4;
    static_assert(ROWS * WIDTH * sizeof(float) <= STAGES * STAGE * sizeof(Half), "the sums of a tile have the place of its factors");
    float* kept = (float*)stages;
    u32 lane = threadIdx.x % 32, first_row = blockIdx.x * ROWS, first_column = blockIdx.y * COLUMNS, part = blockIdx.z, parts = gridDim.z;
    u32 steps = (left.terms + TERMS - 1) / TERMS;
    u32 from = (u64)part * steps / parts, to = (u64)(part + 1) * steps / parts;
    if (threadIdx.x < STAGES) {
        full[threadIdx.x].init(READING);
        empty[threadIdx.x].init(MULTIPLYING / 32);
    }
    __syncthreads();

    if (threadIdx.x >= MULTIPLYING) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(FEW));
        Read<ROWS, LEFT_BY_ROWS, MULTIPLYING> of_left;
        Read<COLUMNS, RIGHT_BY_ROWS, MULTIPLYING> of_right;
        if (from < to) {
            of_left.load(left, first_row, from * TERMS);
            of_right.load(right, first_column, from * TERMS);
        }
        for (u32 step = from; step < to; step++) {
            u32 at = (step - from) % STAGES, round = (step - from) / STAGES;
            Half* stage = stages + at * STAGE;
            if (round > 0) empty[at].wait(round - 1);
            of_left.put_and_load(stage, left, first_row, (step + 1) * TERMS, to * TERMS);
            of_right.put_and_load(stage + PARTS * ROWS * TERMS, right, first_column, (step + 1) * TERMS, to * TERMS);
            tensor_cores::seen();
            full[at].arrive();
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(MANY));
        float sums[BLOCKS][4], added[BLOCKS][4];
#pragma unroll
        for (u32 n = 0; n < BLOCKS; n++) {
#pragma unroll
            for (u32 i = 0; i < 4; i++) sums[n][i] = added[n][i] = 0.0f;
        }
        for (u32 step = from; step < to; step++) {
            u32 at = (step - from) % STAGES, round = (step - from) / STAGES;
            const Half* stage = stages + at * STAGE;
            full[at].wait(round);
            multiply<ROWS, COLUMNS>(added, stage + threadIdx.x / GROUP * 64 * TERMS, stage + PARTS * ROWS * TERMS);
            __syncwarp();
            tensor_cores::wait<0>(added);
            if (lane == 0) empty[at].arrive();
#pragma unroll
            for (u32 n = 0; n < BLOCKS; n++) {
#pragma unroll
                for (u32 i = 0; i < 4; i++) sums[n][i] += added[n][i];
            }
            __syncwarp();
        }
        // Nobody multiplies any more what the sums take the place of.
        asm volatile("barrier.sync 1, %0;\n" ::"n"(MULTIPLYING) : "memory");
        u32 row = threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
        for (u32 n = 0; n < BLOCKS; n++) {
#pragma unroll
            for (u32 below = 0; below < 2; below++) {
                float* place = kept + (row + 8 * below) * WIDTH + 8 * n + lane % 4 * 2;
                *(float2*)place = make_float2(sums[n][2 * below], sums[n][2 * below + 1]);
            }
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
        // Read before anything that follows: the barrier below does not order it.
        asm volatile("" ::"f"(four.x), "f"(four.y), "f"(four.z), "f"(four.w) : "memory");
        result.put(first_row + quad / QUADS, first_column + quad % QUADS * 4, four, in_quads);
    }
    // Nobody goes while others read its sums.
    everybody_is_here();
}

}  // namespace split

// result (m, n) = left (m, k) · right (k, n); in memory left is (k, m) where LEFT is false, and right (n, k) where RIGHT is true.
#define PRODUCT(NAME, ROWS, COLUMNS, BLOCKS, FEW, MANY, LEFT, RIGHT)                                                   \
    extern "C" __global__ void __launch_bounds__(2 * ROWS + split::READING, BLOCKS) product_##NAME##_##ROWS##x##COLUMNS(\
        const float* left, const float* right, float* result, const float* bias, float* before, u32 m, u32 n, u32 k,   \
        u32 activation) {                                                                                              \
        WAIT_FOR_INPUTS;                                                                                               \
        split::Result to = {result, bias, before, m, n, activation};                                                   \
        split::tile<ROWS, COLUMNS, FEW, MANY, LEFT, RIGHT>({left, m, k}, {right, n, k}, to);                           \
    }
#define PRODUCTS(ROWS, COLUMNS, BLOCKS, FEW, MANY)                                                                     \
    PRODUCT(nn, ROWS, COLUMNS, BLOCKS, FEW, MANY, true, false)                                                         \
    PRODUCT(nt, ROWS, COLUMNS, BLOCKS, FEW, MANY, true, true)                                                          \
    PRODUCT(tn, ROWS, COLUMNS, BLOCKS, FEW, MANY, false, false)

PRODUCTS(128, 128, 1, 80, 168)
PRODUCTS(128, 64, 1, 80, 168)
PRODUCTS(64, 64, 2, 64, 112)

#undef PRODUCT
#undef PRODUCTS

#endif
