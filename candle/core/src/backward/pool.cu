// Gradients of pooling: one thread per element of the input. Terms and their order are those of the composition in `pool.rs`, and each
// sum is rounded to the type of the elements as there, so that both have the same bits.
//
// Compiled behind `grouped.cu`, whose types, functions and arrays these are, with one channel to a group: x is what was pooled, y the
// largest elements, w the window.

// T: an element. K: how T is called.
#define POOLED(T, K)                                                                                                          \
    DEVICE T add_##K(T a, T b) {                                                                                               \
        T sum;                                                                                                                 \
        store_##K(&sum, load_##K(&a) + load_##K(&b));                                                                          \
        return sum;                                                                                                            \
    }                                                                                                                          \
    /* Whether the place (i, j) of a window is the first of its largest elements. */                                           \
    DEVICE int is_first_##K(const T* window, const T* largest, u32 i, u32 j, const Shape* s) {                                 \
        if (load_##K(window + (u64)i * s->width + j) != load_##K(largest)) return 0;                                           \
        for (u32 a = 0; a <= i; a++, window += s->width) {                                                                     \
            for (u32 b = 0; b < (a < i ? s->wide : j); b++) {                                                                  \
                if (load_##K(window + b) == load_##K(largest)) return 0;                                                       \
            }                                                                                                                  \
        }                                                                                                                      \
        return 1;                                                                                                              \
    }                                                                                                                          \
    /* An element of the gradient of x; without x each element of a window has all that the window is given. */                \
    DEVICE T pooled_##K(const T* x, const T* y, const T* g, u32 index, const Shape* s) {                                       \
        u32 at = index % s->width, top = index / s->width % s->height;                                                         \
        u64 plane = index / s->width / s->height, places = plane * s->rows * s->columns;                                       \
        u32 down = (u32)s->stride[0], right = (u32)s->stride[1], terms = 0;                                                    \
        T zero, sum;                                                                                                           \
        store_##K(&zero, 0);                                                                                                   \
        sum = zero;                                                                                                            \
        /* Places of windows that lie here. What is less than 0 is more than any number of windows. */                         \
        for (u32 i = top % down, row = top / down; i < s->tall; i += down, row--) {                                            \
            if (row >= s->rows) continue;                                                                                      \
            for (u32 j = at % right, column = at / right; j < s->wide; j += right, column--) {                                 \
                if (column >= s->columns) continue;                                                                            \
                u64 place = places + (u64)row * s->columns + column;                                                           \
                const T* window = x ? x + (plane * s->height + row * down) * s->width + column * right : 0;                    \
                if (!x || is_first_##K(window, y + place, i, j, s)) sum = terms++ ? add_##K(sum, g[place]) : g[place];         \
            }                                                                                                                  \
        }                                                                                                                      \
        /* All other places add a zero: one of them does what all do. */                                                       \
        return terms && terms < s->tall * s->wide ? add_##K(sum, zero) : sum;                                                  \
    }

#ifdef __CUDACC_RTC__
#define POOLED_KERNELS(T, K)                                                                                      \
    extern "C" __global__ void __launch_bounds__(256) esper_pool_gradient_max_##K(                                \
        const T* x, const T* y, const T* g, T* slopes, const u32 count, const Shape s) {                          \
        u32 index = blockIdx.x * 256 + threadIdx.x;                                                               \
        if (index < count) slopes[index] = pooled_##K(x, y, g, index, &s);                                        \
    }                                                                                                             \
    extern "C" __global__ void __launch_bounds__(256) esper_pool_gradient_mean_##K(                               \
        const T* g, T* slopes, const u32 count, const Shape s) {                                                  \
        u32 index = blockIdx.x * 256 + threadIdx.x;                                                               \
        if (index < count) slopes[index] = pooled_##K((const T*)0, (const T*)0, g, index, &s);                    \
    }
#else
#define POOLED_KERNELS(T, K)
#endif

#define ALL_POOLED(T, K)    \
    POOLED(T, K)            \
    POOLED_KERNELS(T, K)

ALL_POOLED(float, f32)
ALL_POOLED(double, f64)
ALL_POOLED(bf16, bf16)
#ifdef __CUDACC_RTC__
ALL_POOLED(half16, f16)
#endif
