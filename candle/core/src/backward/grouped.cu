// Convolutions in groups and their gradients: one thread, or one block, per element of the result. Sums are of f32, of f64 for f64,
// in a fixed order.
//
// NVRTC compiles this file on the GPU that runs it; a test compiles its functions for the processor, so they are C as well.
// Arrays: x (samples, groups·inputs, height, width), w (groups·outputs, inputs, tall, wide), y and g (samples, groups·outputs, rows, columns).

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;

typedef struct Shape {
    u32 samples, groups, inputs, outputs;
    u32 height, width, tall, wide, rows, columns;
    // Of rows, then of columns.
    int padding[2], stride[2], dilation[2];
} Shape;

#ifdef __CUDACC_RTC__
#define DEVICE static __device__ __forceinline__
#else
#include <math.h>
#define DEVICE static
#endif

typedef struct { u16 bits; } bf16;
typedef struct { u16 bits; } half16;

DEVICE float load_f32(const float* at) { return *at; }
DEVICE double load_f64(const double* at) { return *at; }
DEVICE void store_f32(float* at, float value) { *at = value; }
DEVICE void store_f64(double* at, double value) { *at = value; }
DEVICE float fma_f32(float a, float b, float c) { return fmaf(a, b, c); }
DEVICE double fma_f64(double a, double b, double c) { return fma(a, b, c); }

DEVICE float load_bf16(const bf16* at) {
    union { u32 bits; float value; } number;
    number.bits = (u32)at->bits << 16;
    return number.value;
}

// To the nearest, ties to even; what is no number stays none.
DEVICE void store_bf16(bf16* at, float value) {
    union { u32 bits; float value; } number;
    number.value = value;
    at->bits = (u16)(value == value ? (number.bits + 0x7fff + (number.bits >> 16 & 1)) >> 16 : 0x7fff);
}

#ifdef __CUDACC_RTC__
DEVICE float load_f16(const half16* at) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(at->bits));
    return value;
}

DEVICE void store_f16(half16* at, float value) {
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(at->bits) : "f"(value));
}
#endif

// The place of a window's element, or whether a window has one at this place: `from` · stride == at.
DEVICE int starts_at(int at, int stride, u32 count, u32* from) {
    if (at < 0) return 0;
    *from = stride == 1 ? (u32)at : (u32)at / (u32)stride;
    return *from < count && (stride == 1 || *from * (u32)stride == (u32)at);
}

// T: an element. A: a sum. K: how T is called.
#define GROUPED(T, A, K, FMA)                                                                                                  \
    /* An element of y. */                                                                                                     \
    DEVICE A output_##K(const T* x, const T* w, u32 index, const Shape* s) {                                                   \
        u32 column = index % s->columns, row = index / s->columns % s->rows;                                                   \
        u32 plane = index / s->columns / s->rows;                                                                              \
        u32 channel = plane % (s->groups * s->outputs), sample = plane / (s->groups * s->outputs);                             \
        u64 area = (u64)s->height * s->width;                                                                                  \
        const T* image = x + ((u64)sample * s->groups + channel / s->outputs) * s->inputs * area;                              \
        const T* weight = w + (u64)channel * s->inputs * s->tall * s->wide;                                                    \
        int top = (int)row * s->stride[0] - s->padding[0], left = (int)column * s->stride[1] - s->padding[1];                  \
        A sum = 0;                                                                                                             \
        for (u32 input = 0; input < s->inputs; input++, image += area) {                                                       \
            for (u32 i = 0; i < s->tall; i++, weight += s->wide) {                                                             \
                u32 y = (u32)(top + (int)i * s->dilation[0]);                                                                  \
                if (y >= s->height) continue;                                                                                  \
                for (u32 j = 0; j < s->wide; j++) {                                                                            \
                    u32 at = (u32)(left + (int)j * s->dilation[1]);                                                            \
                    if (at < s->width) sum = FMA(load_##K(image + (u64)y * s->width + at), load_##K(weight + j), sum);         \
                }                                                                                                              \
            }                                                                                                                  \
        }                                                                                                                      \
        return sum;                                                                                                            \
    }                                                                                                                          \
    /* An element of the gradient of x. */                                                                                     \
    DEVICE A input_gradient_##K(const T* w, const T* g, u32 index, const Shape* s) {                                           \
        u32 at = index % s->width, y = index / s->width % s->height;                                                           \
        u32 plane = index / s->width / s->height;                                                                              \
        u32 channel = plane % (s->groups * s->inputs), sample = plane / (s->groups * s->inputs);                               \
        u32 group = channel / s->inputs, input = channel % s->inputs;                                                          \
        u64 area = (u64)s->rows * s->columns, window = (u64)s->tall * s->wide;                                                 \
        const T* slopes = g + ((u64)sample * s->groups + group) * s->outputs * area;                                           \
        const T* weight = w + ((u64)group * s->outputs * s->inputs + input) * window;                                          \
        A sum = 0;                                                                                                             \
        for (u32 output = 0; output < s->outputs; output++, slopes += area, weight += s->inputs * window) {                    \
            for (u32 i = 0; i < s->tall; i++) {                                                                                \
                u32 row, column;                                                                                               \
                if (!starts_at((int)y + s->padding[0] - (int)i * s->dilation[0], s->stride[0], s->rows, &row)) continue;       \
                for (u32 j = 0; j < s->wide; j++) {                                                                            \
                    int start = (int)at + s->padding[1] - (int)j * s->dilation[1];                                             \
                    if (starts_at(start, s->stride[1], s->columns, &column))                                                   \
                        sum = FMA(load_##K(slopes + (u64)row * s->columns + column), load_##K(weight + i * s->wide + j), sum); \
                }                                                                                                              \
            }                                                                                                                  \
        }                                                                                                                      \
        return sum;                                                                                                            \
    }                                                                                                                          \
    /* A part of an element of the gradient of w: every `step`th place from `first` on, of all samples. */                     \
    DEVICE A weight_gradient_##K(const T* x, const T* g, u32 index, u32 first, u32 step, const Shape* s) {                     \
        u32 j = index % s->wide, i = index / s->wide % s->tall;                                                                \
        u32 pair = index / s->wide / s->tall;                                                                                  \
        u32 input = pair % s->inputs, channel = pair / s->inputs, group = channel / s->outputs;                                \
        u64 area = (u64)s->height * s->width, places = (u64)s->rows * s->columns;                                              \
        const T* image = x + ((u64)group * s->inputs + input) * area;                                                          \
        const T* slopes = g + channel * places;                                                                                \
        int top = (int)i * s->dilation[0] - s->padding[0], left = (int)j * s->dilation[1] - s->padding[1];                     \
        A sum = 0;                                                                                                             \
        /* Divisions only here: a step goes so far down and so far to the right. */                                            \
        u32 column = first % s->columns, row = first / s->columns % s->rows, sample = first / (u32)places;                     \
        u32 over = step % s->columns, down = step / s->columns;                                                                \
        while (sample < s->samples) {                                                                                          \
            u32 y = (u32)((int)row * s->stride[0] + top), z = (u32)((int)column * s->stride[1] + left);                        \
            if (y < s->height && z < s->width) {                                                                               \
                const T* from = image + (u64)sample * s->groups * s->inputs * area + (u64)y * s->width + z;                    \
                const T* slope = slopes + (u64)sample * s->groups * s->outputs * places + row * s->columns + column;           \
                sum = FMA(load_##K(from), load_##K(slope), sum);                                                               \
            }                                                                                                                  \
            column += over;                                                                                                    \
            row += down;                                                                                                       \
            if (column >= s->columns) {                                                                                        \
                column -= s->columns;                                                                                          \
                row++;                                                                                                         \
            }                                                                                                                  \
            while (row >= s->rows) {                                                                                           \
                row -= s->rows;                                                                                                \
                sample++;                                                                                                      \
            }                                                                                                                  \
        }                                                                                                                      \
        return sum;                                                                                                            \
    }

#ifdef __CUDACC_RTC__
#define KERNELS(T, A, K)                                                                                          \
    extern "C" __global__ void __launch_bounds__(256) esper_grouped_output_##K(                                   \
        const T* x, const T* w, T* y, const u32 count, const Shape s) {                                           \
        u32 index = blockIdx.x * 256 + threadIdx.x;                                                               \
        if (index < count) store_##K(y + index, output_##K(x, w, index, &s));                                     \
    }                                                                                                             \
    extern "C" __global__ void __launch_bounds__(256) esper_grouped_input_gradient_##K(                           \
        const T* w, const T* g, T* slopes, const u32 count, const Shape s) {                                      \
        u32 index = blockIdx.x * 256 + threadIdx.x;                                                               \
        if (index < count) store_##K(slopes + index, input_gradient_##K(w, g, index, &s));                        \
    }                                                                                                             \
    /* A block per element. */                                                                                    \
    extern "C" __global__ void __launch_bounds__(256) esper_grouped_weight_gradient_##K(                          \
        const T* x, const T* g, T* slopes, const u32 count, const Shape s) {                                      \
        __shared__ A sums[256];                                                                                   \
        sums[threadIdx.x] = weight_gradient_##K(x, g, blockIdx.x, threadIdx.x, 256, &s);                          \
        for (u32 half = 128; half > 0; half /= 2) {                                                               \
            __syncthreads();                                                                                      \
            if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];                                \
        }                                                                                                         \
        if (threadIdx.x == 0) store_##K(slopes + blockIdx.x, sums[0]);                                            \
    }
#else
#define KERNELS(T, A, K)
#endif

#define ALL(T, A, K, FMA)   \
    GROUPED(T, A, K, FMA)   \
    KERNELS(T, A, K)

ALL(float, float, f32, fma_f32)
ALL(double, double, f64, fma_f64)
ALL(bf16, float, bf16, fma_f32)
#ifdef __CUDACC_RTC__
ALL(half16, float, f16, fma_f32)
#endif
