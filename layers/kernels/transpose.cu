// The transpose of a matrix of f32.

// to (columns, rows) = from (rows, columns). Blocks of (32, 8) threads for squares of 32; one more column, so that a column of the square
// is in different banks.
extern "C" __global__ void __launch_bounds__(256) transpose_f32(const float* from, float* to, u32 rows, u32 columns) {
    WAIT_FOR_INPUTS;
    constexpr u32 SIDE = 32, ROWS_AT_ONCE = 8;
    __shared__ float square[SIDE][SIDE + 1];
    u32 row = blockIdx.y * SIDE + threadIdx.y, column = blockIdx.x * SIDE + threadIdx.x;
#pragma unroll
    for (u32 i = 0; i < SIDE; i += ROWS_AT_ONCE) {
        if (row + i < rows && column < columns) square[threadIdx.y + i][threadIdx.x] = from[(u64)(row + i) * columns + column];
    }
    __syncthreads();
    row = blockIdx.y * SIDE + threadIdx.x;
    column = blockIdx.x * SIDE + threadIdx.y;
#pragma unroll
    for (u32 i = 0; i < SIDE; i += ROWS_AT_ONCE) {
        if (row < rows && column + i < columns) to[(u64)(column + i) * rows + row] = square[threadIdx.x][threadIdx.y + i];
    }
}
