// What stands around the products of a linear layer: conversions, activations and their derivatives, and column sums.

namespace linear {

// As `Activation` in src/linear/kernels.rs.
const u32 NONE = 0;
const u32 RELU = 1;
const u32 GELU = 2;
const u32 GELU_ERF = 3;

__device__ float value(float x) { return x; }
__device__ float value(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ float value(__half x) { return __half2float(x); }

__device__ void put(float& place, float x) { place = x; }
__device__ void put(__nv_bfloat16& place, float x) { place = __float2bfloat16_rn(x); }
__device__ void put(__half& place, float x) { place = __float2half_rn(x); }

// Neighbors, moved at once.
template <class T, u32 N>
struct alignas(N * sizeof(T)) Wide {
    T at[N];
};

template <class T>
using Quad = Wide<T, 4>;

// Bytes that a thread reads of an array at once.
const u32 AT_ONCE = 16;

template <u32 N, class T>
__device__ bool in_wide(const T* array) {
    return ((u64)array & (sizeof(Wide<T, N>) - 1)) == 0;
}

// output[i] = map(input[i]). Output may be the input.
template <class In, class Out, class Map>
__device__ void map(const In* input, Out* output, u64 count, Map map) {
    const u32 N = AT_ONCE / sizeof(In);
    u64 first = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    u64 stride = (u64)gridDim.x * blockDim.x;
    u64 wides = in_wide<N>(input) && in_wide<N>(output) ? count / N : 0;
    for (u64 wide = first; wide < wides; wide += stride) {
        Wide<In, N> in = ((const Wide<In, N>*)input)[wide];
        Wide<Out, N> out;
#pragma unroll
        for (u32 i = 0; i < N; i++) put(out.at[i], map(value(in.at[i])));
        ((Wide<Out, N>*)output)[wide] = out;
    }
    for (u64 i = N * wides + first; i < count; i += stride) put(output[i], map(value(input[i])));
}

// output[i] = map(input[i], gradient[i]).
template <class In, class Out, class Map>
__device__ void map_two(const In* input, const In* gradient, Out* output, u64 count, Map map) {
    const u32 N = AT_ONCE / sizeof(In);
    u64 first = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    u64 stride = (u64)gridDim.x * blockDim.x;
    u64 wides = in_wide<N>(input) && in_wide<N>(gradient) && in_wide<N>(output) ? count / N : 0;
    for (u64 wide = first; wide < wides; wide += stride) {
        Wide<In, N> in = ((const Wide<In, N>*)input)[wide];
        Wide<In, N> upstream = ((const Wide<In, N>*)gradient)[wide];
        Wide<Out, N> out;
#pragma unroll
        for (u32 i = 0; i < N; i++) put(out.at[i], map(value(in.at[i]), value(upstream.at[i])));
        ((Wide<Out, N>*)output)[wide] = out;
    }
    for (u64 i = N * wides + first; i < count; i += stride) put(output[i], map(value(input[i]), value(gradient[i])));
}

const float SQRT_2_OVER_PI = 0.79788456080286535588f;
const float SQRT_HALF = 0.70710678118654752440f;
const float ONE_OVER_SQRT_2_PI = 0.39894228040143267794f;
const float CUBIC = 0.044715f;

// What is no number stays so: a product of what is infinite may be none.
__device__ float activation(float z, u32 kind) {
    if (kind == RELU) return z <= 0.0f ? 0.0f : z;
    if (kind == GELU) return 0.5f * z * (1.0f + tanhf(SQRT_2_OVER_PI * z * (1.0f + CUBIC * z * z)));
    return 0.5f * z * (1.0f + erff(z * SQRT_HALF));
}

// Of the output for RELU, of what was before the activation for the others.
__device__ float derivative(float kept, u32 kind) {
    if (kind == RELU) return kept > 0.0f ? 1.0f : 0.0f;
    if (kind == GELU) {
        float tangent = tanhf(SQRT_2_OVER_PI * kept * (1.0f + CUBIC * kept * kept));
        float slope = SQRT_2_OVER_PI * (1.0f + 3.0f * CUBIC * kept * kept);
        return 0.5f * (1.0f + tangent) + 0.5f * kept * (1.0f - tangent * tangent) * slope;
    }
    return 0.5f * (1.0f + erff(kept * SQRT_HALF)) + kept * ONE_OVER_SQRT_2_PI * expf(-0.5f * kept * kept);
}

// What a normal number is below z with, and the density there times sqrt(2 pi): to 1e-7, for what is rounded to 8 bits.
// Abramowitz and Stegun 1964, 7.1.26.
__device__ float2 normal_below(float z) {
    float density, t, half_z = z * SQRT_HALF;
    asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(density) : "f"(-1.44269504088896340736f * half_z * half_z));
    asm("rcp.approx.ftz.f32 %0, %1;\n" : "=f"(t) : "f"(fmaf(0.3275911f, fabsf(half_z), 1.0f)));
    float sum = fmaf(fmaf(fmaf(fmaf(1.061405429f, t, -1.453152027f), t, 1.421413741f), t, -0.284496736f), t, 0.254829592f);
    float beyond = 0.5f * sum * t * density;
    return make_float2(z < 0.0f ? beyond : 1.0f - beyond, density);
}

template <class T>
__device__ void activate(const T* before, T* after, u64 count, u32 kind) {
    if (sizeof(T) == 2 && kind == GELU_ERF) {
        map(before, after, count, [](float z) { return z * normal_below(z).x; });
    } else {
        map(before, after, count, [kind](float z) { return activation(z, kind); });
    }
}

// The gradient before an activation from the one after it. A derivative of 0 gives 0, whatever the gradient.
template <class In>
__device__ float gradient_before(float kept, float gradient, u32 kind) {
    if (kind == NONE) return gradient;
    if (kind == RELU) return kept > 0.0f ? gradient : 0.0f;
    if (sizeof(In) == 2 && kind == GELU_ERF) {
        float2 normal = normal_below(kept);
        return gradient * fmaf(kept * ONE_OVER_SQRT_2_PI, normal.y, normal.x);
    }
    return gradient * derivative(kept, kind);
}

template <class In, class Out>
__device__ void activation_gradient(const In* kept, const In* gradient, Out* result, u64 count, u32 kind) {
    if (sizeof(In) == 2 && kind == GELU_ERF) {
        map_two(kept, gradient, result, count, [](float kept, float gradient) { return gradient_before<In>(kept, gradient, GELU_ERF); });
    } else {
        map_two(kept, gradient, result, count, [kind](float kept, float gradient) { return gradient_before<In>(kept, gradient, kind); });
    }
}

// rows[r][c] += bias[c]
template <class T>
__device__ void add_bias(T* rows, const T* bias, u64 count, u32 columns) {
    u64 stride = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {
        put(rows[i], value(rows[i]) + value(bias[i % columns]));
    }
}

const u32 LANES = 32;
const u32 WIDTH = 8;

// How many columns a thread has.
template <u32 N>
struct Width {
    static const u32 COUNT = N;
};

// Sums of columns over chunks of rows, one row of sums per chunk: blocks of (WIDTH, LANES), a chunk for each blockIdx.y. A
// thread has N neighboring columns where `is_wide` says that all rows begin and end so, else one; `take(at, values)` gives
// those at an index, `Wide` or not. Always added in the same order: each lane its rows, then the lanes.
template <u32 N, class Out, class Take>
__device__ void column_sums(Out* sums, u32 num_rows, u32 columns, u32 rows_per_chunk, u32 is_wide, Take take) {
    __shared__ float of_lane[LANES][WIDTH * N + 1];
    u32 width = is_wide ? N : 1, own = threadIdx.x * width, first = blockIdx.x * WIDTH * width;
    u32 start = blockIdx.y * rows_per_chunk;
    u32 end = num_rows - start < rows_per_chunk ? num_rows : start + rows_per_chunk;
    float sum[N] = {};
    if (first + own < columns && is_wide) {
#pragma unroll 8
        for (u32 row = start + threadIdx.y; row < end; row += LANES) {
            float values[N];
            take((u64)row * columns + first + own, values, Width<N>());
#pragma unroll
            for (u32 i = 0; i < N; i++) sum[i] += values[i];
        }
    } else if (first + own < columns) {
        for (u32 row = start + threadIdx.y; row < end; row += LANES) {
            float value;
            take((u64)row * columns + first + own, &value, Width<1>());
            sum[0] += value;
        }
    }
#pragma unroll
    for (u32 i = 0; i < N; i++) {
        if (i < width) of_lane[threadIdx.y][own + i] = sum[i];
    }
    __syncthreads();
    u32 column = threadIdx.y * WIDTH + threadIdx.x;
    if (column < WIDTH * width && first + column < columns) {
        float total = of_lane[0][column];
#pragma unroll
        for (u32 lane = 1; lane < LANES; lane++) total += of_lane[lane][column];
        put(sums[(u64)blockIdx.y * columns + first + column], total);
    }
}

// Of what is there.
template <class In, class Out>
__device__ void sums_of(const In* rows, Out* sums, u32 num_rows, u32 columns, u32 rows_per_chunk, u32 is_wide) {
    auto take = [rows](u64 at, float* values, auto width) {
        const u32 N = decltype(width)::COUNT;
        Wide<In, N> wide = *(const Wide<In, N>*)(rows + at);
#pragma unroll
        for (u32 i = 0; i < N; i++) values[i] = value(wide.at[i]);
    };
    column_sums<AT_ONCE / sizeof(In)>(sums, num_rows, columns, rows_per_chunk, is_wide, take);
}

// Of `result`, which is written as by `activation_gradient`, or as the rounded gradient where `kind` is NONE.
template <class In, class Out>
__device__ void gradient_sums(const In* kept, const In* gradient, Out* result, float* sums, u32 num_rows, u32 columns,
                              u32 rows_per_chunk, u32 is_wide, u32 kind) {
    auto take = [=](u64 at, float* values, auto width) {
        const u32 N = decltype(width)::COUNT;
        Wide<In, N> from = *(const Wide<In, N>*)(gradient + at), before = from;
        if (kind != NONE) before = *(const Wide<In, N>*)(kept + at);
        Wide<Out, N> to;
#pragma unroll
        for (u32 i = 0; i < N; i++) {
            put(to.at[i], gradient_before<In>(value(before.at[i]), value(from.at[i]), kind));
            values[i] = value(to.at[i]);
        }
        *(Wide<Out, N>*)(result + at) = to;
    };
    column_sums<AT_ONCE / sizeof(In)>(sums, num_rows, columns, rows_per_chunk, is_wide, take);
}

}  // namespace linear

extern "C" {

__global__ void linear_round_bf16(const float* input, __nv_bfloat16* output, u64 count) {
    WAIT_FOR_INPUTS;
    linear::map(input, output, count, [](float x) { return x; });
}

__global__ void linear_round_f16(const float* input, __half* output, u64 count) {
    WAIT_FOR_INPUTS;
    linear::map(input, output, count, [](float x) { return x; });
}

__global__ void linear_activate_f32(const float* before, float* after, u64 count, u32 kind) {
    WAIT_FOR_INPUTS;
    linear::activate(before, after, count, kind);
}

__global__ void linear_activate_bf16(const __nv_bfloat16* before, __nv_bfloat16* after, u64 count, u32 kind) {
    WAIT_FOR_INPUTS;
    linear::activate(before, after, count, kind);
}

__global__ void linear_gradient_f32(const float* kept, const float* gradient, float* result, u64 count, u32 kind) {
    WAIT_FOR_INPUTS;
    linear::activation_gradient(kept, gradient, result, count, kind);
}

__global__ void linear_gradient_f32_bf16(const float* kept, const float* gradient, __nv_bfloat16* result, u64 count,
                                         u32 kind) {
    WAIT_FOR_INPUTS;
    linear::activation_gradient(kept, gradient, result, count, kind);
}

__global__ void linear_gradient_f32_f16(const float* kept, const float* gradient, __half* result, u64 count, u32 kind) {
    WAIT_FOR_INPUTS;
    linear::activation_gradient(kept, gradient, result, count, kind);
}

__global__ void linear_gradient_bf16(const __nv_bfloat16* kept, const __nv_bfloat16* gradient, __nv_bfloat16* result,
                                     u64 count, u32 kind) {
    WAIT_FOR_INPUTS;
    linear::activation_gradient(kept, gradient, result, count, kind);
}

__global__ void linear_add_bias_f32(float* rows, const float* bias, u64 count, u32 columns) {
    WAIT_FOR_INPUTS;
    linear::add_bias(rows, bias, count, columns);
}

__global__ void linear_add_bias_bf16(__nv_bfloat16* rows, const __nv_bfloat16* bias, u64 count, u32 columns) {
    WAIT_FOR_INPUTS;
    linear::add_bias(rows, bias, count, columns);
}

__global__ void linear_sums_f32(const float* rows, float* sums, u32 num_rows, u32 columns, u32 rows_per_chunk, u32 is_wide) {
    WAIT_FOR_INPUTS;
    linear::sums_of(rows, sums, num_rows, columns, rows_per_chunk, is_wide);
}

__global__ void linear_sums_f32_bf16(const float* rows, __nv_bfloat16* sums, u32 num_rows, u32 columns,
                                     u32 rows_per_chunk, u32 is_wide) {
    WAIT_FOR_INPUTS;
    linear::sums_of(rows, sums, num_rows, columns, rows_per_chunk, is_wide);
}

__global__ void linear_sums_bf16_f32(const __nv_bfloat16* rows, float* sums, u32 num_rows, u32 columns,
                                     u32 rows_per_chunk, u32 is_wide) {
    WAIT_FOR_INPUTS;
    linear::sums_of(rows, sums, num_rows, columns, rows_per_chunk, is_wide);
}

__global__ void linear_sums_f16_f32(const __half* rows, float* sums, u32 num_rows, u32 columns, u32 rows_per_chunk, u32 is_wide) {
    WAIT_FOR_INPUTS;
    linear::sums_of(rows, sums, num_rows, columns, rows_per_chunk, is_wide);
}

__global__ void linear_sums_bf16(const __nv_bfloat16* rows, __nv_bfloat16* sums, u32 num_rows, u32 columns,
                                 u32 rows_per_chunk, u32 is_wide) {
    WAIT_FOR_INPUTS;
    linear::sums_of(rows, sums, num_rows, columns, rows_per_chunk, is_wide);
}

#define GRADIENT_SUMS(NAME, IN, OUT)                                                                                    \
    __global__ void NAME(const IN* kept, const IN* gradient, OUT* result, float* sums, u32 num_rows, u32 columns,       \
                         u32 rows_per_chunk, u32 is_wide, u32 kind) {                                                   \
        WAIT_FOR_INPUTS;                                                                                                \
        linear::gradient_sums(kept, gradient, result, sums, num_rows, columns, rows_per_chunk, is_wide, kind);          \
    }

GRADIENT_SUMS(linear_gradient_sums_f32, float, float)
GRADIENT_SUMS(linear_gradient_sums_f32_bf16, float, __nv_bfloat16)
GRADIENT_SUMS(linear_gradient_sums_f32_f16, float, __half)
GRADIENT_SUMS(linear_gradient_sums_bf16, __nv_bfloat16, __nv_bfloat16)

}  // extern "C"
