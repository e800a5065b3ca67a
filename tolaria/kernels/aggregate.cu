// Inner products of the gradients of a window, and their combination.

struct Rows {
    u64 row[32];
    u32 count;
};

// partials[(pair) * gridDim.x + block] = part of row_i . row_j over [start, start + length), i <= j; pair = blockIdx.y
extern "C" __global__ void gram_partials(Rows rows, u64 start, u64 length, double* partials, int accumulate) {
    u32 i = 0, j = blockIdx.y;
    while (j >= rows.count - i) { j -= rows.count - i; i += 1; }
    j += i;
    const float* a = (const float*)rows.row[i] + start;
    const float* b = (const float*)rows.row[j] + start;
    double sum = 0.0;
    for (u64 k = FIRST; k < length; k += STRIDE) sum += (double)a[k] * (double)b[k];
    sum = block_sum(sum);
    if (threadIdx.x == 0) {
        double* place = partials + (u64)blockIdx.y * gridDim.x + blockIdx.x;
        *place = accumulate ? *place + sum : sum;
    }
}

// gram (count x count, symmetric) from its partial sums; one block per pair
extern "C" __global__ void gram_finish(const double* partials, u32 blocks, u32 count, double* gram) {
    u32 i = 0, j = blockIdx.x;
    while (j >= count - i) { j -= count - i; i += 1; }
    j += i;
    double sum = 0.0;
    for (u32 k = threadIdx.x; k < blocks; k += blockDim.x) sum += partials[(u64)blockIdx.x * blocks + k];
    sum = block_sum(sum);
    if (threadIdx.x == 0) {
        gram[i * count + j] = sum;
        gram[j * count + i] = sum;
    }
}

// row_0[start + e] = sum over k of coefficients[k] * row_k[start + e], from the first row to the last
extern "C" __global__ void combine(Rows rows, const float* coefficients, u64 start, u64 length) {
    float* first = (float*)rows.row[0] + start;
    for (u64 e = FIRST; e < length; e += STRIDE) {
        float sum = first[e] * coefficients[0];
        for (u32 k = 1; k < rows.count; k++) sum += ((const float*)rows.row[k])[start + e] * coefficients[k];
        first[e] = sum;
    }
}
