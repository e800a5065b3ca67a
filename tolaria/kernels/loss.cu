// Cross-entropy of rows of logits. One block of 256 threads per row; sums in double precision.

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
    double sum = 0.0;
    for (u32 r = threadIdx.x; r < rows; r += blockDim.x) sum += nats[r];
    sum = block_sum(sum);
    if (threadIdx.x == 0) *mean = (float)(sum / (double)rows);
}

// Mean loss of few rows with few classes by one block: a row per thread.
extern "C" __global__ void cross_entropy_small(const float* logits, const u32* targets, u32 classes, u32 rows, float* mean) {
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
    for (u64 r = FIRST; r < rows; r += STRIDE) losses[r] = (float)nats[r];
}

// gradient = (softmax - onehot) * upstream / rows
extern "C" __global__ void cross_entropy_backward(
    const float* logits, const u32* targets, const float* upstream, u32 classes, u32 rows, float* gradient) {
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

// 1 where the target has the largest logit of its row, the first of equals; a NaN in the row leaves 0
extern "C" __global__ void row_hits(const float* logits, const u32* targets, u32 classes, float* hits) {
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
    double total = 0.0;
    for (u32 r = threadIdx.x; r < count; r += blockDim.x) total += (double)values[r];
    total = block_sum(total);
    if (threadIdx.x == 0) *sum = (float)total;
}
