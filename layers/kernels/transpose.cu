// The transpose of a matrix of f32.

namespace transpose {

// Four neighbors, those of the first `count` that are there.
__device__ void read(float (&four)[4], const float* from, u32 count, bool at_once) {
    if (at_once && count > 0) {
        *(float4*)four = *(const float4*)from;
    } else {
#pragma unroll
        for (u32 i = 0; i < 4; i++) four[i] = i < count ? from[i] : 0.0f;
    }
}

__device__ void write(float* to, const float (&four)[4], u32 count, bool at_once) {
    if (at_once && count > 0) {
        *(float4*)to = *(const float4*)four;
    } else {
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            if (i < count) to[i] = four[i];
        }
    }
}

}  // namespace transpose

// to (columns, rows) = from (rows, columns). Blocks of 256 threads for squares of 64; one more column, so that four rows of a column are in
// different banks.
extern "C" __global__ void __launch_bounds__(256) transpose_f32(const float* from, float* to, u32 rows, u32 columns) {
    WAIT_FOR_INPUTS;
    constexpr u32 SIDE = 64, QUADS = SIDE / 4, LINES = 256 / QUADS;
    __shared__ float square[SIDE][SIDE + 1];
    bool at_once = rows % 4 == 0 && columns % 4 == 0 && ((u64)from | (u64)to) % 16 == 0;
    u32 first_row = blockIdx.y * SIDE, first_column = blockIdx.x * SIDE, quad = threadIdx.x % QUADS * 4, line = threadIdx.x / QUADS;
    alignas(16) float fours[SIDE / LINES][4];
#pragma unroll
    for (u32 i = 0; i < SIDE / LINES; i++) {
        u32 row = first_row + line + i * LINES, column = first_column + quad;
        u32 count = row < rows && column < columns ? columns - column : 0;
        transpose::read(fours[i], from + (u64)row * columns + column, count, at_once);
    }
#pragma unroll
    for (u32 i = 0; i < SIDE / LINES; i++) {
#pragma unroll
        for (u32 j = 0; j < 4; j++) square[line + i * LINES][quad + j] = fours[i][j];
    }
    __syncthreads();
#pragma unroll
    for (u32 i = 0; i < SIDE / LINES; i++) {
        u32 row = first_row + quad, column = first_column + line + i * LINES;
        alignas(16) float four[4];
#pragma unroll
        for (u32 j = 0; j < 4; j++) four[j] = square[quad + j][line + i * LINES];
        u32 count = row < rows && column < columns ? rows - row : 0;
        transpose::write(to + (u64)column * rows + row, four, count, at_once);
    }
}
