// What a generated kernel needs to run on the processor, a block at a time: threads are fibers, and each goes on to its next
// barrier or exchange once all have reached theirs.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <ucontext.h>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(threads)
#define __shared__ static

struct Index {
  unsigned int x, y, z;
};
struct float4 {
  float x, y, z, w;
};
struct ushort4 {
  unsigned short x, y, z, w;
};
static Index threadIdx, blockIdx;
static constexpr unsigned int THREADS = 256;
static ucontext_t scheduler, fibers[THREADS];
static bool is_over[THREADS];
static float exchanged[THREADS];
static void (*kernel)();

static void yield() {
  const unsigned int own = threadIdx.x;
  swapcontext(&fibers[own], &scheduler);
}
static void __syncthreads() { yield(); }
static float __shfl_xor_sync(unsigned int, const float value, const unsigned int mask) {
  exchanged[threadIdx.x] = value;
  yield();
  const float other = exchanged[threadIdx.x ^ mask];
  yield();
  return other;
}
static float __shfl_sync(unsigned int, const float value, const unsigned int lane) {
  exchanged[threadIdx.x] = value;
  yield();
  const float other = exchanged[threadIdx.x / 32u * 32u + lane];
  yield();
  return other;
}
static unsigned int __ballot_sync(unsigned int, const bool value) {
  exchanged[threadIdx.x] = value;
  yield();
  unsigned int all = 0u;
  for (unsigned int lane = 0; lane < 32u; lane++) all |= (exchanged[threadIdx.x / 32u * 32u + lane] != 0.0f) << lane;
  yield();
  return all;
}
static void __syncwarp() { yield(); }
static unsigned int __popc(const unsigned int bits) { return __builtin_popcount(bits); }
static void __trap() { __builtin_trap(); }
static double __dadd_rn(const double x, const double y) { return x + y; }
static float __uint_as_float(const unsigned int bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
static unsigned int __float_as_uint(const float value) {
  unsigned int bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}
// In place of the device's, which is an instruction.
static float bf16_round(const float x) {
  const unsigned int bits = __float_as_uint(x);
  return __uint_as_float(x != x ? 0x7FFF0000u : (bits + 0x7FFFu + (bits >> 16 & 1u)) & 0xFFFF0000u);
}
static float __fadd_rn(const float x, const float y) { return x + y; }
static float __fsub_rn(const float x, const float y) { return x - y; }
static float __fmul_rn(const float x, const float y) { return x * y; }
static float __fdiv_rn(const float x, const float y) { return x / y; }
static float __fsqrt_rn(const float x) { return std::sqrt(x); }
static float __fmaf_rn(const float x, const float y, const float z) { return std::fmaf(x, y, z); }
static float device_max(const float x, const float y) {
  if (x != x) return y;
  if (y != y) return x;
  return x == y ? (std::signbit(x) ? y : x) : (x > y ? x : y);
}
static float device_min(const float x, const float y) {
  if (x != x) return y;
  if (y != y) return x;
  return x == y ? (std::signbit(x) ? x : y) : (x < y ? x : y);
}
#define fmaxf device_max
#define fminf device_min
static unsigned int min(const unsigned int x, const unsigned int y) { return x < y ? x : y; }

static void fiber() {
  kernel();
  is_over[threadIdx.x] = true;
  yield();
}

static void launch(const unsigned int blocks, void (*of)()) {
  static std::vector<char> stacks(THREADS * 65536u);
  kernel = of;
  for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++) {
    for (unsigned int thread = 0; thread < THREADS; thread++) {
      getcontext(&fibers[thread]);
      fibers[thread].uc_stack.ss_sp = &stacks[thread * 65536u];
      fibers[thread].uc_stack.ss_size = 65536u;
      makecontext(&fibers[thread], fiber, 0);
      is_over[thread] = false;
    }
    for (bool is_running = true; is_running;) {
      is_running = false;
      for (threadIdx.x = 0; threadIdx.x < THREADS; threadIdx.x++) {
        if (is_over[threadIdx.x]) continue;
        swapcontext(&scheduler, &fibers[threadIdx.x]);
        is_running = is_running || !is_over[threadIdx.x];
      }
    }
  }
}
