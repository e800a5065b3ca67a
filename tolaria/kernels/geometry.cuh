// The flat vector as src/grad/geometry.rs cuts it up, and rows of it.

// Neighboring elements of one part, and what else is to be known of it where elements are read: nobody waits for the part itself.
struct Chunk {
    u64 start;
    u32 length;
    u32 part;
    u64 part_start;
    u64 part_length;
    u32 domain;  // 0 is the main loss
    u32 unused;
};

// One parameter. Chunks are added in groups of GROUP, the groups of a part in their order.
struct Part {
    u64 start;
    u64 length;
    u32 slot;
    u32 domain;
    u32 first_chunk;
    u32 num_chunks;
    u32 first_group;
    u32 num_groups;
};

const u32 GROUP = 16;
const u32 MAX_ROWS = 64;

struct Rows {
    u64 row[MAX_ROWS];
    u32 count;
    u32 is_half;  // a row alone, of bf16
};

// Those of the four elements from `at` on that are in [start, end); zeros for the others.
__device__ float4 load_some(const float* row, u64 at, u64 start, u64 end) {
    float4 quad = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (at >= start && at < end) quad.x = row[at];
    if (at + 1 >= start && at + 1 < end) quad.y = row[at + 1];
    if (at + 2 >= start && at + 2 < end) quad.z = row[at + 2];
    if (at + 3 >= start && at + 3 < end) quad.w = row[at + 3];
    return quad;
}

// Rows and coefficients where all threads of a block find them quickly.
struct Terms {
    const float* row[MAX_ROWS];
    float coefficient[MAX_ROWS];
    u32 is_half;
};

// coefficients (2 x rows): of parts that are not isolated, and of those that are. Both are read, so that nobody waits for the chunk first.
__device__ void load_terms(Terms& terms, const Rows& rows, const float* coefficients, const Chunk& chunk) {
    if (threadIdx.x == 0) terms.is_half = rows.is_half;
    for (u32 k = threadIdx.x; k < rows.count; k += blockDim.x) {
        terms.row[k] = (const float*)rows.row[k];
        float main = coefficients[k], isolated = coefficients[rows.count + k];
        terms.coefficient[k] = chunk.domain == 0 ? main : isolated;
    }
    __syncthreads();
}

// The chunk of this block. The pass before ended with the last chunks, so that this one begins with them: what the cache
// still holds is not read from memory again.
__device__ Chunk chunk_from_end(const Chunk* chunks) {
    return chunks[gridDim.x - 1 - blockIdx.x];
}

// The elements of a chunk: those at a multiple of 4 in fours, and up to three before and after them.
struct Quads {
    u64 start, end;  // of the fours; no four when end <= start

    __device__ explicit Quads(const Chunk& chunk)
        : start((chunk.start + 3) / 4 * 4), end((chunk.start + chunk.length) / 4 * 4) {}

    // Position of the element that this thread takes alone, if it takes one.
    __device__ bool single(const Chunk& chunk, u64* at) const {
        u64 chunk_end = chunk.start + chunk.length;
        u64 before = (start < chunk_end ? start : chunk_end) - chunk.start;
        u64 first_after = end > chunk.start + before ? end : chunk.start + before;
        if (threadIdx.x < before) {
            *at = chunk.start + threadIdx.x;
            return true;
        }
        *at = first_after + (threadIdx.x - before);
        return *at < chunk_end && threadIdx.x - before < 4;
    }
};

__device__ __forceinline__ float widened(unsigned short half) { return __uint_as_float((u32)half << 16); }

// An element of the first row.
__device__ __forceinline__ float first_one(const Terms& terms, u64 at) {
    return terms.is_half ? widened(((const unsigned short*)terms.row[0])[at]) : terms.row[0][at];
}

// The same for four neighbors; `at` is a multiple of 4.
__device__ __forceinline__ float4 first_quad(const Terms& terms, u64 at) {
    if (!terms.is_half) return *(const float4*)(terms.row[0] + at);
    ushort4 half = *(const ushort4*)((const unsigned short*)terms.row[0] + at);
    return make_float4(widened(half.x), widened(half.y), widened(half.z), widened(half.w));
}

// The sum over rows of coefficient times element, from the first row to the last.
__device__ float combine_one(const Terms& terms, u32 count, u64 at) {
    float sum = first_one(terms, at) * terms.coefficient[0];
#pragma unroll 4
    for (u32 k = 1; k < count; k++) sum += terms.row[k][at] * terms.coefficient[k];
    return sum;
}

// The same for four neighbors; `at` is a multiple of 4.
__device__ float4 combine_quad(const Terms& terms, u32 count, u64 at) {
    float4 sum = first_quad(terms, at);
    float c = terms.coefficient[0];
    sum.x *= c; sum.y *= c; sum.z *= c; sum.w *= c;
#pragma unroll 4
    for (u32 k = 1; k < count; k++) {
        float4 quad = *(const float4*)(terms.row[k] + at);
        c = terms.coefficient[k];
        sum.x += quad.x * c; sum.y += quad.y * c; sum.z += quad.z * c; sum.w += quad.w * c;
    }
    return sum;
}
