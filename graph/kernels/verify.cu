// Comparing what two graphs leave behind.
//
// A span starts at any byte and has any length; its words are of 4 bytes from its start on, the last may be shorter.
// Copies of the spans lie in one buffer, each at a multiple of 4.

struct Spans {
    u64 address[64];
    u64 offset[64];
    u64 bytes[64];
};

__device__ u32 read_word(const unsigned char* span, u64 bytes, u64 word) {
    u64 at = 4 * word;
    if ((u64)span % 4 == 0 && at + 4 <= bytes) return *(const u32*)(span + at);
    u32 value = 0;
    for (u64 byte = at; byte < at + 4 && byte < bytes; byte++) value |= (u32)span[byte] << (8 * (byte - at));
    return value;
}

__device__ void write_word(unsigned char* span, u64 bytes, u64 word, u32 value) {
    u64 at = 4 * word;
    if ((u64)span % 4 == 0 && at + 4 <= bytes) {
        *(u32*)(span + at) = value;
        return;
    }
    for (u64 byte = at; byte < at + 4 && byte < bytes; byte++) span[byte] = (unsigned char)(value >> (8 * (byte - at)));
}

// Every span changes places with its copy.
extern "C" __global__ void exchange_spans(Spans spans, unsigned char* copies) {
    WAIT_FOR_INPUTS;
    unsigned char* span = (unsigned char*)spans.address[blockIdx.y];
    unsigned char* copy = copies + spans.offset[blockIdx.y];
    u64 bytes = spans.bytes[blockIdx.y];
    for (u64 i = FIRST; i < (bytes + 3) / 4; i += STRIDE) {
        u32 value = read_word(span, bytes, i);
        write_word(span, bytes, i, read_word(copy, bytes, i));
        write_word(copy, bytes, i, value);
    }
}

// found[2 y] += words in which span y differs from its copy; found[2 y + 1] = the first of them, if it is smaller. Words
// that are zero within `mask` are the same.
extern "C" __global__ void count_differences(Spans spans, const unsigned char* copies, u32 mask, u64* found) {
    WAIT_FOR_INPUTS;
    const unsigned char* span = (const unsigned char*)spans.address[blockIdx.y];
    const unsigned char* copy = copies + spans.offset[blockIdx.y];
    u64 bytes = spans.bytes[blockIdx.y];
    u64 count = 0;
    u64 first = ~0ull;
    for (u64 i = FIRST; i < (bytes + 3) / 4; i += STRIDE) {
        u32 word = read_word(span, bytes, i), other = read_word(copy, bytes, i);
        if (word == other || ((word | other) & mask) == 0) continue;
        count++;
        if (i < first) first = i;
    }
    if (count == 0) return;
    atomicAdd(found + 2 * blockIdx.y, count);
    atomicMin(found + 2 * blockIdx.y + 1, first);
}
