// Products of linear layers with few outputs and their gradients, weights (outputs, inputs), inputs a multiple of 4: a head of some
// classes. The library's algorithms are made for more, and let no kernel after them begin early.

namespace thin {

using linear::Quad;
using linear::put;
using linear::value;

const u32 MAX_OUTPUTS = 16;
const u32 WARPS = 4;

// Up to so many inputs a thread adds a whole output, and waits for no other.
const u32 FEW_INPUTS = 16;

// The product of a row with the rows of W for the threads that have one, in the order of the inputs.
template <class T>
__device__ float product_alone(const Quad<T>* x, const Quad<T>* weight, u32 quads) {
    float sum = 0.0f;
#pragma unroll
    for (u32 quad = 0; quad < FEW_INPUTS / 4; quad++) {
        if (quad >= quads) continue;
        Quad<T> left = x[quad], right = weight[quad];
#pragma unroll
        for (u32 i = 0; i < 4; i++) sum = fmaf(value(left.at[i]), value(right.at[i]), sum);
    }
    return sum;
}

// y[r] = x[r] · W transposed + bias, where there is one: a block of WARPS warps per row, so that each thread reads few numbers, or of one
// where there are few. Added in the same order wherever it is used: each thread its own, the threads of a warp, the warps.
template <class T, class R>
__device__ void product(const T* x, const T* weight, const R* bias, R* y, u32 inputs, u32 outputs) {
    __shared__ float of_warp[WARPS][MAX_OUTPUTS];
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const Quad<T>* own = (const Quad<T>*)(x + (u64)blockIdx.x * inputs);
    if (inputs <= FEW_INPUTS) {
        if (threadIdx.x >= outputs) return;
        float added = bias ? value(bias[lane]) : 0.0f;
        float sum = product_alone(own, (const Quad<T>*)(weight + (u64)lane * inputs), inputs / 4);
        return put(y[(u64)blockIdx.x * outputs + lane], bias ? sum + added : sum);
    }
    float sums[MAX_OUTPUTS] = {};
    for (u32 quad = threadIdx.x; quad < inputs / 4; quad += 32 * WARPS) {
        // All that is read, before the first of it is multiplied: a thread waits for memory once.
        Quad<T> left = own[quad], right[MAX_OUTPUTS];
#pragma unroll
        for (u32 j = 0; j < MAX_OUTPUTS; j++) {
            if (j < outputs) right[j] = ((const Quad<T>*)(weight + (u64)j * inputs))[quad];
        }
#pragma unroll
        for (u32 j = 0; j < MAX_OUTPUTS; j++) {
            if (j >= outputs) continue;
#pragma unroll
            for (u32 i = 0; i < 4; i++) sums[j] = fmaf(value(left.at[i]), value(right[j].at[i]), sums[j]);
        }
    }
#pragma unroll
    for (u32 far = 16; far > 0; far /= 2) {
#pragma unroll
        for (u32 j = 0; j < MAX_OUTPUTS; j++) sums[j] += __shfl_xor_sync(0xffffffffu, sums[j], far);
    }
#pragma unroll
    for (u32 j = 0; j < MAX_OUTPUTS; j++) {
        if (lane == j) of_warp[warp][j] = sums[j];
    }
    __syncthreads();
    if (threadIdx.x >= outputs) return;
    float sum = of_warp[0][lane];
    for (u32 other = 1; other < WARPS; other++) sum += of_warp[other][lane];
    put(y[(u64)blockIdx.x * outputs + lane], bias ? sum + value(bias[lane]) : sum);
}

// As in graph/src/compile/gates.rs.
const u32 ROUNDED = 2;

// dx = dz · W: four neighbors per thread. Where `form` is not 0 the gradient of the rectifier with the output y too, in the type
// of dx or rounded to that of dz, with the bits of linear_gradient_*.
template <class T, class R>
__device__ void input_gradient(const T* dz, const T* weight, R* dx, u32 rows, u32 inputs, u32 outputs, const R* y, void* passed, u32 form) {
    u32 quads = inputs / 4;
    u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= (u64)rows * quads) return;
    u64 row = at / quads, quad = at % quads;
    float sums[4] = {};
#pragma unroll
    for (u32 j = 0; j < MAX_OUTPUTS; j++) {
        if (j >= outputs) continue;
        float gradient = value(dz[row * outputs + j]);
        Quad<T> right = ((const Quad<T>*)(weight + (u64)j * inputs))[quad];
#pragma unroll
        for (u32 i = 0; i < 4; i++) sums[i] = fmaf(gradient, value(right.at[i]), sums[i]);
    }
    Quad<R> to;
#pragma unroll
    for (u32 i = 0; i < 4; i++) put(to.at[i], sums[i]);
    ((Quad<R>*)dx)[at] = to;
    if (form == 0) return;
    Quad<R> kept = ((const Quad<R>*)y)[at];
    Quad<T> rounded;
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        float gradient = linear::gradient_before<R>(value(kept.at[i]), value(to.at[i]), linear::RELU);
        put(to.at[i], gradient);
        put(rounded.at[i], gradient);
    }
    if (form == ROUNDED) ((Quad<T>*)passed)[at] = rounded;
    else ((Quad<R>*)passed)[at] = to;
}

// Rows that are read before the first of them is added, so that a thread waits for memory once.
const u32 ROWS_AT_ONCE = 8;

// dw = dz transposed · x, and db, where it is not null, the sums of the columns of dz: four neighbors of dw per thread, then a sum per
// thread, which multiplies by 1, so that all threads go the same way. Rows are added one by one.
template <class T, class R>
__device__ void weight_gradient(const T* dz, const T* x, R* dw, R* db, u32 rows, u32 inputs, u32 outputs) {
    u32 quads = inputs / 4, at = blockIdx.x * blockDim.x + threadIdx.x, all = outputs * quads;
    if (at >= all + (db ? outputs : 0)) return;
    u32 output = at / quads, quad = at % quads;
    bool is_sum = at >= all;
    if (is_sum) output = at - all;
    float sums[4] = {};
    for (u32 first = 0; first < rows; first += ROWS_AT_ONCE) {
        T left[ROWS_AT_ONCE];
        Quad<T> right[ROWS_AT_ONCE];
#pragma unroll
        for (u32 i = 0; i < ROWS_AT_ONCE; i++) {
            if (first + i >= rows) continue;
            left[i] = dz[(first + i) * outputs + output];
            right[i] = ((const Quad<T>*)x)[(u64)(first + i) * quads + quad];
        }
#pragma unroll
        for (u32 i = 0; i < ROWS_AT_ONCE; i++) {
            if (first + i >= rows) continue;
#pragma unroll
            for (u32 j = 0; j < 4; j++) sums[j] = fmaf(value(left[i]), is_sum ? 1.0f : value(right[i].at[j]), sums[j]);
        }
    }
    if (is_sum) return put(db[output], sums[0]);
    Quad<R> to;
#pragma unroll
    for (u32 i = 0; i < 4; i++) put(to.at[i], sums[i]);
    ((Quad<R>*)dw)[at] = to;
}

}  // namespace thin

#define THIN(NAME, T, R)                                                                                                \
    extern "C" __global__ void __launch_bounds__(128) thin_product_##NAME(                                              \
        const T* x, const T* weight, const R* bias, R* y, u32 inputs, u32 outputs) {                                    \
        WAIT_FOR_INPUTS;                                                                                                \
        thin::product(x, weight, bias, y, inputs, outputs);                                                             \
    }                                                                                                                   \
    extern "C" __global__ void __launch_bounds__(128) thin_gradient_##NAME(                                             \
        const T* dz, const T* weight, R* dx, u32 rows, u32 inputs, u32 outputs, const R* y, void* passed, u32 form) {   \
        WAIT_FOR_INPUTS;                                                                                                \
        thin::input_gradient(dz, weight, dx, rows, inputs, outputs, y, passed, form);                                   \
    }                                                                                                                   \
    extern "C" __global__ void __launch_bounds__(128) thin_weight_gradient_##NAME(                                      \
        const T* dz, const T* x, R* dw, R* db, u32 rows, u32 inputs, u32 outputs) {                                     \
        WAIT_FOR_INPUTS;                                                                                                \
        thin::weight_gradient(dz, x, dw, db, rows, inputs, outputs);                                                    \
    }

THIN(f32, float, float)
THIN(bf16, __nv_bfloat16, __nv_bfloat16)
THIN(bf16_f32, __nv_bfloat16, float)
THIN(f16_f32, __half, float)
