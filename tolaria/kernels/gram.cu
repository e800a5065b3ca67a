// Inner products of the rows of a window, per part, in one read.
//
// Rows come in tiles of 8; a warp multiplies the 8 x 4 elements of one tile with those of another in one instruction,
// in double precision, and keeps two sums per lane and pair of tiles. Products of two floats are exact in double
// precision, so that fused and separate additions round alike.

// c (8 x 8) += a (8 x 4) b (4 x 8). Lane l has a[l / 4][l % 4] and b[l % 4][l / 4]; c[l / 4][2 (l % 4)] and its neighbor.
__device__ void multiply_add(double& c0, double& c1, double a, double b) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
        : "+d"(c0), "+d"(c1)
        : "d"(a), "d"(b));
#else
    u32 lane = threadIdx.x % 32;
    for (u32 k = 0; k < 4; k++) {
        double left = __shfl_sync(~0u, a, lane / 4 * 4 + k);
        double right0 = __shfl_sync(~0u, b, lane % 4 * 8 + k);
        double right1 = __shfl_sync(~0u, b, lane % 4 * 8 + 4 + k);
        c0 = fma(left, right0, c0);
        c1 = fma(left, right1, c1);
    }
#endif
}

// sum[pair] += what one element of each tile contributes.
template <int TILES>
__device__ void add_elements(double (*sum)[2], const double* value) {
    int pair = 0;
#pragma unroll
    for (int a = 0; a < TILES; a++) {
#pragma unroll
        for (int b = a; b < TILES; b++) {
            multiply_add(sum[pair][0], sum[pair][1], value[a], value[b]);
            pair++;
        }
    }
}

template <int TILES>
__device__ void add_quads(double (*sum)[2], const float4* quad) {
    double value[TILES];
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) value[tile] = quad[tile].x;
    add_elements<TILES>(sum, value);
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) value[tile] = quad[tile].y;
    add_elements<TILES>(sum, value);
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) value[tile] = quad[tile].z;
    add_elements<TILES>(sum, value);
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) value[tile] = quad[tile].w;
    add_elements<TILES>(sum, value);
}

// partials[pair of tiles][64]: the pairs (0,0), (0,1), ... (1,1), ... UNROLL steps of 16 elements are in flight.
template <int TILES, int UNROLL>
__device__ void gram_chunk(const Rows& rows, const Chunk& chunk, double* partials) {
    const int PAIRS = TILES * (TILES + 1) / 2;
    const float4 NONE = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    double sum[PAIRS][2] = {};
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const float* row[TILES];
    bool exists[TILES];
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
        u32 index = tile * 8 + lane / 4;
        exists[tile] = index < rows.count;
        row[tile] = (const float*)rows.row[exists[tile] ? index : 0];
    }
    u64 start = chunk.start, end = chunk.start + chunk.length;
    // Four elements are one load where their position is a multiple of 4; up to three are left at both ends.
    u64 inner_start = (start + 3) / 4 * 4, inner_end = end / 4 * 4;
    for (u64 base = inner_start + warp * 16 * UNROLL; base < inner_end; base += 8 * 16 * UNROLL) {
        float4 quad[UNROLL][TILES];
#pragma unroll
        for (int step = 0; step < UNROLL; step++) {
#pragma unroll
            for (int tile = 0; tile < TILES; tile++) {
                u64 at = base + step * 16 + lane % 4 * 4;
                quad[step][tile] = NONE;
                if (exists[tile] && at < inner_end) quad[step][tile] = *(const float4*)(row[tile] + at);
            }
        }
#pragma unroll
        for (int step = 0; step < UNROLL; step++) add_quads<TILES>(sum, quad[step]);
    }
    if (warp == 0 && (inner_start != start || inner_end != end)) {
        // Lanes 0 and 1 of a row take the four positions around each end; both ends may be among the same four.
        u64 at = lane % 4 == 0 ? inner_start - 4 : inner_end;
        bool takes_part = lane % 4 == 0 ? inner_start != start : lane % 4 == 1 && inner_end >= inner_start;
        float4 quad[TILES];
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
            quad[tile] = takes_part && exists[tile] ? load_some(row[tile], at, start, end) : NONE;
        }
        add_quads<TILES>(sum, quad);
    }
    __shared__ double warps[8][64];
#pragma unroll
    for (int pair = 0; pair < PAIRS; pair++) {
        warps[warp][lane * 2] = sum[pair][0];
        warps[warp][lane * 2 + 1] = sum[pair][1];
        __syncthreads();
        if (threadIdx.x < 64) {
            double total = 0.0;
            for (u32 w = 0; w < 8; w++) total += warps[w][threadIdx.x];
            partials[pair * 64 + threadIdx.x] = total;
        }
        __syncthreads();
    }
}

// One block per chunk. The pairs of tiles of a chunk follow each other.
#define GRAM_CHUNKS(TILES, UNROLL, BLOCKS)                                                                          \
    extern "C" __global__ void __launch_bounds__(256, BLOCKS)                                                      \
        gram_chunks_##TILES(const __grid_constant__ Rows rows, const Chunk* chunks, double* partials) {            \
        WAIT_FOR_INPUTS;                                                                                           \
        u64 size = TILES * (TILES + 1) / 2 * 64;                                                                   \
        gram_chunk<TILES, UNROLL>(rows, chunks[blockIdx.x], partials + blockIdx.x * size);                         \
    }

GRAM_CHUNKS(1, 8, 4)
GRAM_CHUNKS(2, 2, 2)
GRAM_CHUNKS(4, 1, 2)
GRAM_CHUNKS(8, 1, 1)

// groups[group][size]: sums of up to GROUP chunks of one part. Grid: (parts, most groups of a part).
extern "C" __global__ void gram_groups(const Part* parts, const double* partials, u32 size, double* groups) {
    WAIT_FOR_INPUTS;
    Part part = parts[blockIdx.x];
    if (blockIdx.y >= part.num_groups) return;
    u32 first = blockIdx.y * GROUP;
    u32 count = min(GROUP, part.num_chunks - first);
    const double* chunk = partials + (u64)(part.first_chunk + first) * size;
    double* group = groups + (u64)(part.first_group + blockIdx.y) * size;
    for (u32 place = threadIdx.x; place < size; place += blockDim.x) {
        double sum = 0.0;
#pragma unroll 16
        for (u32 c = 0; c < count; c++) sum += chunk[(u64)c * size + place];
        group[place] = sum;
    }
}

// grams[part] (rows x rows, symmetric) from the sums of the groups of the part, or of its chunks where they are few. Grid:
// (parts, pairs of tiles).
extern "C" __global__ void gram_parts(
    const Part* parts, const double* sums, int of_groups, u32 tiles, u32 rows, double* grams) {
    WAIT_FOR_INPUTS;
    __shared__ double lanes[4][64];
    Part part = parts[blockIdx.x];
    u32 first = of_groups ? part.first_group : part.first_chunk;
    u32 count = of_groups ? part.num_groups : part.num_chunks;
    u32 size = tiles * (tiles + 1) / 2 * 64;
    u32 place = threadIdx.x % 64, lane = threadIdx.x / 64;
    const double* own = sums + (u64)first * size + blockIdx.y * 64 + place;
    double sum = 0.0;
#pragma unroll 16
    for (u32 g = lane; g < count; g += 4) sum += own[(u64)g * size];
    lanes[lane][place] = sum;
    __syncthreads();
    if (lane > 0) return;
    sum = 0.0;
    for (u32 l = 0; l < 4; l++) sum += lanes[l][place];
    u32 a = 0, b = blockIdx.y;
    while (b >= tiles - a) { b -= tiles - a; a += 1; }
    b += a;
    u32 i = a * 8 + place / 8, j = b * 8 + place % 8;
    // Of a tile with itself the upper half counts, for both.
    if (i >= rows || j >= rows || (a == b && i > j)) return;
    double* gram = grams + (u64)blockIdx.x * rows * rows;
    gram[i * rows + j] = sum;
    gram[j * rows + i] = sum;
}
