// Products of tiles of f32 on tensor cores, rounded to TF32 and summed in f32, by each warp: `wgmma` takes no right factor of TF32 whose
// rows are the terms. Rows and columns of a thread are those of tensor_cores.cu.
//
// The order of the terms of a product is free where both factors have it: thread t of four has those that lie beside each other in memory.

namespace tensor_cores {

#define ROWS 64

// The chunks of 4 numbers of a row are exchanged with each other, so that 8 lanes that read a chunk each of two rows use all banks, and
// 32 that read 8 neighbors of every second of 8 rows as well.
template <int WIDTH, int COUNT>
struct Tile<float, WIDTH, COUNT> {
    static constexpr u32 COLUMNS = WIDTH;

    static __device__ u32 exchanged(u32 row) { return (row & 6) ^ (row & 1) << 2; }

    static __device__ u32 place(u32 row, u32 chunk) { return row * WIDTH + (chunk ^ exchanged(row)) * 4; }
};

__device__ u32 as_tf32(float x) {
    u32 bits;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm("cvt.rna.tf32.f32 %0, %1;\n" : "=r"(bits) : "f"(x));
#else
    bits = __float_as_uint(x);
#endif
    return bits;
}

// sums += left · right, for 16 rows, 8 terms and 8 columns.
__device__ void multiply(float (&sums)[4], const u32 (&left)[4], float right0, float right1) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(as_tf32(right0)), "r"(as_tf32(right1)));
#else
    __trap();
#endif
}

// A warp's 16 rows of a tile: in registers, or read again each time where they would not fit.
template <int WIDTH>
struct Left<float, WIDTH> {
    static constexpr bool IS_KEPT = WIDTH <= 64;
    u32 kept[IS_KEPT ? WIDTH / 16 : 1][2][4];
    const float* tile;

    // 16 terms: twice 8.
    __device__ void load(int k, u32 (&factors)[2][4]) const {
        u32 lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float4 four = *(const float4*)(tile + Tile<float, WIDTH, ROWS>::place(row + 8 * half, 4 * k + lane % 4));
            factors[0][half] = as_tf32(four.x);
            factors[0][half + 2] = as_tf32(four.y);
            factors[1][half] = as_tf32(four.z);
            factors[1][half + 2] = as_tf32(four.w);
        }
    }

    __device__ void open(const float* of) {
        tile = of;
        if (IS_KEPT) {
#pragma unroll
            for (int k = 0; k < WIDTH / 16; k++) load(k, kept[IS_KEPT ? k : 0]);
        }
    }

    __device__ void step(int k, u32 (&factors)[2][4]) const {
        if (IS_KEPT) {
#pragma unroll
            for (int i = 0; i < 8; i++) factors[i / 4][i % 4] = kept[IS_KEPT ? k : 0][i / 4][i % 4];
        } else {
            load(k, factors);
        }
    }
};

// result = 16 rows · COLUMNS rows of the tile.
template <int COLUMNS, int WIDTH>
__device__ void products(const Left<float, WIDTH>& left, const float* tile, float (&result)[COLUMNS / 8][4]) {
    u32 lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < COLUMNS / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) result[n][i] = 0.0f;
    }
#pragma unroll
    for (int k = 0; k < WIDTH / 16; k++) {
        u32 a[2][4];
        left.step(k, a);
#pragma unroll
        for (int n = 0; n < COLUMNS / 8; n++) {
            float4 b = *(const float4*)(tile + Tile<float, WIDTH, COLUMNS>::place(8 * n + lane / 4, 4 * k + lane % 4));
            multiply(result[n], a[0], b.x, b.y);
            multiply(result[n], a[1], b.z, b.w);
        }
    }
}

// sums += weights, rounded, · COUNT rows of the tile. Of 8 rows thread t of four has rows 2t and 2t + 1, as it has columns of the weights.
template <int COUNT, int WIDTH>
__device__ void accumulate(const float (&weights)[COUNT / 8][4], const float* tile, float (&sums)[WIDTH / 8][4]) {
    u32 lane = threadIdx.x % 32, row = lane % 4 * 2, column = lane / 4;
#pragma unroll
    for (int k = 0; k < COUNT / 8; k++) {
        const float(&of)[4] = weights[k];
        u32 a[4] = {as_tf32(of[0]), as_tf32(of[2]), as_tf32(of[1]), as_tf32(of[3])};
#pragma unroll
        for (int n = 0; n < WIDTH / 8; n++) {
            u32 chunk = 2 * n + column / 4;
            float b0 = tile[Tile<float, WIDTH, COUNT>::place(8 * k + row, chunk) + column % 4];
            float b1 = tile[Tile<float, WIDTH, COUNT>::place(8 * k + row + 1, chunk) + column % 4];
            multiply(sums[n], a, b0, b1);
        }
    }
}

#undef ROWS

}  // namespace tensor_cores
