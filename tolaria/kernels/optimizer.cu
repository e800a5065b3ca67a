// Updates of many parameters in one launch, from a combination of rows that is formed on the way. What changes from step
// to step is read from device memory.

const u32 MAX_PARAMETERS = 160;

// Of parameters in halves there are half as many, and the second half of `parameter` is their lower halves; of parameters with
// copies, their copies.
struct Parameters {
    u64 parameter[MAX_PARAMETERS];
    u64 moments[MAX_PARAMETERS];
    u32 first_part;
};

struct Settings {
    float value[8];
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

// Moments of `f32`. `at` is the place among all of them, `i` that of the parameter, `s` which one of its moments.
struct SingleMoments {
    static __device__ bool aligned_moments(const void* moments, u64 at) { return ((u64)moments + 4 * at) % 16 == 0; }
    __device__ float moment(const void* moments, u64 at) const { return ((const float*)moments)[at]; }
    __device__ void set_moment(void* moments, u64 at, u64, u32, float x) const { ((float*)moments)[at] = x; }
    template <bool ALIGNED>
    __device__ float4 four_moments(const void* moments, u64 at) const {
        return load_four<ALIGNED>((const float*)moments + at);
    }
    template <bool ALIGNED>
    __device__ void set_four_moments(void* moments, u64 at, u64, u32, float4 x) const {
        store_four<ALIGNED>((float*)moments + at, x);
    }
};

// A parameter of `f32`.
struct Whole : SingleMoments {
    static const bool IS_SHORT = false;
    float* at;

    __device__ Whole(const Parameters& parameters, u32 index, float) : at((float*)parameters.parameter[index]) {}
    __device__ bool aligned() const { return (u64)at % 16 == 0; }
    __device__ float one(u64 i) const { return at[i]; }
    __device__ void set_one(u64 i, float x) const { at[i] = x; }
    template <bool ALIGNED>
    __device__ float4 four(u64 i) const { return load_four<ALIGNED>(at + i); }
    template <bool ALIGNED>
    __device__ void set_four(u64 i, float4 x) const { store_four<ALIGNED>(at + i, x); }
};

// A parameter of `bf16`, and 16 more bits of each of its numbers: together an `f32`; src/optim/halves.rs has the same.
struct Halves : SingleMoments {
    static const bool IS_SHORT = true;
    unsigned short* high;
    short* low;

    __device__ Halves(const Parameters& parameters, u32 index, float)
        : high((unsigned short*)parameters.parameter[index]),
          low((short*)parameters.parameter[MAX_PARAMETERS / 2 + index]) {}
    __device__ bool aligned() const { return (u64)high % 8 == 0 && (u64)low % 8 == 0; }
    static __device__ float whole(unsigned short high, short low) {
        if ((high & 0x7fffu) == 0 && low < 0) low = 0;
        return __uint_as_float(((u32)high << 16) + (u32)(int)low);
    }
    static __device__ void halves(float x, unsigned short& high, short& low) {
        u32 bits = isnan(x) ? 0x7fc00000u : __float_as_uint(x);
        low = (short)(bits & 0xffffu);
        high = (unsigned short)((bits - (u32)(int)low) >> 16);
    }
    __device__ float one(u64 i) const { return whole(high[i], low[i]); }
    __device__ void set_one(u64 i, float x) const { halves(x, high[i], low[i]); }
    template <bool ALIGNED>
    __device__ float4 four(u64 i) const {
        if (!ALIGNED) return make_float4(one(i), one(i + 1), one(i + 2), one(i + 3));
        ushort4 h = *(const ushort4*)(high + i);
        short4 l = *(const short4*)(low + i);
        return make_float4(whole(h.x, l.x), whole(h.y, l.y), whole(h.z, l.z), whole(h.w, l.w));
    }
    template <bool ALIGNED>
    __device__ void set_four(u64 i, float4 x) const {
        if (!ALIGNED) {
            set_one(i, x.x); set_one(i + 1, x.y); set_one(i + 2, x.z); set_one(i + 3, x.w);
            return;
        }
        ushort4 h;
        short4 l;
        halves(x.x, h.x, l.x); halves(x.y, h.y, l.y); halves(x.z, h.z, l.z); halves(x.w, h.w, l.w);
        *(ushort4*)(high + i) = h;
        *(short4*)(low + i) = l;
    }
};

// A parameter of `bf16` that is rounded at random, with its moments; src/optim/rounding.rs has the same.
struct Drawn {
    static const bool IS_SHORT = true;
    unsigned short* parameter;
    u32 key;

    __device__ Drawn(const Parameters& parameters, u32 index, float draw)
        : parameter((unsigned short*)parameters.parameter[index]), key((u32)draw * 0x9E3779B9u) {}
    __device__ bool aligned() const { return (u64)parameter % 8 == 0; }
    static __device__ bool aligned_moments(const void* moments, u64 at) { return ((u64)moments + 2 * at) % 8 == 0; }

    // For two neighbors, of which the first is at an even place; of the parameter (stream 0), or of a moment.
    __device__ u32 word(u32 stream, u64 i) const {
        u32 word = (u32)(i >> 1) ^ (key + stream * 0xBB67AE85u);
        word ^= word >> 16;
        word *= 0x85EBCA6Bu;
        word ^= word >> 13;
        word *= 0xC2B2AE35u;
        return word ^ word >> 16;
    }
    static __device__ float whole(unsigned short x) { return __uint_as_float((u32)x << 16); }
    static __device__ unsigned short rounded(float x, u32 noise) {
        return (unsigned short)((isnan(x) ? 0x7fc00000u : __float_as_uint(x) + noise) >> 16);
    }
    __device__ void set(unsigned short* to, u64 i, u32 stream, float x) const {
        u32 noise = word(stream, i);
        *to = rounded(x, i % 2 ? noise >> 16 : noise & 0xffffu);
    }
    template <bool ALIGNED>
    static __device__ float4 four_of(const unsigned short* from) {
        if (!ALIGNED) return make_float4(whole(from[0]), whole(from[1]), whole(from[2]), whole(from[3]));
        ushort4 x = *(const ushort4*)from;
        return make_float4(whole(x.x), whole(x.y), whole(x.z), whole(x.w));
    }
    template <bool ALIGNED>
    __device__ void set_four_of(unsigned short* to, u64 i, u32 stream, float4 x) const {
        if (!ALIGNED) {
            set(to, i, stream, x.x); set(to + 1, i + 1, stream, x.y);
            set(to + 2, i + 2, stream, x.z); set(to + 3, i + 3, stream, x.w);
            return;
        }
        u32 first = word(stream, i), second = word(stream, i + 2);
        *(ushort4*)to = make_ushort4(
            rounded(x.x, first & 0xffffu), rounded(x.y, first >> 16), rounded(x.z, second & 0xffffu), rounded(x.w, second >> 16));
    }

    __device__ float one(u64 i) const { return whole(parameter[i]); }
    __device__ void set_one(u64 i, float x) const { set(parameter + i, i, 0, x); }
    template <bool ALIGNED>
    __device__ float4 four(u64 i) const { return four_of<ALIGNED>(parameter + i); }
    template <bool ALIGNED>
    __device__ void set_four(u64 i, float4 x) const { set_four_of<ALIGNED>(parameter + i, i, 0, x); }

    __device__ float moment(const void* moments, u64 at) const { return whole(((const unsigned short*)moments)[at]); }
    __device__ void set_moment(void* moments, u64 at, u64 i, u32 s, float x) const {
        set((unsigned short*)moments + at, i, s + 1, x);
    }
    template <bool ALIGNED>
    __device__ float4 four_moments(const void* moments, u64 at) const {
        return four_of<ALIGNED>((const unsigned short*)moments + at);
    }
    template <bool ALIGNED>
    __device__ void set_four_moments(void* moments, u64 at, u64 i, u32 s, float4 x) const {
        set_four_of<ALIGNED>((unsigned short*)moments + at, i, s + 1, x);
    }
};

// A parameter of `f32`, and where it has one a copy that is rounded to `bf16`.
struct Copied : SingleMoments {
    static const bool IS_SHORT = false;
    Whole whole;
    __nv_bfloat16* copy;

    __device__ Copied(const Parameters& parameters, u32 index, float draw)
        : whole(parameters, index, draw), copy((__nv_bfloat16*)parameters.parameter[MAX_PARAMETERS / 2 + index]) {}
    __device__ bool aligned() const { return whole.aligned() && (u64)copy % 8 == 0; }
    __device__ float one(u64 i) const { return whole.one(i); }
    __device__ void set_one(u64 i, float x) const {
        whole.set_one(i, x);
        if (copy) copy[i] = __float2bfloat16_rn(x);
    }
    template <bool ALIGNED>
    __device__ float4 four(u64 i) const { return whole.four<ALIGNED>(i); }
    template <bool ALIGNED>
    __device__ void set_four(u64 i, float4 x) const {
        whole.set_four<ALIGNED>(i, x);
        if (!copy) return;
        __align__(8) __nv_bfloat16 c[4] = {
            __float2bfloat16_rn(x.x), __float2bfloat16_rn(x.y), __float2bfloat16_rn(x.z), __float2bfloat16_rn(x.w)};
        if (ALIGNED) {
            *(uint2*)(copy + i) = *(const uint2*)c;
        } else {
            for (int k = 0; k < 4; k++) copy[i + k] = c[k];
        }
    }
};

// 1 or -1 by its sign, 0 for 0, and no number for none; src/optim/rules.rs has the same.
__device__ __forceinline__ float signf(float x) { return x > 0.0f ? 1.0f : (x < 0.0f ? -1.0f : x); }

// A number where the other is above 0, else 0; src/optim/rules.rs has the same.
__device__ __forceinline__ float keptf(float x, float mask) { return mask > 0.0f ? x : 0.0f; }

// A rule has its numbers of settings and constants, STATES numbers about each element, and `update` for one of them. The build
// script writes them, from src/optim/rules.rs.
#include "rules.cuh"

template <class Rule, class Numbers>
__device__ void update_one(const Rule& rule, const Numbers& parameter, void* moments, u64 length, u64 i, float g) {
    float x = parameter.one(i), state[Rule::STATES + 1];
#pragma unroll
    for (int s = 0; s < Rule::STATES; s++) state[s] = parameter.moment(moments, s * length + i);
    rule.update(x, state, g);
    parameter.set_one(i, x);
#pragma unroll
    for (int s = 0; s < Rule::STATES; s++) parameter.set_moment(moments, s * length + i, i, s, state[s]);
}

// One of four neighbors.
#define UPDATE_LANE(LANE)                                                            \
    {                                                                                \
        float one[Rule::STATES + 1];                                                 \
        _Pragma("unroll") for (int s = 0; s < Rule::STATES; s++) one[s] = state[s].LANE; \
        rule.update(x.LANE, one, g.LANE);                                            \
        _Pragma("unroll") for (int s = 0; s < Rule::STATES; s++) state[s].LANE = one[s]; \
    }

template <bool ALIGNED, class Rule, class Numbers>
__device__ void update_quads(
    const Terms& terms, u32 rows, const Quads& quads, const Rule& rule, const Numbers& parameter, void* moments, const Chunk& chunk,
    float factor) {
    u32 thread = blockIdx.y * blockDim.x + threadIdx.x, threads = gridDim.y * blockDim.x;
    for (u64 at = quads.start + 4 * thread; at < quads.end; at += 4 * threads) {
        u64 i = at - chunk.part_start;
        // All loads of a turn first, so that they are under way together.
        float4 x = parameter.template four<ALIGNED>(i), state[Rule::STATES + 1];
#pragma unroll
        for (int s = 0; s < Rule::STATES; s++) {
            state[s] = parameter.template four_moments<ALIGNED>(moments, s * chunk.part_length + i);
        }
        float4 g = combine_quad(terms, rows, at);
        if (factor != 1.0f) { g.x *= factor; g.y *= factor; g.z *= factor; g.w *= factor; }
        UPDATE_LANE(x)
        UPDATE_LANE(y)
        UPDATE_LANE(z)
        UPDATE_LANE(w)
        parameter.template set_four<ALIGNED>(i, x);
#pragma unroll
        for (int s = 0; s < Rule::STATES; s++) {
            parameter.template set_four_moments<ALIGNED>(moments, s * chunk.part_length + i, i, s, state[s]);
        }
    }
}

// gridDim.y blocks per chunk from first_chunk on; the parameters are those from first_part on. constants: TABLE_WIDTH numbers per part.
template <class Rule, class Numbers>
__device__ void update_chunk(
    const Rows& rows, const Parameters& parameters, const Settings& settings, const Chunk* chunks,
    const float* coefficients, const float* factors, const float* constants, u32 first_chunk) {
    __shared__ Terms terms;
    Chunk chunk = chunk_from_end(chunks + first_chunk);
    // Read before the elements are: they and what the chunk tells where to find are under way together.
    float factor = factors ? factors[chunk.part] : 1.0f;
    u32 index = chunk.part - parameters.first_part;
    constants += TABLE_WIDTH * chunk.part;
    Numbers parameter(parameters, index, constants[TABLE_WIDTH - 1]);
    void* moments = (void*)parameters.moments[index];
    Rule rule(settings.value, constants);
    load_terms(terms, rows, coefficients, chunk);
    // The window is not finite.
    if (isnan(factor)) return;
    Quads quads(chunk);
    // Rows are read in fours wherever the part starts in them; the parameter only where it starts at a multiple of four.
    bool aligned = chunk.part_start % 4 == 0 && parameter.aligned();
    for (int s = 0; s < Rule::STATES; s++) aligned = aligned && Numbers::aligned_moments(moments, s * chunk.part_length);
    if (Numbers::IS_SHORT && aligned && rows.count == 1) {
        // The number is known here, so that no loop over rows is left: of numbers of 4 bytes it takes no time.
        update_quads<true>(terms, 1, quads, rule, parameter, moments, chunk, factor);
    } else if (aligned) {
        update_quads<true>(terms, rows.count, quads, rule, parameter, moments, chunk, factor);
    } else {
        update_quads<false>(terms, rows.count, quads, rule, parameter, moments, chunk, factor);
    }
    u64 at;
    if (blockIdx.y == 0 && quads.single(chunk, &at)) {
        float g = combine_one(terms, rows.count, at);
        update_one(rule, parameter, moments, chunk.part_length, at - chunk.part_start, factor != 1.0f ? g * factor : g);
    }
}

#define UPDATE_NUMBERS(NAME, RULE, NUMBERS)                                                                           \
    extern "C" __global__ void __launch_bounds__(256) update_##NAME(                                                  \
        const __grid_constant__ Rows rows, const __grid_constant__ Parameters parameters, Settings settings,          \
        const Chunk* chunks, const float* coefficients, const float* factors,                                         \
        const float* constants, u32 first_chunk) {                                                                    \
        WAIT_FOR_INPUTS;                                                                                              \
        update_chunk<RULE, NUMBERS>(                                                                                  \
            rows, parameters, settings, chunks, coefficients, factors, constants, first_chunk);                       \
    }
#define UPDATE(NAME)                                   \
    UPDATE_NUMBERS(NAME, rule_##NAME, Whole)           \
    UPDATE_NUMBERS(NAME##_halves, rule_##NAME, Halves) \
    UPDATE_NUMBERS(NAME##_copied, rule_##NAME, Copied) \
    UPDATE_NUMBERS(NAME##_drawn, rule_##NAME, Drawn)

UPDATE_RULES
