// Updates of many parameters in one launch, from a combination of rows that is formed on the way. What changes from step
// to step is read from device memory.

const u32 MAX_PARAMETERS = 160;

struct Parameters {
    u64 parameter[MAX_PARAMETERS];
    u64 moments[MAX_PARAMETERS];
    u32 first_part;
};

struct Settings {
    float value[5];
};

template <bool ALIGNED>
__device__ float4 load_four(const float* at) {
    return ALIGNED ? *(const float4*)at : make_float4(at[0], at[1], at[2], at[3]);
}

template <bool ALIGNED>
__device__ void store_four(float* at, float4 four) {
    if (ALIGNED) {
        *(float4*)at = four;
    } else {
        at[0] = four.x; at[1] = four.y; at[2] = four.z; at[3] = four.w;
    }
}

// settings: momentum, weight decay, 1 for Nesterov. constants: the learning rate comes first.
struct Sgd {
    float momentum, weight_decay, learning_rate;
    bool nesterov;
    float* velocity;  // null without momentum

    __device__ Sgd(const Settings& settings, const float* constants, float* moments, u64 length)
        : momentum(settings.value[0]), weight_decay(settings.value[1]), learning_rate(constants[0]),
          nesterov(settings.value[2] != 0.0f), velocity(moments) {}

    __device__ void one(float* parameter, u64 i, float g) const {
        float speed = velocity ? velocity[i] : 0.0f;
        parameter[i] = update(parameter[i], speed, g);
        if (velocity) velocity[i] = speed;
    }

    struct Quad {
        float4 x, speed;
    };

    template <bool ALIGNED>
    __device__ Quad load(const float* parameter, u64 i) const {
        Quad quad;
        quad.x = load_four<ALIGNED>(parameter + i);
        quad.speed = velocity ? load_four<ALIGNED>(velocity + i) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        return quad;
    }

    template <bool ALIGNED>
    __device__ void store(float* parameter, u64 i, Quad quad, float4 g) const {
        float4 x = quad.x, speed = quad.speed;
        x.x = update(x.x, speed.x, g.x);
        x.y = update(x.y, speed.y, g.y);
        x.z = update(x.z, speed.z, g.z);
        x.w = update(x.w, speed.w, g.w);
        store_four<ALIGNED>(parameter + i, x);
        if (velocity) store_four<ALIGNED>(velocity + i, speed);
    }

    __device__ float update(float x, float& speed, float g) const {
        float direction = g + x * weight_decay;
        if (velocity) {
            speed = speed * momentum + direction;
            direction = nesterov ? direction + speed * momentum : speed;
        }
        return x - direction * learning_rate;
    }

    // Whether four neighbors can be read at once.
    __device__ bool aligned() const { return (u64)velocity % 16 == 0; }
};

// settings: beta1, 1 - beta1, beta2, 1 - beta2, epsilon.
// constants: what the parameter is multiplied with, lr / (1 - beta1^t), 1 / sqrt(1 - beta2^t), unused.
struct AdamW {
    float beta1, rest1, beta2, rest2, eps, keep, step_size, root_correction;
    float* first;
    float* second;

    __device__ AdamW(const Settings& settings, const float* constants, float* moments, u64 length)
        : beta1(settings.value[0]), rest1(settings.value[1]), beta2(settings.value[2]), rest2(settings.value[3]),
          eps(settings.value[4]), keep(constants[0]), step_size(constants[1]), root_correction(constants[2]),
          first(moments), second(moments + length) {}

    __device__ void one(float* parameter, u64 i, float g) const {
        parameter[i] = update(parameter[i], first[i], second[i], g);
    }

    struct Quad {
        float4 x, m, v;
    };

    template <bool ALIGNED>
    __device__ Quad load(const float* parameter, u64 i) const {
        return {load_four<ALIGNED>(parameter + i), load_four<ALIGNED>(first + i), load_four<ALIGNED>(second + i)};
    }

    template <bool ALIGNED>
    __device__ void store(float* parameter, u64 i, Quad quad, float4 g) const {
        float4 x = quad.x, m = quad.m, v = quad.v;
        x.x = update(x.x, m.x, v.x, g.x);
        x.y = update(x.y, m.y, v.y, g.y);
        x.z = update(x.z, m.z, v.z, g.z);
        x.w = update(x.w, m.w, v.w, g.w);
        store_four<ALIGNED>(parameter + i, x);
        store_four<ALIGNED>(first + i, m);
        store_four<ALIGNED>(second + i, v);
    }

    __device__ float update(float x, float& m, float& v, float g) const {
        m = m * beta1 + g * rest1;
        v = v * beta2 + (g * g) * rest2;
        float root = sqrtf(v) * root_correction + eps;
        return x * keep - m / root * step_size;
    }

    __device__ bool aligned() const { return ((u64)first | (u64)second) % 16 == 0; }
};

template <bool ALIGNED, class Optimizer>
__device__ void update_quads(
    const Terms& terms, u32 rows, const Quads& quads, const Optimizer& optimizer, float* parameter, u64 part_start, float factor) {
    for (u64 at = quads.start + 4 * threadIdx.x; at < quads.end; at += 4 * blockDim.x) {
        // All loads of a turn first, so that they are under way together.
        typename Optimizer::Quad quad = optimizer.template load<ALIGNED>(parameter, at - part_start);
        float4 g = combine_quad(terms, rows, at);
        if (factor != 1.0f) { g.x *= factor; g.y *= factor; g.z *= factor; g.w *= factor; }
        optimizer.template store<ALIGNED>(parameter, at - part_start, quad, g);
    }
}

// One block per chunk from first_chunk on; the parameters are those from first_part on. constants: four numbers per part.
template <class Optimizer>
__device__ void update_chunk(
    const Rows& rows, const Parameters& parameters, const Settings& settings, const Chunk* chunks, const Part* parts,
    const float* coefficients, const float* factors, const float* constants, u32 first_chunk) {
    __shared__ Terms terms;
    Chunk chunk = chunk_from_end(chunks + first_chunk);
    Part part = parts[chunk.part];
    load_terms(terms, rows, coefficients_of(part, rows.count, coefficients));
    u32 index = chunk.part - parameters.first_part;
    float* parameter = (float*)parameters.parameter[index];
    Optimizer optimizer(settings, constants + 4 * chunk.part, (float*)parameters.moments[index], part.length);
    float factor = factors ? factors[chunk.part] : 1.0f;
    // The window is not finite.
    if (isnan(factor)) return;
    Quads quads(chunk);
    // Rows are read in fours wherever the part starts in them; the parameter only where it starts at a multiple of four.
    if (part.start % 4 == 0 && (u64)parameter % 16 == 0 && optimizer.aligned()) {
        update_quads<true>(terms, rows.count, quads, optimizer, parameter, part.start, factor);
    } else {
        update_quads<false>(terms, rows.count, quads, optimizer, parameter, part.start, factor);
    }
    u64 at;
    if (quads.single(chunk, &at)) {
        float g = combine_one(terms, rows.count, at);
        optimizer.one(parameter, at - part.start, factor != 1.0f ? g * factor : g);
    }
}

#define UPDATE(NAME, OPTIMIZER)                                                                                       \
    extern "C" __global__ void __launch_bounds__(256) NAME(                                                           \
        const __grid_constant__ Rows rows, const __grid_constant__ Parameters parameters, Settings settings,          \
        const Chunk* chunks, const Part* parts, const float* coefficients, const float* factors,                      \
        const float* constants, u32 first_chunk) {                                                                    \
        update_chunk<OPTIMIZER>(                                                                                      \
            rows, parameters, settings, chunks, parts, coefficients, factors, constants, first_chunk);                \
    }

UPDATE(update_sgd, Sgd)
UPDATE(update_adam_w, AdamW)
