// Every kernel of the crate, as one module: loading it is one call.

typedef unsigned int u32;
typedef unsigned long long u64;

// The position of this thread among those that share blockIdx.y, and their number.
#define FIRST ((u64)blockIdx.x * blockDim.x + threadIdx.x)
#define STRIDE ((u64)gridDim.x * blockDim.x)

#include "pieces.cu"
#include "verify.cu"
