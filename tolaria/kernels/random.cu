// Counter-based random numbers: Philox 4x32 with 10 rounds (Salmon et al., SC 2011). No state, so a replay that finds
// another counter in device memory draws other numbers, and the same counter gives the same ones on any device.

__device__ uint4 philox(uint4 counter, uint2 key) {
    for (int round = 0; round < 10; round++) {
        u64 a = (u64)0xD2511F53u * counter.x;
        u64 b = (u64)0xCD9E8D57u * counter.z;
        counter = make_uint4((u32)(b >> 32) ^ counter.y ^ key.x, (u32)b, (u32)(a >> 32) ^ counter.w ^ key.y, (u32)a);
        key.x += 0x9E3779B9u;
        key.y += 0xBB67AE85u;
    }
    return counter;
}

// mask[i] = scale where the number of element i is at least `drop` of 2^32, else 0. state: (draws low, draws high).
extern "C" __global__ void dropout_mask(
    const u32* state, u32 key0, u32 key1, u32 layer, u32 drop, float scale, float* mask, u64 count) {
    WAIT_FOR_INPUTS;
    for (u64 quad = FIRST; quad * 4 < count; quad += STRIDE) {
        uint4 drawn = philox(make_uint4((u32)quad, layer, state[0], state[1]), make_uint2(key0, key1));
        u32 words[4] = {drawn.x, drawn.y, drawn.z, drawn.w};
        for (u32 lane = 0; lane < 4 && quad * 4 + lane < count; lane++) {
            mask[quad * 4 + lane] = words[lane] >= drop ? scale : 0.0f;
        }
    }
}

extern "C" __global__ void advance_counter(u32* state) {
    WAIT_FOR_INPUTS;
    state[0] += 1;
    if (state[0] == 0) state[1] += 1;
}
