// Cross-entropy of rows of logits. One block of 256 threads per row, or a warp for gradients of few classes; sums in double precision.

// A target without loss, gradient and hit.
#define IGNORED 0xFFFFFFFFu

__device__ float block_max(float value) {
    __shared__ float lanes[256];
    lanes[threadIdx.x] = value;
    __syncthreads();
    for (u32 half = 128; half > 0; half /= 2) {
        if (threadIdx.x < half) lanes[threadIdx.x] = fmaxf(lanes[threadIdx.x], lanes[threadIdx.x + half]);
        __syncthreads();
    }
    float max = lanes[0];
    __syncthreads();
    return max;
}

__device__ float row_max(const float* row, u32 classes) {
    float max = -INFINITY;
    for (u32 c = threadIdx.x; c < classes; c += blockDim.x) max = fmaxf(max, row[c]);
    return block_max(max);
}

__device__ double row_sum(const float* row, u32 classes, float max) {
    double sum = 0.0;
    for (u32 c = threadIdx.x; c < classes; c += blockDim.x) sum += (double)expf(row[c] - max);
    return block_sum(sum);
}

// nats[row]: loss of the row; a target that is no class gives NaN, and one that is ignored 0
extern "C" __global__ void cross_entropy_rows(const float* logits, const u32* targets, u32 classes, double* nats) {
    WAIT_FOR_INPUTS;
    const float* row = logits + (u64)blockIdx.x * classes;
    float max = row_max(row, classes);
    double sum = row_sum(row, classes, max);
    if (threadIdx.x == 0) {
        u32 target = targets[blockIdx.x];
        double loss = target < classes ? log(sum) - ((double)row[target] - (double)max) : (double)NAN;
        nats[blockIdx.x] = target == IGNORED ? 0.0 : loss;
    }
}

extern "C" __global__ void mean_of_rows(const double* nats, u32 rows, float* mean) {
    WAIT_FOR_INPUTS;
    double sum = 0.0;
    for (u32 r = threadIdx.x; r < rows; r += blockDim.x) sum += nats[r];
    sum = block_sum(sum);
    if (threadIdx.x == 0) *mean = (float)(sum / (double)rows);
}

// Mean loss of few rows with few classes by one block: a row per thread.
extern "C" __global__ void cross_entropy_small(const float* logits, const u32* targets, u32 classes, u32 rows, float* mean) {
    WAIT_FOR_INPUTS;
    double sum = 0.0;
    for (u32 r = threadIdx.x; r < rows; r += blockDim.x) {
        u32 target = targets[r];
        if (target == IGNORED) continue;
        const float* row = logits + (u64)r * classes;
        float max = -INFINITY;
        for (u32 c = 0; c < classes; c++) max = fmaxf(max, row[c]);
        double total = 0.0;
        for (u32 c = 0; c < classes; c++) total += (double)expf(row[c] - max);
        sum += target < classes ? log(total) - ((double)row[target] - (double)max) : (double)NAN;
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) *mean = (float)(sum / (double)rows);
}

extern "C" __global__ void nats_to_f32(const double* nats, u32 rows, float* losses) {
    WAIT_FOR_INPUTS;
    for (u64 r = FIRST; r < rows; r += STRIDE) losses[r] = (float)nats[r];
}

// gradient = (softmax - onehot) * upstream / rows
extern "C" __global__ void cross_entropy_backward(
    const float* logits, const u32* targets, const float* upstream, u32 classes, u32 rows, float* gradient) {
    WAIT_FOR_INPUTS;
    const float* row = logits + (u64)blockIdx.x * classes;
    float* out = gradient + (u64)blockIdx.x * classes;
    u32 target = targets[blockIdx.x];
    if (target == IGNORED) {
        for (u32 c = threadIdx.x; c < classes; c += blockDim.x) out[c] = 0.0f;
        return;
    }
    float max = row_max(row, classes);
    double weight = (double)*upstream / (double)rows;
    float scale = (float)(weight / row_sum(row, classes, max));
    for (u32 c = threadIdx.x; c < classes; c += blockDim.x) {
        float value = expf(row[c] - max) * scale;
        out[c] = c == target ? value - (float)weight : value;
    }
    if (target >= classes && threadIdx.x == 0) out[0] = NAN;
}

// As cross_entropy_backward, for rows of up to 128 classes: a warp per row, 4 of them in a block.
template <class T>
__device__ void warp_gradients(
    const T* logits, const u32* targets, const float* upstream, u32 classes, u32 rows, T* gradient) {
    u32 r = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (r >= rows) return;
    const T* row = logits + (u64)r * classes;
    T* out = gradient + (u64)r * classes;
    u32 target = targets[r];
    float values[4], max = -INFINITY;
#pragma unroll
    for (u32 k = 0; k < 4; k++) {
        u32 c = lane + 32 * k;
        values[k] = c < classes ? (float)row[c] : -INFINITY;
        max = fmaxf(max, values[k]);
    }
    for (u32 far = 16; far > 0; far /= 2) max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, far));
    double sum = 0.0;
#pragma unroll
    for (u32 k = 0; k < 4; k++) {
        values[k] = expf(values[k] - max);
        if (lane + 32 * k < classes) sum += (double)values[k];
    }
    for (u32 far = 16; far > 0; far /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, far);
    double weight = (double)*upstream / (double)rows;
    float scale = (float)(weight / sum);
#pragma unroll
    for (u32 k = 0; k < 4; k++) {
        u32 c = lane + 32 * k;
        if (c >= classes) continue;
        float value = values[k] * scale;
        if (c == target) value -= (float)weight;
        if (target >= classes && c == 0) value = NAN;
        out[c] = T(target == IGNORED ? 0.0f : value);
    }
}

#define WARP_GRADIENTS(NAME, T)                                                                                       \
    extern "C" __global__ void __launch_bounds__(128) cross_entropy_backward_##NAME(                                 \
        const T* logits, const u32* targets, const float* upstream, u32 classes, u32 rows, T* gradient) {            \
        WAIT_FOR_INPUTS;                                                                                             \
        warp_gradients(logits, targets, upstream, classes, rows, gradient);                                          \
    }

WARP_GRADIENTS(warp, float)
WARP_GRADIENTS(bf16_warp, __nv_bfloat16)

// Logits of bf16. One block per row, of 1024 threads where rows are wide, whose sum is kept: they are read once for it, and the rows
// that are under way together stay near for the second time. Sums of a thread in single precision. Gradients of few classes: above.

#define LOG2_E 1.44269504088896340736f

// Calls `take(first, values, count)` for the columns of this thread, 8 at a time where the row is aligned to 16 bytes.
template <class Take>
__device__ void visit_halves(const __nv_bfloat16* row, u32 classes, Take take) {
    u32 vectors = ((u64)row & 15) == 0 ? classes / 8 : 0;
    for (u32 v = threadIdx.x; v < vectors; v += blockDim.x) {
        uint4 raw = ((const uint4*)row)[v];
        const __nv_bfloat16* halves = (const __nv_bfloat16*)&raw;
        float values[8];
#pragma unroll
        for (u32 i = 0; i < 8; i++) values[i] = __bfloat162float(halves[i]);
        take(8 * v, values, 8);
    }
    for (u32 c = 8 * vectors + threadIdx.x; c < classes; c += blockDim.x) {
        float value = __bfloat162float(row[c]);
        take(c, &value, 1);
    }
}

__device__ float power_of_two(float x) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(power) : "f"(x));
    return power;
}

struct HalfRow {
    float max;
    // Of exp(x - max).
    double sum;
};

// What the softmax of a row is normalized with, known to all threads of a block of so many; a NaN makes the sum NaN.
template <u32 THREADS>
__device__ HalfRow half_row(const __nv_bfloat16* row, u32 classes) {
    __shared__ float maxima[THREADS];
    __shared__ double sums[THREADS];
    float max = -INFINITY, sum = 0.0f;
    visit_halves(row, classes, [&](u32, const float* values, u32 count) {
        float top = max;
        for (u32 i = 0; i < count; i++) top = fmaxf(top, values[i]);
        if (top > max) sum *= power_of_two((max - top) * LOG2_E);
        max = top;
        for (u32 i = 0; i < count; i++) {
            // Where all so far is minus infinity, there is nothing to be subtracted from.
            sum += values[i] == -INFINITY ? 0.0f : power_of_two((values[i] - max) * LOG2_E);
        }
    });
    maxima[threadIdx.x] = max;
    __syncthreads();
    for (u32 half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) maxima[threadIdx.x] = fmaxf(maxima[threadIdx.x], maxima[threadIdx.x + half]);
        __syncthreads();
    }
    float top = maxima[0];
    sums[threadIdx.x] = (double)(sum * power_of_two((max - top) * LOG2_E));
    __syncthreads();
    for (u32 half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
        __syncthreads();
    }
    return HalfRow{top, sums[0]};
}

// As cross_entropy_rows; and the largest of each row with the logarithm of the sum of exp(x - largest), where there is a place
// for them: as one number the small one would be lost in the large one.
template <u32 THREADS>
__device__ void half_losses(const __nv_bfloat16* logits, const u32* targets, u32 classes, double* nats, float* log_sums) {
    const __nv_bfloat16* row = logits + (u64)blockIdx.x * classes;
    u32 target = targets[blockIdx.x];
    if (target == IGNORED) {
        if (threadIdx.x == 0) nats[blockIdx.x] = 0.0;
        if (threadIdx.x < 2 && log_sums) log_sums[2 * blockIdx.x + threadIdx.x] = 0.0f;
        return;
    }
    HalfRow whole = half_row<THREADS>(row, classes);
    if (threadIdx.x != 0) return;
    double log_sum = log(whole.sum);
    nats[blockIdx.x] = target < classes ? log_sum - ((double)__bfloat162float(row[target]) - (double)whole.max) : (double)NAN;
    if (log_sums) {
        log_sums[2 * blockIdx.x] = whole.max;
        log_sums[2 * blockIdx.x + 1] = (float)log_sum;
    }
}

// As cross_entropy_backward, with what half_losses has found, or finds it once more where nothing was kept.
template <u32 THREADS>
__device__ void half_gradients(
    const __nv_bfloat16* logits, const u32* targets, const float* upstream, const float* log_sums, u32 classes, u32 rows,
    __nv_bfloat16* gradient) {
    const __nv_bfloat16* row = logits + (u64)blockIdx.x * classes;
    __nv_bfloat16* out = gradient + (u64)blockIdx.x * classes;
    u32 target = targets[blockIdx.x];
    bool is_ignored = target == IGNORED, in_vectors = ((u64)out & 15) == 0;
    float weight = (float)((double)*upstream / (double)rows), max = 0.0f, log_sum = 0.0f;
    if (log_sums) {
        max = log_sums[2 * blockIdx.x];
        log_sum = log_sums[2 * blockIdx.x + 1];
    } else if (!is_ignored) {
        HalfRow whole = half_row<THREADS>(row, classes);
        max = whole.max;
        log_sum = (float)log(whole.sum);
    }
    visit_halves(row, classes, [&](u32 first, const float* values, u32 count) {
        uint4 raw;
        __nv_bfloat16* halves = (__nv_bfloat16*)&raw;
        for (u32 i = 0; i < count; i++) {
            float value = power_of_two((values[i] - max - log_sum) * LOG2_E) * weight;
            if (first + i == target) value -= weight;
            if (is_ignored) value = 0.0f;
            if (target >= classes && !is_ignored && first + i == 0) value = NAN;
            if (count == 8 && in_vectors) {
                halves[i] = __float2bfloat16_rn(value);
            } else {
                out[first + i] = __float2bfloat16_rn(value);
            }
        }
        if (count == 8 && in_vectors) *(uint4*)(out + first) = raw;
    });
}

#define HALF_LOSSES(NAME, THREADS)                                                                                   \
    extern "C" __global__ void __launch_bounds__(THREADS) cross_entropy_rows_##NAME(                                 \
        const __nv_bfloat16* logits, const u32* targets, u32 classes, double* nats, float* log_sums) {               \
        WAIT_FOR_INPUTS;                                                                                             \
        half_losses<THREADS>(logits, targets, classes, nats, log_sums);                                              \
    }                                                                                                                \
    extern "C" __global__ void __launch_bounds__(THREADS) cross_entropy_backward_##NAME(                             \
        const __nv_bfloat16* logits, const u32* targets, const float* upstream, const float* log_sums, u32 classes,  \
        u32 rows, __nv_bfloat16* gradient) {                                                                         \
        WAIT_FOR_INPUTS;                                                                                             \
        half_gradients<THREADS>(logits, targets, upstream, log_sums, classes, rows, gradient);                       \
    }

HALF_LOSSES(bf16, 1024)
HALF_LOSSES(bf16_narrow, 128)

// 1 where the target has the largest logit of its row, the first of equals; a NaN in the row leaves 0
extern "C" __global__ void row_hits(const float* logits, const u32* targets, u32 classes, float* hits) {
    WAIT_FOR_INPUTS;
    const float* row = logits + (u64)blockIdx.x * classes;
    u32 target = targets[blockIdx.x];
    float best = target < classes ? row[target] : NAN;
    float beaten = 0.0f;
    for (u32 c = threadIdx.x; c < classes; c += blockDim.x) {
        if (c != target && !(c < target ? row[c] < best : row[c] <= best)) beaten = 1.0f;
    }
    beaten = block_max(beaten);
    if (threadIdx.x == 0) hits[blockIdx.x] = beaten == 0.0f && target < classes ? 1.0f : 0.0f;
}

// The number of rows that hit.
extern "C" __global__ void sum_f32(const float* values, u32 count, float* sum) {
    WAIT_FOR_INPUTS;
    double total = 0.0;
    for (u32 r = threadIdx.x; r < count; r += blockDim.x) total += (double)values[r];
    total = block_sum(total);
    if (threadIdx.x == 0) *sum = (float)total;
}
