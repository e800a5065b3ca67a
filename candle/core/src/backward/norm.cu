// Gradients of layer norm of the last dimension: of the input one row after the other, of the weights in slices of rows, whose sums
// are added up.
//
// Compiled behind `grouped.cu`, whose types and functions these are. Arrays: x and g (rows, width), alpha (width), stats (rows, 2) with the
// mean and 1 / √(variance + eps), sums of a slice (2, width) with Σ g n and Σ g.

typedef struct Norm {
    // `threads` of a row, 32 or 256; rows of a slice.
    u32 rows, width, threads, per_slice, slices;
    float eps;
} Norm;

#define sqrt_f32 sqrtf
#define sqrt_f64 sqrt
#ifdef __CUDACC_RTC__
#define UNROLLED _Pragma("unroll")
#else
#define UNROLLED
#endif

// T: an element. A: a sum. K: how T is called. S: how A is called. A thread of a row has `per` elements, as many threads apart as the row has.
#define NORM(T, A, K, S)                                                                                                      \
    /* Elements of x, and of g alpha, of a thread; what each adds up to. */                                                    \
    DEVICE void norm_read_##K(                                                                                                 \
        const T* x, const T* alpha, const T* g, u32 thread, u32 per, A* own, A* slopes, A* level, A* slope, const Norm* s) {   \
        UNROLLED for (u32 i = 0; i < per; i++) {                                                                               \
            u32 at = thread + i * s->threads;                                                                                  \
            own[i] = slopes[i] = 0;                                                                                            \
            if (at < s->width) own[i] = load_##K(x + at), slopes[i] = load_##K(g + at) * load_##K(alpha + at);                 \
            *level += own[i], *slope += slopes[i];                                                                             \
        }                                                                                                                      \
    }                                                                                                                          \
    /* x − mean of each, the sum of its square, and of it times g alpha. */                                                    \
    DEVICE void norm_center_##K(A mean, u32 thread, u32 per, A* own, const A* slopes, A* spread, A* along, const Norm* s) {    \
        UNROLLED for (u32 i = 0; i < per; i++) {                                                                               \
            own[i] = thread + i * s->threads < s->width ? own[i] - mean : 0;                                                   \
            *spread = fma_##S(own[i], own[i], *spread);                                                                        \
            *along = fma_##S(own[i], slopes[i], *along);                                                                       \
        }                                                                                                                      \
    }                                                                                                                          \
    /* Elements of the gradient of x, with the means of g alpha and of g alpha n. */                                           \
    DEVICE void norm_write_##K(                                                                                                \
        T* result, A r, A level, A along, u32 thread, u32 per, const A* own, const A* slopes, const Norm* s) {                 \
        UNROLLED for (u32 i = 0; i < per; i++) {                                                                               \
            u32 at = thread + i * s->threads;                                                                                  \
            if (at < s->width) store_##K(result + at, (slopes[i] - level - own[i] * r * along) * r);                           \
        }                                                                                                                      \
    }                                                                                                                          \
    /* What every thirty-second row of a slice adds to the gradients of alpha and beta. */                                     \
    DEVICE void weight_slopes_##K(                                                                                             \
        const T* x, const T* g, const A* stats, u32 at, u32 slice, u32 thread, A* scale, A* shift, const Norm* s) {            \
        u32 end = (slice + 1) * s->per_slice < s->rows ? (slice + 1) * s->per_slice : s->rows;                                 \
        *scale = *shift = 0;                                                                                                   \
        for (u32 row = slice * s->per_slice + thread; row < end; row += 32) {                                                  \
            A slope = load_##K(g + (u64)row * s->width + at);                                                                  \
            A n = (load_##K(x + (u64)row * s->width + at) - stats[2 * row]) * stats[2 * row + 1];                              \
            *scale = fma_##S(slope, n, *scale);                                                                                \
            *shift += slope;                                                                                                   \
        }                                                                                                                      \
    }

#ifdef __CUDACC_RTC__
// Two sums over the threads of a row, for all of them; and one over the 32 rows of threads of a block, for the first of them.
#define TOTAL(A, S)                                                                                     \
    DEVICE void total_##S(A* a, A* b, const Norm* s) {                                                  \
        for (u32 step = 16; step; step /= 2)                                                            \
            *a += __shfl_xor_sync(~0u, *a, step), *b += __shfl_xor_sync(~0u, *b, step);                 \
        if (s->threads == 32) return;                                                                   \
        __shared__ A parts[2][8];                                                                       \
        __syncthreads();                                                                                \
        if (threadIdx.x % 32 == 0) parts[0][threadIdx.x / 32] = *a, parts[1][threadIdx.x / 32] = *b;    \
        __syncthreads();                                                                                \
        *a = parts[0][0], *b = parts[1][0];                                                             \
        for (u32 part = 1; part < 8; part++) *a += parts[0][part], *b += parts[1][part];                \
    }                                                                                                   \
    DEVICE A down_##S(A sum) {                                                                          \
        __shared__ A parts[32][33];                                                                     \
        __syncthreads();                                                                                \
        parts[threadIdx.y][threadIdx.x] = sum;                                                          \
        __syncthreads();                                                                                \
        /* A column each for a warp, turned. */                                                         \
        sum = parts[threadIdx.x][threadIdx.y];                                                          \
        for (u32 step = 16; step; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);                    \
        __syncthreads();                                                                                \
        if (threadIdx.x == 0) parts[0][threadIdx.y] = sum;                                              \
        __syncthreads();                                                                                \
        return parts[0][threadIdx.x];                                                                   \
    }

TOTAL(float, f32)
TOTAL(double, f64)

#define NORM_INPUT(T, A, K, S, PER)                                                                               \
    extern "C" __global__ void __launch_bounds__(256) esper_norm_input_##PER##_##K(                               \
        const T* x, const T* alpha, const T* g, T* result, A* stats, const Norm s) {                              \
        u32 thread = threadIdx.x % s.threads, row = blockIdx.x * (256 / s.threads) + threadIdx.x / s.threads;     \
        if (row >= s.rows) return;                                                                                \
        u64 start = (u64)row * s.width;                                                                           \
        A own[PER], slopes[PER], mean = 0, level = 0, spread = 0, along = 0;                                      \
        norm_read_##K(x + start, alpha, g + start, thread, PER, own, slopes, &mean, &level, &s);                  \
        total_##S(&mean, &level, &s);                                                                             \
        mean /= s.width, level /= s.width;                                                                        \
        norm_center_##K(mean, thread, PER, own, slopes, &spread, &along, &s);                                     \
        total_##S(&spread, &along, &s);                                                                           \
        A r = 1 / sqrt_##S(spread / s.width + s.eps);                                                             \
        norm_write_##K(result + start, r, level, along * r / s.width, thread, PER, own, slopes, &s);              \
        if (thread == 0) stats[2 * row] = mean, stats[2 * row + 1] = r;                                           \
    }

// The sums of the weights are those of the only slice, of the type of the result; or a row for each slice.
#define NORM_WEIGHTS(T, A, K, S, TO, NAME, STORE)                                                                 \
    extern "C" __global__ void __launch_bounds__(1024) esper_norm_##NAME##_##K(                                   \
        const T* x, const T* g, const A* stats, TO* sums, const Norm s) {                                         \
        u32 at = blockIdx.x * 32 + threadIdx.x;                                                                   \
        A scale = 0, shift = 0;                                                                                   \
        if (at < s.width) weight_slopes_##K(x, g, stats, at, blockIdx.y, threadIdx.y, &scale, &shift, &s);        \
        scale = down_##S(scale), shift = down_##S(shift);                                                         \
        if (at >= s.width || threadIdx.y) return;                                                                 \
        sums += (u64)blockIdx.y * 2 * s.width + at;                                                               \
        STORE(sums, scale);                                                                                       \
        STORE(sums + s.width, shift);                                                                             \
    }

#define NORM_KERNELS(T, A, K, S)                                                                                  \
    NORM_INPUT(T, A, K, S, 2)                                                                                     \
    NORM_INPUT(T, A, K, S, 8)                                                                                     \
    NORM_INPUT(T, A, K, S, 32)                                                                                    \
    NORM_WEIGHTS(T, A, K, S, T, weights, store_##K)                                                               \
    NORM_WEIGHTS(T, A, K, S, A, slices, store_##S)                                                                \
    extern "C" __global__ void __launch_bounds__(1024) esper_norm_sum_##K(const A* slices, T* sums, const Norm s) { \
        u32 at = blockIdx.x * 32 + threadIdx.x, count = 2 * s.width;                                              \
        A sum = 0;                                                                                                \
        if (at < count)                                                                                           \
            for (u32 slice = threadIdx.y; slice < s.slices; slice += 32) sum += slices[(u64)slice * count + at];  \
        sum = down_##S(sum);                                                                                      \
        if (at < count && threadIdx.y == 0) store_##K(sums + at, sum);                                            \
    }
#else
#define NORM_KERNELS(T, A, K, S)
#endif

#define ALL_NORMS(T, A, K, S) \
    NORM(T, A, K, S)          \
    NORM_KERNELS(T, A, K, S)

ALL_NORMS(float, float, f32, f32)
ALL_NORMS(double, double, f64, f64)
#ifdef __CUDACC_RTC__
ALL_NORMS(bf16, float, bf16, f32)
ALL_NORMS(half16, float, f16, f32)
#endif
