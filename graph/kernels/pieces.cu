// Copies between many tensors and one buffer, 32 bits at a time.

struct Pieces {
    u64 address[64];
    u64 offset[64];
    u64 length[64];
};

// flat[offset[y] + i] = address[y][i]
extern "C" __global__ void gather_words(Pieces pieces, u32* flat) {
    WAIT_FOR_INPUTS;
    const u32* source = (const u32*)pieces.address[blockIdx.y];
    u32* target = flat + pieces.offset[blockIdx.y];
    for (u64 i = FIRST; i < pieces.length[blockIdx.y]; i += STRIDE) target[i] = source[i];
}

// The same of 16 bits; 16 bytes at once where addresses and length allow.
extern "C" __global__ void gather_halves(Pieces pieces, unsigned short* flat) {
    WAIT_FOR_INPUTS;
    const unsigned short* source = (const unsigned short*)pieces.address[blockIdx.y];
    unsigned short* target = flat + pieces.offset[blockIdx.y];
    u64 length = pieces.length[blockIdx.y];
    if (((u64)source | (u64)target | length * 2) % 16 == 0) {
        for (u64 i = FIRST; i < length / 8; i += STRIDE) ((uint4*)target)[i] = ((const uint4*)source)[i];
    } else {
        for (u64 i = FIRST; i < length; i += STRIDE) target[i] = source[i];
    }
}

// address[y][i] = flat[offset[y] + i]
extern "C" __global__ void scatter_words(Pieces pieces, const u32* flat) {
    WAIT_FOR_INPUTS;
    u32* target = (u32*)pieces.address[blockIdx.y];
    const u32* source = flat + pieces.offset[blockIdx.y];
    for (u64 i = FIRST; i < pieces.length[blockIdx.y]; i += STRIDE) target[i] = source[i];
}

struct Copies {
    u64 source[32];
    u64 target[32];
    u64 length[32];
};

// target[y][i] = source[y][i]; 16 bytes at once where addresses and length allow.
extern "C" __global__ void copy_words(Copies copies) {
    WAIT_FOR_INPUTS;
    u64 source = copies.source[blockIdx.y], target = copies.target[blockIdx.y], length = copies.length[blockIdx.y];
    if ((source | target | length * 4) % 16 == 0) {
        for (u64 i = FIRST; i < length / 4; i += STRIDE) ((uint4*)target)[i] = ((const uint4*)source)[i];
    } else {
        for (u64 i = FIRST; i < length; i += STRIDE) ((u32*)target)[i] = ((const u32*)source)[i];
    }
}
