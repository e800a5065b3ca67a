// Kernels of this crate, compiled as one unit.
//
// The build passes --fmad=false: where a fused multiply-add is wanted, fmaf says so. Reductions add in a fixed order, so
// that a step gives the same bits eagerly and in a graph.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

typedef unsigned int u32;
typedef unsigned long long u64;

#include "norm.cu"
#include "attention.cu"
#include "tensor_cores.cu"
#include "tensor_cores_tf32.cu"
#include "attention_tiles.cu"
#include "embedding.cu"
#include "decoding.cu"
#include "linear.cu"
#include "product.cu"
#include "transpose.cu"
#include "thin.cu"
#include "recompute.cu"
