// Norms of a gradient by runs of elements, and clipping by domain.

struct Runs {
    u64 start[32];
    u64 length[32];
};

// partials[(first + y) * gridDim.x + x]: part of the squared norm of run y
extern "C" __global__ void square_partials(Runs runs, const float* gradient, u32 first, double* partials) {
    const float* g = gradient + runs.start[blockIdx.y];
    double sum = 0.0;
    for (u64 i = FIRST; i < runs.length[blockIdx.y]; i += STRIDE) sum += (double)g[i] * (double)g[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) partials[(u64)(first + blockIdx.y) * gridDim.x + blockIdx.x] = sum;
}

// squares[run]: one block per run
extern "C" __global__ void square_finish(const double* partials, u32 blocks, double* squares) {
    double sum = 0.0;
    for (u32 k = threadIdx.x; k < blocks; k += blockDim.x) sum += partials[(u64)blockIdx.x * blocks + k];
    sum = block_sum(sum);
    if (threadIdx.x == 0) squares[blockIdx.x] = sum;
}

// norms: the main square, then one per owner. owner[run], domain[run] (0 is the main loss). factors[run] for max_norm.
extern "C" __global__ void norms_finish(
    const double* squares, const u32* owner, const u32* domain, u32 runs, u32 owners, double max_norm, double* norms, float* factors) {
    double main_square = 0.0;
    for (u32 o = 0; o < owners; o++) norms[1 + o] = 0.0;
    for (u32 r = 0; r < runs; r++) {
        if (domain[r] == 0) main_square += squares[r];
        norms[1 + owner[r]] += squares[r];
    }
    norms[0] = main_square;
    for (u32 r = 0; r < runs; r++) {
        double square = 0.0;
        for (u32 other = 0; other < runs; other++) if (domain[other] == domain[r]) square += squares[other];
        double scale = max_norm / sqrt(square);
        factors[r] = scale < 1.0 ? (float)scale : 1.0f;
    }
}

extern "C" __global__ void scale_runs(Runs runs, float* gradient, u32 first, const float* factors) {
    float factor = factors[first + blockIdx.y];
    if (factor == 1.0f) return;
    float* g = gradient + runs.start[blockIdx.y];
    for (u64 i = FIRST; i < runs.length[blockIdx.y]; i += STRIDE) g[i] *= factor;
}
