// PCGrad in coefficients, in one block of 256 threads. It does what src/aggregate/pcgrad.rs does, bit for bit: a port,
// line by line, of `solve` in src/aggregate/solve.rs, a loop over owners, rows or pairs of owners there being a thread
// each here. A change in one is a change in all three.

const u32 MAX_OWNERS = 16;
const u32 MAX_ROWS = 32;
const double NEGLIGIBLE_INNER = 1e-12;
const double CANCELLED = 1e-5;
const double VANISHING = 1e-30;

struct Owners {
    double product[MAX_OWNERS * MAX_ROWS];
    double inner[MAX_OWNERS * MAX_OWNERS];
    double scale[MAX_OWNERS];
    bool is_zero[MAX_OWNERS];
    double combination[MAX_OWNERS * MAX_OWNERS];
    double total[MAX_OWNERS];
};

// Rounding can leave a square slightly below 0; NaN stays NaN.
__device__ double norm_of(double square) {
    return square < 0.0 ? 0.0 : sqrt(square);
}

// Whether a combination of owners conflicts with owner j, and then the coefficient of its projection.
__device__ bool conflict(const Owners& owners, u32 count, const double* combination, u32 j, double* coefficient) {
    double inner = 0.0, scale = 0.0;
    for (u32 i = 0; i < count; i++) {
        if (owners.is_zero[i]) continue;
        inner += combination[i] * owners.inner[i * count + j];
        scale += fabs(combination[i]) * owners.scale[i];
    }
    if (!(inner < -NEGLIGIBLE_INNER * scale * owners.scale[j] && !owners.is_zero[j])) return false;
    *coefficient = inner / owners.inner[j * count + j];
    return true;
}

// coefficients (2 x rows): of segments that are not isolated, and of those that are; *conflicting: ordered pairs.
// Arguments that cannot be right give NaN.
extern "C" __global__ void pcgrad_solve(
    const double* gram, const double* arguments, u32 num_arguments, u32 rows, float* coefficients, double* conflicting
) {
    __shared__ Owners owners;
    u32 thread = threadIdx.x;
    double first = arguments[0];
    bool fits = first >= 1.0 && first <= (double)MAX_OWNERS;
    u32 count = fits ? (u32)first : 1;
    if (!fits || 1 + rows + count * rows + count * (count - 1) > num_arguments) {
        if (thread < 2 * rows) coefficients[thread] = NAN;
        if (thread == 0) *conflicting = NAN;
        return;
    }
    const double* fractions = arguments + 1;
    const double* shares = fractions + rows;
    const double* orders = shares + count * rows;

    for (u32 at = thread; at < count * rows; at += blockDim.x) {
        u32 owner = at / rows, row = at % rows;
        double product = 0.0;
        for (u32 k = 0; k < rows; k++) product += gram[row * rows + k] * shares[owner * rows + k];
        owners.product[at] = product;
    }
    if (thread < count) {
        double scale = 0.0;
        for (u32 row = 0; row < rows; row++) {
            scale += fabs(shares[thread * rows + row]) * sqrt(gram[row * rows + row]);
        }
        owners.scale[thread] = scale;
    }
    __syncthreads();

    u32 i = thread / count, j = thread % count;
    if (i < count) {
        double inner = 0.0;
        for (u32 row = 0; row < rows; row++) inner += shares[i * rows + row] * owners.product[j * rows + row];
        owners.inner[thread] = inner;
        owners.combination[thread] = i == j ? 1.0 : 0.0;
    }
    __syncthreads();

    if (thread < count) {
        double largest = 0.0;
        for (u32 owner = 0; owner < count; owner++) {
            largest = fmax(largest, norm_of(owners.inner[owner * count + owner]));
        }
        double norm = norm_of(owners.inner[thread * count + thread]);
        owners.is_zero[thread] = norm <= fmax(CANCELLED * owners.scale[thread], VANISHING * largest);
    }
    __syncthreads();

    double unused;
    bool conflicts = i < count && i != j && conflict(owners, count, owners.combination + i * count, j, &unused);
    int num_conflicts = __syncthreads_count(conflicts);
    if (thread == 0) *conflicting = (double)num_conflicts;
    if (num_conflicts == 0) {
        if (thread < 2 * rows) coefficients[thread] = (float)fractions[thread % rows];
        return;
    }

    if (thread < count) {
        double* combination = owners.combination + thread * count;
        for (u32 visit = 0; visit < count - 1; visit++) {
            double visited = orders[thread * (count - 1) + visit];
            if (!(visited >= 0.0 && visited < (double)count)) continue;
            double coefficient;
            if (conflict(owners, count, combination, (u32)visited, &coefficient)) {
                combination[(u32)visited] -= coefficient;
            }
        }
    }
    __syncthreads();

    if (thread < count) {
        double total = 0.0;
        for (u32 owner = 0; owner < count; owner++) total += owners.combination[owner * count + thread];
        owners.total[thread] = total;
    }
    __syncthreads();

    if (thread < rows) {
        double coefficient = 0.0;
        for (u32 owner = 0; owner < count; owner++) {
            coefficient += owners.total[owner] * shares[owner * rows + thread];
        }
        coefficients[thread] = (float)coefficient;
        coefficients[rows + thread] = (float)fractions[thread];
    }
}
