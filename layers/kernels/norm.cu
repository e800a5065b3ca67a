// Layer normalization of rows: y = (x - mean) / sqrt(variance + epsilon) * scale + shift.
//
// Rows whose width is a multiple of 4 stay in registers, WIDTH threads to a row and VECTORS vectors of 4 to a thread:
//   32 threads: a warp has a row, a block of 128 threads 4 of them;   256 threads: a block has a row.
// Other rows are read from memory in each pass, by 128 threads.
// statistics: mean and reciprocal standard deviation of each row, for the backward pass.

namespace layer_norm {

// Adds over the threads of a row; each of them has both sums.
template <int WIDTH>
__device__ float2 sum_over_row(float2 value) {
    for (int lane = 16; lane > 0; lane /= 2) {
        value.x += __shfl_xor_sync(0xffffffffu, value.x, lane);
        value.y += __shfl_xor_sync(0xffffffffu, value.y, lane);
    }
    if constexpr (WIDTH > 32) {
        __shared__ float2 warps[WIDTH / 32];
        if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
        __syncthreads();
        value = warps[0];
        for (int warp = 1; warp < WIDTH / 32; warp++) {
            value.x += warps[warp].x;
            value.y += warps[warp].y;
        }
        // The next call writes where this one reads.
        __syncthreads();
    }
    return value;
}

__device__ float sum4(float4 v) { return (v.x + v.y) + (v.z + v.w); }

__device__ float4 fma4(float4 a, float4 b, float4 c) {
    return make_float4(fmaf(a.x, b.x, c.x), fmaf(a.y, b.y, c.y), fmaf(a.z, b.z, c.z), fmaf(a.w, b.w, c.w));
}

__device__ float4 mul4(float4 a, float4 b) { return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w); }

__device__ float4 add4(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }

__device__ float4 normalize4(float4 v, float mean, float rate) {
    return make_float4((v.x - mean) * rate, (v.y - mean) * rate, (v.z - mean) * rate, (v.w - mean) * rate);
}

// Four neighbors, in f32 or rounded to bf16.
__device__ float4 load4(const float* row, u32 i) { return ((const float4*)row)[i]; }

__device__ float4 load4(const __nv_bfloat16* row, u32 i) {
    uint2 raw = ((const uint2*)row)[i];
    float2 low = __bfloat1622float2(*(__nv_bfloat162*)&raw.x), high = __bfloat1622float2(*(__nv_bfloat162*)&raw.y);
    return make_float4(low.x, low.y, high.x, high.y);
}

__device__ void store4(float* row, u32 i, float4 four) { ((float4*)row)[i] = four; }

__device__ void store4(__nv_bfloat16* row, u32 i, float4 four) {
    __nv_bfloat162 low = __floats2bfloat162_rn(four.x, four.y), high = __floats2bfloat162_rn(four.z, four.w);
    ((uint2*)row)[i] = make_uint2(*(u32*)&low, *(u32*)&high);
}

// As numbers of a type.
template <class T>
__device__ float4 rounded4(float4 four) {
    if constexpr (sizeof(T) == sizeof(float)) return four;
    uint2 raw;
    store4((__nv_bfloat16*)&raw, 0, four);
    return load4((const __nv_bfloat16*)&raw, 0);
}

// Of x + addend, which is written to sum_of_both, where there is an addend.
template <int WIDTH, int VECTORS, class In, class Out, class Addend>
__device__ void normalize_rows(
    const In* x, const Addend* addend, In* sum_of_both, const In* scale, const In* shift, Out* y, float* statistics,
    u32 rows, u32 width, float epsilon) {
    u32 row = blockIdx.x * (blockDim.x / WIDTH) + threadIdx.x / WIDTH;
    if (row >= rows) return;
    u32 lane = threadIdx.x % WIDTH, count = width / 4;
    const In* source = x + (u64)row * width;
    // Where they are few, scale and shift are read before the sums, so that all of it is under way together.
    const bool IS_EARLY = VECTORS <= 4;
    float4 values[VECTORS], scales[VECTORS], shifts[VECTORS];
    if (IS_EARLY) {
#pragma unroll
        for (int v = 0; v < VECTORS; v++) {
            u32 i = lane + v * WIDTH < count ? lane + v * WIDTH : 0;
            scales[v] = load4(scale, i);
            shifts[v] = load4(shift, i);
        }
    }
    float sum = 0.0f;
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        u32 i = lane + v * WIDTH;
        values[v] = i < count ? load4(source, i) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (addend != nullptr && i < count) {
            values[v] = rounded4<In>(add4(values[v], load4(addend + (u64)row * width, i)));
            store4(sum_of_both + (u64)row * width, i, values[v]);
        }
        sum += sum4(values[v]);
    }
    float mean = sum_over_row<WIDTH>(make_float2(sum, 0.0f)).x / (float)width;
    float squares = 0.0f;
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        float4 centered = normalize4(values[v], mean, 1.0f);
        if (lane + v * WIDTH < count) squares += sum4(mul4(centered, centered));
    }
    float variance = sum_over_row<WIDTH>(make_float2(squares, 0.0f)).x / (float)width;
    float rate = 1.0f / sqrtf(variance + epsilon);
    Out* target = y + (u64)row * width;
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        u32 i = lane + v * WIDTH;
        if (i < count) {
            float4 normal = normalize4(values[v], mean, rate);
            store4(target, i, IS_EARLY ? fma4(normal, scales[v], shifts[v]) : fma4(normal, load4(scale, i), load4(shift, i)));
        }
    }
    if (lane == 0) {
        statistics[2 * (u64)row] = mean;
        statistics[2 * (u64)row + 1] = rate;
    }
}

// Gradients of x, and sums over the rows of this block of those of scale and shift, (2, blocks, width). Either may be
// absent.
template <int WIDTH, int VECTORS, class In, class Out>
__device__ void normalize_rows_backward(
    const In* x, const In* scale, const float* statistics, const Out* upstream, In* x_gradient, float* partials,
    u32 rows, u32 width) {
    const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    u32 together = blockDim.x / WIDTH, lane = threadIdx.x % WIDTH, count = width / 4;
    float4 scales[VECTORS], scale_sums[VECTORS], shift_sums[VECTORS];
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        u32 i = lane + v * WIDTH;
        scales[v] = i < count ? load4(scale, i) : zero;
        scale_sums[v] = shift_sums[v] = zero;
    }
    for (u32 row = blockIdx.x * together + threadIdx.x / WIDTH; row < rows; row += gridDim.x * together) {
        const In* values = x + (u64)row * width;
        const Out* gradients = upstream + (u64)row * width;
        float mean = statistics[2 * (u64)row], rate = statistics[2 * (u64)row + 1];
        float4 normal[VECTORS], scaled[VECTORS];
        float2 sums = make_float2(0.0f, 0.0f);
#pragma unroll
        for (int v = 0; v < VECTORS; v++) {
            u32 i = lane + v * WIDTH;
            float4 gradient = i < count ? load4(gradients, i) : zero;
            normal[v] = i < count ? normalize4(load4(values, i), mean, rate) : zero;
            scale_sums[v] = fma4(gradient, normal[v], scale_sums[v]);
            shift_sums[v] = add4(gradient, shift_sums[v]);
            scaled[v] = mul4(gradient, scales[v]);
            sums.x += sum4(scaled[v]);
            sums.y += sum4(mul4(scaled[v], normal[v]));
        }
        if (x_gradient == nullptr) continue;
        sums = sum_over_row<WIDTH>(sums);
        float offset = -sums.x / (float)width, slope = -sums.y / (float)width;
        In* target = x_gradient + (u64)row * width;
#pragma unroll
        for (int v = 0; v < VECTORS; v++) {
            u32 i = lane + v * WIDTH;
            float4 n = normal[v], g = scaled[v];
            if (i < count) {
                float4 gradient = make_float4(
                    rate * (fmaf(n.x, slope, offset) + g.x), rate * (fmaf(n.y, slope, offset) + g.y),
                    rate * (fmaf(n.z, slope, offset) + g.z), rate * (fmaf(n.w, slope, offset) + g.w));
                store4(target, i, gradient);
            }
        }
    }
    if (partials == nullptr) return;
    float4* target = (float4*)partials + (u64)blockIdx.x * count;
    u64 second = (u64)gridDim.x * count;
    if constexpr (WIDTH > 32) {
#pragma unroll
        for (int v = 0; v < VECTORS; v++) {
            u32 i = lane + v * WIDTH;
            if (i < count) {
                target[i] = scale_sums[v];
                target[second + i] = shift_sums[v];
            }
        }
    } else {
        __shared__ float4 parts[2][4][32];
        u32 warp = threadIdx.x / 32;
#pragma unroll
        for (int v = 0; v < VECTORS; v++) {
            parts[0][warp][lane] = scale_sums[v];
            parts[1][warp][lane] = shift_sums[v];
            __syncthreads();
            u32 i = lane + v * WIDTH;
            if (warp < 2 && i < count) {
                const float4(*part)[32] = parts[warp];
                target[warp * second + i] = add4(add4(part[0][lane], part[1][lane]), add4(part[2][lane], part[3][lane]));
            }
            __syncthreads();
        }
    }
}

#define LAYER_NORM_OF(NAME, IN, OUT, WIDTH, VECTORS, THREADS)                                                          \
    extern "C" __global__ void __launch_bounds__(THREADS) layer_norm_##NAME(                                           \
        const IN* x, const IN* scale, const IN* shift, OUT* y, float* statistics, u32 rows, u32 width, float epsilon) { \
        WAIT_FOR_INPUTS;                                                                                               \
        normalize_rows<WIDTH, VECTORS>(                                                                                \
            x, (const OUT*)nullptr, (IN*)nullptr, scale, shift, y, statistics, rows, width, epsilon);                  \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS) layer_norm_sum_##NAME(                                       \
        const IN* x, const OUT* addend, IN* sum, const IN* scale, const IN* shift, OUT* y, float* statistics, u32 rows, \
        u32 width, float epsilon) {                                                                                    \
        WAIT_FOR_INPUTS;                                                                                               \
        normalize_rows<WIDTH, VECTORS>(x, addend, sum, scale, shift, y, statistics, rows, width, epsilon);             \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS) layer_norm_backward_##NAME(                                  \
        const IN* x, const IN* scale, const float* statistics, const OUT* upstream, IN* x_gradient, float* partials,   \
        u32 rows, u32 width) {                                                                                         \
        WAIT_FOR_INPUTS;                                                                                               \
        normalize_rows_backward<WIDTH, VECTORS>(                                                                       \
            x, scale, statistics, upstream, x_gradient, partials, rows, width);                                        \
    }

// From f32 to f32, from f32 to bf16, and all in bf16; an addend has the type of the result.
#define LAYER_NORM(NAME, WIDTH, VECTORS, THREADS)                                                                      \
    LAYER_NORM_OF(NAME, float, float, WIDTH, VECTORS, THREADS)                                                         \
    LAYER_NORM_OF(half_##NAME, float, __nv_bfloat16, WIDTH, VECTORS, THREADS)                                          \
    LAYER_NORM_OF(pure_##NAME, __nv_bfloat16, __nv_bfloat16, WIDTH, VECTORS, THREADS)

LAYER_NORM(128, 32, 1, 128)
LAYER_NORM(256, 32, 2, 128)
LAYER_NORM(512, 32, 4, 128)
LAYER_NORM(1024, 32, 8, 128)
LAYER_NORM(2048, 256, 2, 256)
LAYER_NORM(4096, 256, 4, 256)
LAYER_NORM(8192, 256, 8, 256)

extern "C" __global__ void __launch_bounds__(128) layer_norm_any(
    const float* x, const float* scale, const float* shift, float* y, float* statistics, u32 rows, u32 width,
    float epsilon) {
    WAIT_FOR_INPUTS;
    u64 row = blockIdx.x;
    const float* source = x + row * width;
    float sum = 0.0f, squares = 0.0f;
    for (u32 i = threadIdx.x; i < width; i += 128) sum += source[i];
    float mean = sum_over_row<128>(make_float2(sum, 0.0f)).x / (float)width;
    for (u32 i = threadIdx.x; i < width; i += 128) squares = fmaf(source[i] - mean, source[i] - mean, squares);
    float variance = sum_over_row<128>(make_float2(squares, 0.0f)).x / (float)width;
    float rate = 1.0f / sqrtf(variance + epsilon);
    for (u32 i = threadIdx.x; i < width; i += 128) {
        y[row * width + i] = fmaf((source[i] - mean) * rate, scale[i], shift[i]);
    }
    if (threadIdx.x == 0) {
        statistics[2 * row] = mean;
        statistics[2 * row + 1] = rate;
    }
}

extern "C" __global__ void __launch_bounds__(128) layer_norm_backward_any(
    const float* x, const float* scale, const float* statistics, const float* upstream, float* x_gradient,
    float* partials, u32 rows, u32 width) {
    WAIT_FOR_INPUTS;
    float* scale_sums = partials + (u64)blockIdx.x * width;
    float* shift_sums = scale_sums + (u64)gridDim.x * width;
    for (u64 row = blockIdx.x; row < rows; row += gridDim.x) {
        const float* values = x + row * width;
        const float* gradients = upstream + row * width;
        float mean = statistics[2 * row], rate = statistics[2 * row + 1];
        bool is_first = row == blockIdx.x;
        float2 sums = make_float2(0.0f, 0.0f);
        for (u32 i = threadIdx.x; i < width; i += 128) {
            float normal = (values[i] - mean) * rate, gradient = gradients[i], scaled = gradient * scale[i];
            sums.x += scaled;
            sums.y = fmaf(scaled, normal, sums.y);
            if (partials != nullptr) {
                // A column is one thread's, in every row.
                scale_sums[i] = fmaf(gradient, normal, is_first ? 0.0f : scale_sums[i]);
                shift_sums[i] = gradient + (is_first ? 0.0f : shift_sums[i]);
            }
        }
        if (x_gradient == nullptr) continue;
        sums = sum_over_row<128>(sums);
        float offset = -sums.x / (float)width, slope = -sums.y / (float)width;
        for (u32 i = threadIdx.x; i < width; i += 128) {
            float normal = (values[i] - mean) * rate;
            x_gradient[row * width + i] = rate * (fmaf(normal, slope, offset) + gradients[i] * scale[i]);
        }
    }
}

// Sums of the partial sums of groups of rows, (2, groups, width). Blocks of 32 columns by 16 shares of the groups; the
// second coordinate of the grid tells scale from shift.
template <class Out>
__device__ void sum_columns(const float* partials, Out* scale_gradient, Out* shift_gradient, u32 groups, u32 width) {
    __shared__ float sums[16][32];
    u32 column = blockIdx.x * 32 + threadIdx.x;
    const float* source = partials + (u64)blockIdx.y * groups * width;
    float sum = 0.0f;
    if (column < width) {
#pragma unroll 16
        for (u32 group = threadIdx.y; group < groups; group += 16) sum += source[(u64)group * width + column];
    }
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && column < width) {
        for (int share = 1; share < 16; share++) sum += sums[share][threadIdx.x];
        (blockIdx.y == 0 ? scale_gradient : shift_gradient)[column] = sum;
    }
}

extern "C" __global__ void __launch_bounds__(512) layer_norm_columns(
    const float* partials, float* scale_gradient, float* shift_gradient, u32 groups, u32 width) {
    WAIT_FOR_INPUTS;
    sum_columns(partials, scale_gradient, shift_gradient, groups, width);
}

extern "C" __global__ void __launch_bounds__(512) layer_norm_columns_pure(
    const float* partials, __nv_bfloat16* scale_gradient, __nv_bfloat16* shift_gradient, u32 groups, u32 width) {
    WAIT_FOR_INPUTS;
    sum_columns(partials, scale_gradient, shift_gradient, groups, width);
}

}  // namespace layer_norm
