// From inner products to coefficients, norms and factors. What src/aggregate/solve.rs does, with a thread for each turn
// of its loops; only the parts of the matrix are added in another order. A change in one is a change in both.

#include "weights/owners.cuh"
#include "weights/simplex.cuh"

// Weights that make the owners' gradients longer than this, relative to the norms of their terms, leave a sum in which
// these cancel.
const double LARGEST_GROWTH = 1e5;
const double LARGEST_F32 = 3.4028234663852886e38;

// Where things are in the packed sums of an epoch, as in src/aggregate/sums.rs.
struct Sums {
    double* base;  // null: nothing is summed
    u32 slots;
    u32 parts;

    __device__ double& loss() const { return base[0]; }
    __device__ double& main_square() const { return base[2]; }
    __device__ double& conflicts() const { return base[3]; }
    __device__ double& skipped_samples() const { return base[4]; }
    __device__ double& of_slot(u32 field, u32 slot) const { return base[OWNERS + field * slots + slot]; }
    __device__ double& cosine(u32 i, u32 j) const { return base[OWNERS + FIELDS * slots + i * slots + j]; }
    __device__ double& layer(u32 slot, u32 part) const {
        return base[OWNERS + FIELDS * slots + slots * slots + slot * parts + part];
    }
    // Sums of the windows before, as many.
    __device__ u32 length() const { return OWNERS + slots * (FIELDS + slots + parts); }
    __device__ double* before() const { return base + length(); }

    static const u32 OWNERS = 5;
    static const u32 PARAMETER_SQUARE = 0, HEALTHY = 1, SKIPPED = 2, WINDOWS = 3, WEIGHT = 4, NORM_SQUARE = 5, SHARE = 6;
    static const u32 CONFLICTS = 7, PAIRS = 8, RESOLVED = 9, ALPHA = 10, SPLIT = 11, FIELDS = 12;
};

// Numbers of a window on the device, as WindowPlan::arguments lays them out.
struct Window {
    u32 rows;
    u32 slots;
    const double* arguments;

    __device__ const double* fractions() const { return arguments; }
    __device__ const double* shares() const { return arguments + rows; }
    __device__ const double* orders() const { return shares() + slots * rows; }
    __device__ const double* alphas() const { return orders() + slots * (slots - 1); }
};

// Working memory of the solver, in shared memory where it fits.
struct Work {
    double* arguments;
    double* gram;     // rows x rows
    double* product;  // slots x rows
    double* inner;    // slots x slots
    double* scale;
    double* norm;
    double* weight;
    u32* is_idle;
    u32* takes_part;
    double* lanes;  // one per thread
    double* scratch;

    __device__ Work(double* base, u32 rows, u32 slots) {
        arguments = base;
        gram = arguments + rows + slots * (rows + slots);
        product = gram + rows * rows;
        inner = product + slots * rows;
        scale = inner + slots * slots;
        norm = scale + slots;
        weight = norm + slots;
        is_idle = (u32*)(weight + slots);
        takes_part = is_idle + slots;
        lanes = weight + 2 * slots;
        scratch = lanes + blockDim.x;
    }
};

__device__ bool conflicts(const Work& work, u32 slots, u32 i, u32 j) {
    return i != j && !work.is_idle[i] && !work.is_idle[j] &&
           work.inner[i * slots + j] < -NEGLIGIBLE_INNER * work.scale[i] * work.scale[j];
}

// Adds what is known of the owners to the sums of the epoch.
__device__ void measure(const Window& window, const Work& work, const Sums& sums) {
    u32 slots = window.slots, rows = window.rows;
    for (u32 slot = threadIdx.x; slot < slots; slot += blockDim.x) {
        double weight = 0.0;
        for (u32 row = 0; row < rows; row++) weight += window.shares()[slot * rows + row];
        work.product[slot] = weight;
    }
    __syncthreads();
    for (u32 slot = threadIdx.x; slot < slots; slot += blockDim.x) {
        if (!work.takes_part[slot]) continue;
        // The products are not needed any more: the first column of their place has the weights.
        const double* weights = work.product;
        double norms = 0.0, of_seeds = 0.0;
        u32 participants = 0, conflicting = 0;
        for (u32 other = 0; other < slots; other++) {
            if (other > 0) of_seeds += weights[other];
            if (work.takes_part[other]) participants += 1;
            norms += work.norm[other];
            if (conflicts(work, slots, slot, other)) conflicting += 1;
        }
        double weight = weights[slot];
        bool comparable = norms > 0.0 && isfinite(norms);
        double addend[Sums::FIELDS] = {};
        addend[Sums::WINDOWS] = 1.0;
        addend[Sums::WEIGHT] = weight;
        addend[Sums::NORM_SQUARE] = work.norm[slot] * work.norm[slot];
        addend[Sums::SHARE] = comparable ? work.norm[slot] / norms : 1.0 / (double)participants;
        addend[Sums::CONFLICTS] = (double)conflicting;
        addend[Sums::PAIRS] = (double)(participants - 1);
        addend[Sums::RESOLVED] = work.weight[slot];
        if (slot > 0) {
            addend[Sums::ALPHA] = window.alphas()[slot];
            addend[Sums::SPLIT] = weight / of_seeds;
        }
        // All loads before the first store, so that they are under way together.
        double sum[Sums::FIELDS];
#pragma unroll
        for (u32 field = Sums::WINDOWS; field < Sums::FIELDS; field++) sum[field] = sums.of_slot(field, slot);
#pragma unroll
        for (u32 field = Sums::WINDOWS; field < Sums::FIELDS; field++) {
            sums.of_slot(field, slot) = sum[field] + addend[field];
        }
        // Counts are exact in any order.
        atomicAdd(&sums.conflicts(), (double)conflicting);
    }
    // The cosines above the diagonal, and below it how many there were.
    for (u32 pair = threadIdx.x; pair < slots * slots; pair += blockDim.x) {
        u32 i = pair / slots, j = pair % slots;
        if (i >= j || work.is_idle[i] || work.is_idle[j]) continue;
        double cosine = work.inner[pair] / (work.norm[i] * work.norm[j]);
        if (!isfinite(cosine)) continue;
        sums.cosine(i, j) += fmin(fmax(cosine, -1.0), 1.0);
        sums.cosine(j, i) += 1.0;
    }
}

// grams: of all parts. coefficients (2 x rows): of parts that are not isolated, and of those that are.
template <void (*weigh)(const Owners&, double*, double*)>
__device__ void solve(
    const double* grams, const Part* parts, u32 num_parts, Window window, double parameter, double* memory,
    float* coefficients, const Sums& sums) {
    u32 rows = window.rows, slots = window.slots;
    Work work(memory, rows, slots);
    for (u32 at = threadIdx.x; at < rows + slots * (rows + slots); at += blockDim.x) {
        work.arguments[at] = window.arguments[at];
    }
    window.arguments = work.arguments;
    const double* shares = window.shares();

    // Threads in turn take the parts of one place, and then one of them adds what they have.
    u32 size = rows * rows, num_lanes = size < blockDim.x ? blockDim.x / size : 1;
    for (u32 first = 0; first < size; first += blockDim.x) {
        u32 at = first + threadIdx.x % (size < blockDim.x ? size : blockDim.x), lane = threadIdx.x / size;
        double sum = 0.0;
        if (at < size && lane < num_lanes) {
#pragma unroll 8
            for (u32 part = lane; part < num_parts; part += num_lanes) {
                double value = grams[(u64)part * size + at];
                if (parts[part].domain == 0) sum += value;
            }
        }
        work.lanes[threadIdx.x] = sum;
        __syncthreads();
        if (at < size && lane == 0) {
            for (u32 other = 1; other < num_lanes; other++) sum += work.lanes[other * size + threadIdx.x];
            work.gram[at] = sum;
        }
        __syncthreads();
    }

    for (u32 at = threadIdx.x; at < slots * rows; at += blockDim.x) {
        u32 slot = at / rows, row = at % rows;
        double product = 0.0;
        for (u32 k = 0; k < rows; k++) product += work.gram[row * rows + k] * shares[slot * rows + k];
        work.product[at] = product;
    }
    for (u32 slot = threadIdx.x; slot < slots; slot += blockDim.x) {
        double scale = 0.0;
        bool takes_part = false;
        for (u32 row = 0; row < rows; row++) {
            double share = shares[slot * rows + row];
            scale += fabs(share) * sqrt(work.gram[row * rows + row]);
            takes_part = takes_part || share > 0.0;
        }
        work.scale[slot] = scale;
        work.takes_part[slot] = takes_part;
        work.weight[slot] = 1.0;
    }
    __syncthreads();

    for (u32 at = threadIdx.x; at < slots * slots; at += blockDim.x) {
        u32 i = at / slots, j = at % slots;
        double inner = 0.0;
        for (u32 row = 0; row < rows; row++) inner += shares[i * rows + row] * work.product[j * rows + row];
        work.inner[at] = inner;
        if (i == j) work.norm[i] = norm_of(inner);
    }
    __syncthreads();

    for (u32 slot = threadIdx.x; slot < slots; slot += blockDim.x) {
        work.is_idle[slot] = owner_is_idle(work.inner, work.scale, work.takes_part, slots, slot);
    }
    __syncthreads();

    Owners owners = {slots, work.inner, work.scale, work.is_idle, window.orders(), parameter};
    weigh(owners, work.scratch, work.weight);
    __syncthreads();

    // All weights are 1 again when the sum that they give would be nothing but rounding.
    double before = 0.0, after = 0.0;
    for (u32 slot = 0; slot < slots; slot++) {
        before += work.scale[slot];
        after += fabs(work.weight[slot]) * work.scale[slot];
    }
    __syncthreads();
    for (u32 slot = threadIdx.x; slot < slots; slot += blockDim.x) {
        if (after > LARGEST_GROWTH * before) work.weight[slot] = 1.0;
    }
    __syncthreads();

    bool plain = true;
    for (u32 slot = 0; slot < slots; slot++) plain = plain && work.weight[slot] == 1.0;
    for (u32 row = threadIdx.x; row < rows; row += blockDim.x) {
        double coefficient = 0.0;
        for (u32 slot = 0; slot < slots; slot++) coefficient += work.weight[slot] * shares[slot * rows + row];
        float fraction = (float)window.fractions()[row];
        coefficients[row] = plain ? fraction : (float)coefficient;
        coefficients[rows + row] = fraction;
    }
    if (!sums.base) return;
    measure(window, work, sums);
}

// `memory`: working memory beyond what shared memory holds; null when it does.
#define SOLVE(METHOD)                                                                                              \
    extern "C" __global__ void solve_##METHOD(                                                                    \
        const double* grams, const Part* parts, u32 num_parts, Window window, double parameter, double* memory,      \
        float* coefficients, Sums sums) {                                                                         \
        WAIT_FOR_INPUTS;                                                                                          \
        extern __shared__ double shared[];                                                                        \
        solve<weigh_##METHOD>(                                                                                    \
            grams, parts, num_parts, window, parameter, memory ? memory : shared, coefficients, sums);               \
    }

// Every method: its file, and its kernel by the macro above; the build script writes it.
#include "methods.cuh"

// squares[part]: squared norm of the combination in the part; for each owner the squared norm of its gradient there is
// added to the sums. One block per part.
extern "C" __global__ void part_norms(
    const double* grams, const Part* parts, Window window, const float* coefficients, double* squares, Sums sums) {
    WAIT_FOR_INPUTS;
    __shared__ double gram[MAX_ROWS * MAX_ROWS], products[256];
    u32 part = blockIdx.x, rows = window.rows;
    bool isolated = parts[part].domain != 0;
    for (u32 at = threadIdx.x; at < rows * rows; at += blockDim.x) gram[at] = grams[(u64)part * rows * rows + at];
    __syncthreads();
    // The combination first, then the owners, as many at a time as the block has rows of threads.
    u32 at_once = blockDim.x / rows, lane = threadIdx.x / rows, row = threadIdx.x % rows;
    u32 count = isolated || !sums.base ? 1 : 1 + window.slots;
    for (u32 first = 0; first < count; first += at_once) {
        u32 index = first + lane;
        bool takes_part = lane < at_once && index < count, takes_part_in_window = false;
        if (takes_part && index == 0) {
            const float* combined = coefficients + (isolated ? rows : 0);
            double product = 0.0;
#pragma unroll 8
            for (u32 k = 0; k < rows; k++) product += gram[row * rows + k] * (double)combined[k];
            // Elements beyond what f32 holds, though their inner products in f64 are finite.
            double largest = LARGEST_F32 / (double)rows, coefficient = (double)combined[row];
            bool fits = coefficient * coefficient * gram[row * rows + row] <= largest * largest;
            products[threadIdx.x] = fits ? coefficient * product : (double)INFINITY;
        } else if (takes_part) {
            const double* shares = window.shares() + (u64)(index - 1) * rows;
            double product = 0.0;
#pragma unroll 8
            for (u32 k = 0; k < rows; k++) product += gram[row * rows + k] * shares[k];
            products[threadIdx.x] = shares[row] * product;
        }
        __syncthreads();
        if (takes_part && row == 0) {
            double square = 0.0;
#pragma unroll 8
            for (u32 k = 0; k < rows; k++) square += products[lane * rows + k];
            // An owner without a share would turn infinite inner products into NaN.
            for (u32 k = 0; k < rows && index > 0; k++) {
                takes_part_in_window = takes_part_in_window || window.shares()[(u64)(index - 1) * rows + k] > 0.0;
            }
            if (square < 0.0) square = 0.0;
            if (index == 0) squares[part] = square;
            else if (takes_part_in_window) sums.layer(index - 1, part) += square;
        }
        __syncthreads();
    }
}

const u32 PARTS_AT_ONCE = 512;

// From the squared norms of the parts to one factor per part: a domain is scaled down to max_norm. The factor of a domain
// that is not finite is no number, which leaves its parameters as they are; where that is the first, or the loss is not
// finite, the window is taken out of the sums again. domains: of each its squared norm, of each owner that of its parts
// and whether some of them are in the first domain.
extern "C" __global__ void clip_factors(
    const double* squares, const Part* parts, u32 num_parts, u32 slots, double max_norm, double num_samples, double* domains,
    float* factors, Sums sums) {
    WAIT_FOR_INPUTS;
    __shared__ double square[PARTS_AT_ONCE];
    __shared__ u32 domain[PARTS_AT_ONCE], slot[PARTS_AT_ONCE];
    // Domains and owners: each is the sum over its parts in their order.
    for (u32 round = 0; round <= 2 * slots; round += blockDim.x) {
        u32 index = round + threadIdx.x;
        double sum = 0.0;
        bool is_host = index == slots + 1, in_main = is_host;
        for (u32 first = 0; first < num_parts; first += PARTS_AT_ONCE) {
            u32 count = min(PARTS_AT_ONCE, num_parts - first);
            for (u32 part = threadIdx.x; part < count; part += blockDim.x) {
                square[part] = squares[first + part];
                domain[part] = parts[first + part].domain;
                slot[part] = parts[first + part].slot;
            }
            __syncthreads();
            const u32* group = index <= slots ? domain : slot;
            u32 own = index <= slots ? index : index - slots - 1;
#pragma unroll 8
            for (u32 part = 0; part < count; part++) {
                sum += group[part] == own ? square[part] : 0.0;
                in_main = in_main || (group[part] == own && domain[part] == 0);
            }
            __syncthreads();
        }
        if (index <= 2 * slots) domains[index] = sum;
        if (index > slots && index <= 2 * slots) domains[index + slots] = in_main ? 1.0 : 0.0;
    }
    __syncthreads();
    bool counts = isfinite(domains[0]) && (!sums.base || isfinite(sums.loss()));
    for (u32 part = threadIdx.x; part < num_parts; part += blockDim.x) {
        u32 own = parts[part].domain;
        double scale = max_norm / sqrt(domains[own]);
        float factor = scale < 1.0 ? (float)scale : 1.0f;
        factors[part] = (own == 0 ? counts : isfinite(domains[own])) ? factor : __int_as_float(0x7fc00000);
    }
    if (!sums.base) return;
    // Every thread has looked at the loss.
    __syncthreads();
    double* before = sums.before();
    for (u32 at = threadIdx.x; at < sums.length() && !counts; at += blockDim.x) sums.base[at] = before[at];
    __syncthreads();
    for (u32 owner = threadIdx.x; owner < slots; owner += blockDim.x) {
        double sum = domains[1 + slots + owner];
        bool in_main = domains[1 + 2 * slots + owner] != 0.0;
        bool is_finite = isfinite(domains[1 + owner]);
        // What the host has apart is frozen: no step is left out for it.
        if ((in_main && !counts) || (owner > 0 && !is_finite)) {
            sums.of_slot(Sums::SKIPPED, owner) += 1.0;
        } else if (is_finite) {
            sums.of_slot(Sums::PARAMETER_SQUARE, owner) += sum;
            if (sum > 0.0) sums.of_slot(Sums::HEALTHY, owner) += 1.0;
        }
        if (owner > 0) continue;
        if (counts) sums.main_square() += domains[0];
        else sums.skipped_samples() += num_samples;
    }
    __syncthreads();
    for (u32 at = threadIdx.x; at < sums.length(); at += blockDim.x) before[at] = sums.base[at];
}
