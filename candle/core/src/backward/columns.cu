// What windows see as columns, and the way back: one thread per element of the result.
//
// Compiled behind `grouped.cu`, whose types and functions these are, with one channel to a group. Columns: (groups, tall, wide, samples, rows,
// columns), what each place of a window sees of each channel while the window moves.

// T: an element. A: a sum. K: how T is called.
#define COLUMNS(T, A, K)                                                                                                      \
    /* An element of the columns; what lies outside of x is zero. */                                                           \
    DEVICE T seen_##K(const T* x, u32 index, const Shape* s) {                                                                 \
        u32 column = index % s->columns, row = index / s->columns % s->rows;                                                   \
        u32 rest = index / s->columns / s->rows, sample = rest % s->samples, place = rest / s->samples;                        \
        u32 j = place % s->wide, i = place / s->wide % s->tall, channel = place / s->wide / s->tall;                           \
        int top = (int)row * s->stride[0] + (int)i * s->dilation[0] - s->padding[0];                                           \
        int left = (int)column * s->stride[1] + (int)j * s->dilation[1] - s->padding[1];                                       \
        T zero;                                                                                                                \
        store_##K(&zero, 0);                                                                                                   \
        if (top < 0 || (u32)top >= s->height || left < 0 || (u32)left >= s->width) return zero;                                \
        return x[(((u64)sample * s->groups + channel) * s->height + top) * s->width + left];                                   \
    }                                                                                                                          \
    /* The sum of what places of windows that see an element of x give it, place after place. */                               \
    DEVICE A folded_##K(const T* given, u32 index, const Shape* s) {                                                           \
        u32 at = index % s->width, top = index / s->width % s->height;                                                         \
        u32 plane = index / s->width / s->height, channel = plane % s->groups, sample = plane / s->groups;                     \
        A sum = 0;                                                                                                             \
        for (u32 i = 0; i < s->tall; i++) {                                                                                    \
            u32 row, column;                                                                                                   \
            int down = (int)top + s->padding[0] - (int)i * s->dilation[0];                                                     \
            if (!starts_at(down, s->stride[0], s->rows, &row)) continue;                                                       \
            for (u32 j = 0; j < s->wide; j++) {                                                                                \
                int right = (int)at + s->padding[1] - (int)j * s->dilation[1];                                                 \
                if (!starts_at(right, s->stride[1], s->columns, &column)) continue;                                            \
                u64 place = ((u64)channel * s->tall + i) * s->wide + j;                                                        \
                sum += load_##K(given + ((place * s->samples + sample) * s->rows + row) * s->columns + column);                \
            }                                                                                                                  \
        }                                                                                                                      \
        return sum;                                                                                                            \
    }

#ifdef __CUDACC_RTC__
#define COLUMN_KERNELS(T, K)                                                                                      \
    extern "C" __global__ void __launch_bounds__(256) esper_windows_seen_##K(                                     \
        const T* x, T* columns, const u32 count, const Shape s) {                                                 \
        u32 index = blockIdx.x * 256 + threadIdx.x;                                                               \
        if (index < count) columns[index] = seen_##K(x, index, &s);                                               \
    }                                                                                                             \
    extern "C" __global__ void __launch_bounds__(256) esper_windows_folded_##K(                                   \
        const T* columns, T* x, const u32 count, const Shape s) {                                                 \
        u32 index = blockIdx.x * 256 + threadIdx.x;                                                               \
        if (index < count) store_##K(x + index, folded_##K(columns, index, &s));                                  \
    }
#else
#define COLUMN_KERNELS(T, K)
#endif

#define ALL_COLUMNS(T, A, K) \
    COLUMNS(T, A, K)         \
    COLUMN_KERNELS(T, K)

ALL_COLUMNS(float, float, f32)
ALL_COLUMNS(double, double, f64)
#ifdef __CUDACC_RTC__
ALL_COLUMNS(bf16, float, bf16)
ALL_COLUMNS(half16, float, f16)
#endif
