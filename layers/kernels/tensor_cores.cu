// Products of tiles of bf16 on tensor cores, summed in f32: by a warpgroup (`wgmma`) where the code is for the card itself (sm_90a),
// by each warp (`mma`) otherwise. Those of f32 are in tensor_cores_tf32.cu.
//
// A block of 4 warps has 64 rows, a warp 16 of them. A thread has, of each 8 columns of a product, two neighbors of row `lane / 4` and the
// same of the row 8 below: what a product gives lies as the next one takes its left factor.
// A product is begun, and its result there after `wait`. Memory that was copied is `seen` by who copied it, before a barrier.

namespace tensor_cores {

typedef __nv_bfloat16 Half;
#define ROWS 64
#define THREADS 128

__device__ u32 rounded(float low, float high) {
    __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    return *(u32*)&both;
}

__device__ u32 in_shared(const Half* place) { return (u32)__cvta_generic_to_shared(place); }

// COUNT rows of WIDTH numbers in shared memory.
template <class T, int WIDTH, int COUNT>
struct Tile;

// Of bf16, 64 columns after the other. The chunks of 8 numbers of a row are exchanged with each other
// as `wgmma` reads them, by which also 8 lanes that read a chunk of 8 rows use all banks.
template <int WIDTH, int COUNT>
struct Tile<Half, WIDTH, COUNT> {
    static constexpr u32 COLUMNS = WIDTH < 64 ? WIDTH : 64, CHUNKS = COLUMNS / 8;

    static __device__ u32 place(u32 row, u32 chunk) {
        return chunk / CHUNKS * COUNT * COLUMNS + row * COLUMNS + (chunk % CHUNKS ^ row / (8 / CHUNKS) % CHUNKS) * 8;
    }
};

// A block's rows, or those of a warp, as left factor.
template <class T, int WIDTH>
struct Left;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

#define FOUR(n) "+f"(sums[n][0]), "+f"(sums[n][1]), "+f"(sums[n][2]), "+f"(sums[n][3])
#define SUMS_4 FOUR(0), FOUR(1), FOUR(2), FOUR(3)
#define SUMS_8 SUMS_4, FOUR(4), FOUR(5), FOUR(6), FOUR(7)
#define SUMS_16 SUMS_8, FOUR(8), FOUR(9), FOUR(10), FOUR(11), FOUR(12), FOUR(13), FOUR(14), FOUR(15)
#define NAMES_4 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define NAMES_8 NAMES_4 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_16                                                                                                       \
    NAMES_8 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, "   \
            "%52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define PRODUCT(COLUMNS, SUMS, FACTORS)                                                                                \
    "{\n.reg .pred adds;\nsetp.ne.b32 adds, " FACTORS ";\n"                                                            \
    "wgmma.mma_async.sync.aligned.m64n" COLUMNS "k16.f32.bf16.bf16 {" SUMS "}, "

// sums += left · right or, where it does not add, that alone: 64 rows, 16 terms, both factors in shared memory, and right a row for each column.
#define PRODUCT_OF_ROWS(BLOCKS, COLUMNS, LEFT, RIGHT, ADDS)                                                            \
    __device__ void product(float (&sums)[BLOCKS][4], u64 left, u64 right, int adds) {                                 \
        asm volatile(PRODUCT(COLUMNS, NAMES_##BLOCKS, ADDS ", 0") LEFT ", " RIGHT ", adds, 1, 1, 0, 0;\n}\n"           \
                     : SUMS_##BLOCKS                                                                                   \
                     : "l"(left), "l"(right), "r"(adds));                                                              \
    }
PRODUCT_OF_ROWS(4, "32", "%16", "%17", "%18")
PRODUCT_OF_ROWS(8, "64", "%32", "%33", "%34")
PRODUCT_OF_ROWS(16, "128", "%64", "%65", "%66")

// sums += left · right: left in registers, right in shared memory, a row for each term.
#define PRODUCT_OF_COLUMNS(BLOCKS, COLUMNS, LEFT, RIGHT)                                                               \
    __device__ void add_product(float (&sums)[BLOCKS][4], const u32 (&left)[4], u64 right) {                           \
        asm volatile(PRODUCT(COLUMNS, NAMES_##BLOCKS, "1, 0") "{" LEFT "}, " RIGHT ", adds, 1, 1, 1;\n}\n"             \
                     : SUMS_##BLOCKS                                                                                   \
                     : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right));                            \
    }
PRODUCT_OF_COLUMNS(4, "32", "%16, %17, %18, %19", "%20")
PRODUCT_OF_COLUMNS(8, "64", "%32, %33, %34, %35", "%36")
PRODUCT_OF_COLUMNS(16, "128", "%64, %65, %66, %67", "%68")

// How a tile lies, for the tensor cores: its address, bytes between 64 columns and between 8 rows, and how chunks are exchanged.
template <int WIDTH, int COUNT>
__device__ u64 description(const Half* tile) {
    constexpr u32 ROW = 2 * Tile<Half, WIDTH, COUNT>::COLUMNS;
    constexpr u64 EXCHANGE = ROW == 128 ? 1 : 2;
    return EXCHANGE << 62 | (u64)(8 * ROW / 16) << 32 | (u64)(COUNT * ROW / 16) << 16 | (in_shared(tile) & 0x3ffff) / 16;
}

// Products that follow may read what was written to registers before.
__device__ void begin() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }

// Waits for all products but those of the last PENDING calls, of which `result` is none.
template <int PENDING, int BLOCKS>
__device__ void wait(float (&result)[BLOCKS][4]) {
    asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(PENDING) : "memory");
#pragma unroll
    for (int n = 0; n < BLOCKS; n++) asm volatile("" : "+f"(result[n][0]), "+f"(result[n][1]), "+f"(result[n][2]), "+f"(result[n][3]));
}

// Ends a call's products.
__device__ void commit() { asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory"); }

// What this thread wrote to shared memory is there for the tensor cores.
__device__ void seen() { asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory"); }

// A tile as left factor. Read from shared memory each time: with left factors of both kinds of products of one shape in registers, ptxas
// 13.0 had both in the same ones.
template <int WIDTH>
struct Left<Half, WIDTH> {
    u64 rows;

    __device__ void open(const Half* tile) { rows = description<WIDTH, ROWS>(tile); }
};

// result = 64 rows · COLUMNS rows of the tile.
template <int COLUMNS, int WIDTH>
__device__ void products(const Left<Half, WIDTH>& left, const Half* tile, float (&result)[COLUMNS / 8][4]) {
    u64 right = description<WIDTH, COLUMNS>(tile);
#pragma unroll
    for (int k = 0; k < WIDTH / 16; k++) {
        u32 half = k / 4, chunks = k % 4 * 2;
        product(result, left.rows + half * ROWS * 8 + chunks, right + half * COLUMNS * 8 + chunks, k > 0);
    }
    commit();
}

// sums += weights, rounded, · COUNT rows of the tile.
template <int COUNT, int WIDTH>
__device__ void accumulate(const float (&weights)[COUNT / 8][4], const Half* tile, float (&sums)[WIDTH / 8][4]) {
    u64 right = description<WIDTH, COUNT>(tile);
    u32 left[COUNT / 16][4];
#pragma unroll
    for (int k = 0; k < COUNT / 16; k++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            left[k][i] = rounded(weights[2 * k + i / 2][i % 2 * 2], weights[2 * k + i / 2][i % 2 * 2 + 1]);
            asm volatile("" : "+r"(left[k][i]));
        }
    }
#pragma unroll
    for (int n = 0; n < WIDTH / 8; n++) asm volatile("" : "+f"(sums[n][0]), "+f"(sums[n][1]), "+f"(sums[n][2]), "+f"(sums[n][3]));
    begin();
#pragma unroll
    for (int k = 0; k < COUNT / 16; k++) add_product(sums, left[k], right + 2 * Tile<Half, WIDTH, COUNT>::COLUMNS * k);
    commit();
}

#undef FOUR
#undef SUMS_4
#undef SUMS_8
#undef SUMS_16
#undef NAMES_4
#undef NAMES_8
#undef NAMES_16
#undef PRODUCT
#undef PRODUCT_OF_ROWS
#undef PRODUCT_OF_COLUMNS

#else

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
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
                 : "r"(in_shared(row))
                 : "memory");
#endif
}

// The same, rows and columns exchanged.
__device__ void load_transposed(u32 (&matrices)[4], const Half* row) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
                 : "r"(in_shared(row))
                 : "memory");
#endif
}

// Products are there when they are begun.
__device__ void begin() {}

template <int PENDING, int BLOCKS>
__device__ void wait(float (&)[BLOCKS][4]) {}

__device__ void seen() {}

// A warp's 16 rows of a tile as left factor: in registers, or read again each time where they would not fit.
template <int WIDTH>
struct Left<Half, WIDTH> {
    static constexpr bool IS_KEPT = WIDTH <= 64;
    u32 kept[IS_KEPT ? WIDTH / 16 : 1][4];
    const Half* tile;

    __device__ void load(int k, u32 (&factor)[4]) const {
        u32 lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane % 16;
        load_matrices(factor, tile + Tile<Half, WIDTH, ROWS>::place(row, 2 * k + lane / 16));
    }

    __device__ void open(const Half* of) {
        tile = of;
        if (IS_KEPT) {
#pragma unroll
            for (int k = 0; k < WIDTH / 16; k++) load(k, kept[IS_KEPT ? k : 0]);
        }
    }

    __device__ void step(int k, u32 (&factor)[4]) const {
        if (IS_KEPT) {
#pragma unroll
            for (int i = 0; i < 4; i++) factor[i] = kept[IS_KEPT ? k : 0][i];
        } else {
            load(k, factor);
        }
    }
};

// result = 16 rows · COLUMNS rows of the tile.
template <int COLUMNS, int WIDTH>
__device__ void products(const Left<Half, WIDTH>& left, const Half* tile, float (&result)[COLUMNS / 8][4]) {
    u32 lane = threadIdx.x % 32, row = lane / 16 * 8 + lane % 8;
#pragma unroll
    for (int n = 0; n < COLUMNS / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) result[n][i] = 0.0f;
    }
#pragma unroll
    for (int k = 0; k < WIDTH / 16; k++) {
        u32 a[4];
        left.step(k, a);
        const Half* place = tile + Tile<Half, WIDTH, COLUMNS>::place(row, 2 * k + lane / 8 % 2);
#pragma unroll
        for (int n = 0; n < COLUMNS / 16; n++) {
            u32 b[4];
            load_matrices(b, place + 16 * n * Tile<Half, WIDTH, COLUMNS>::COLUMNS);
            multiply(result[2 * n], a, b[0], b[1]);
            multiply(result[2 * n + 1], a, b[2], b[3]);
        }
    }
}

// sums += weights, rounded, · COUNT rows of the tile.
template <int COUNT, int WIDTH>
__device__ void accumulate(const float (&weights)[COUNT / 8][4], const Half* tile, float (&sums)[WIDTH / 8][4]) {
    u32 lane = threadIdx.x % 32, row = lane / 8 % 2 * 8 + lane % 8;
#pragma unroll
    for (int k = 0; k < COUNT / 16; k++) {
        const float(&low)[4] = weights[2 * k];
        const float(&high)[4] = weights[2 * k + 1];
        u32 a[4] = {rounded(low[0], low[1]), rounded(low[2], low[3]), rounded(high[0], high[1]), rounded(high[2], high[3])};
#pragma unroll
        for (int n = 0; n < WIDTH / 16; n++) {
            u32 b[4];
            load_transposed(b, tile + Tile<Half, WIDTH, COUNT>::place(16 * k + row, 2 * n + lane / 16));
            multiply(sums[2 * n], a, b[0], b[1]);
            multiply(sums[2 * n + 1], a, b[2], b[3]);
        }
    }
}

#endif

#undef ROWS
#undef THREADS

}  // namespace tensor_cores
