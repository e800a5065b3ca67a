// Sums of an epoch, in double precision.

extern "C" __global__ void add_scaled_f32(double* sums, const float* addends, double scale, u32 count) {
    WAIT_FOR_INPUTS;
    for (u64 i = FIRST; i < count; i += STRIDE) sums[i] += scale * (double)addends[i];
}

extern "C" __global__ void add_scaled_f64(double* sums, const double* addends, double scale, u32 count) {
    WAIT_FOR_INPUTS;
    for (u64 i = FIRST; i < count; i += STRIDE) sums[i] += scale * addends[i];
}

// Adds 1 to each count whose squared norm is finite and above 0.
extern "C" __global__ void count_healthy_f64(double* counts, const double* norms_sq, double unused, u32 count) {
    WAIT_FOR_INPUTS;
    for (u64 i = FIRST; i < count; i += STRIDE) {
        if (norms_sq[i] > 0.0 && isfinite(norms_sq[i])) counts[i] += 1.0;
    }
}
