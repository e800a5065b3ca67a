// Combinations of rows, gradients that are added to a row, and squared norms by part.

struct Sources {
    u64 address[64];
    u64 offset[64];
    u64 length[64];
};

// flat[offset[y] + i] = (adds: itself +) address[y][i] / *scale * coefficient; without a scale that is 1.
extern "C" __global__ void weigh_sources(
    const __grid_constant__ Sources sources, float* flat, float coefficient, u32 adds, const float* scale) {
    WAIT_FOR_INPUTS;
    const float* source = (const float*)sources.address[blockIdx.y];
    float* target = flat + sources.offset[blockIdx.y];
    float factor = scale ? 1.0f / *scale : 1.0f;
    for (u64 i = FIRST; i < sources.length[blockIdx.y]; i += STRIDE) {
        float weighed = source[i] * factor * coefficient;
        target[i] = adds ? target[i] + weighed : weighed;
    }
}

// row_0 = the combination of all rows, times the factor of its part where there are factors. One block per chunk.
extern "C" __global__ void combine_rows(
    const __grid_constant__ Rows rows, const Chunk* chunks, const float* coefficients, const float* factors) {
    WAIT_FOR_INPUTS;
    __shared__ Terms terms;
    Chunk chunk = chunk_from_end(chunks);
    load_terms(terms, rows, coefficients, chunk);
    float factor = factors ? factors[chunk.part] : 1.0f;
    float* target = (float*)rows.row[0];
    Quads quads(chunk);
    for (u64 at = quads.start + 4 * threadIdx.x; at < quads.end; at += 4 * blockDim.x) {
        float4 sum = combine_quad(terms, rows.count, at);
        if (factor != 1.0f) { sum.x *= factor; sum.y *= factor; sum.z *= factor; sum.w *= factor; }
        *(float4*)(target + at) = sum;
    }
    u64 at;
    if (quads.single(chunk, &at)) {
        float sum = combine_one(terms, rows.count, at);
        target[at] = factor != 1.0f ? sum * factor : sum;
    }
}

// As combine_rows without factors; squares[chunk]: squared norm of the result. A single row is only measured.
extern "C" __global__ void combine_and_square(
    const __grid_constant__ Rows rows, const Chunk* chunks, const float* coefficients, double* squares) {
    WAIT_FOR_INPUTS;
    __shared__ Terms terms;
    Chunk chunk = chunks[blockIdx.x];
    load_terms(terms, rows, coefficients, chunk);
    float* target = (float*)rows.row[0];
    double square = 0.0;
    Quads quads(chunk);
    for (u64 at = quads.start + 4 * threadIdx.x; at < quads.end; at += 4 * blockDim.x) {
        float4 sum;
        if (rows.count > 1) {
            sum = combine_quad(terms, rows.count, at);
            *(float4*)(target + at) = sum;
        } else {
            sum = first_quad(terms, at);
        }
        square += (double)sum.x * (double)sum.x;
        square += (double)sum.y * (double)sum.y;
        square += (double)sum.z * (double)sum.z;
        square += (double)sum.w * (double)sum.w;
    }
    u64 at;
    if (quads.single(chunk, &at)) {
        float sum = rows.count > 1 ? combine_one(terms, rows.count, at) : first_one(terms, at);
        if (rows.count > 1) target[at] = sum;
        square += (double)sum * (double)sum;
    }
    square = block_sum(square);
    if (threadIdx.x == 0) squares[blockIdx.x] = square;
}

// part_squares[part]: the sum over its chunks. One block per part.
extern "C" __global__ void square_parts(const Part* parts, const double* squares, double* part_squares) {
    WAIT_FOR_INPUTS;
    Part part = parts[blockIdx.x];
    double sum = 0.0;
    for (u32 c = threadIdx.x; c < part.num_chunks; c += blockDim.x) sum += squares[part.first_chunk + c];
    sum = block_sum(sum);
    if (threadIdx.x == 0) part_squares[blockIdx.x] = sum;
}
