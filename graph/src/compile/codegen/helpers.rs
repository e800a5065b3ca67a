//! Names of types in CUDA C++, and device functions that generated kernels use.

use crate::compile::pointwise::ElementType;

/// What an element is in memory.
pub(super) fn bits_type(element: ElementType) -> &'static str {
    match element {
        ElementType::F32 => "float",
        ElementType::F64 => "double",
        ElementType::Bf16 => "unsigned short",
        ElementType::U8 => "unsigned char",
        ElementType::U32 => "unsigned int",
        ElementType::I64 => "long long",
    }
}

/// What an element is in a register: `Bf16` is a float that has no more bits than it.
pub(super) fn value_type(element: ElementType) -> &'static str {
    if element == ElementType::Bf16 { "float" } else { bits_type(element) }
}

/// Four elements in memory, where there is such a type of at most 16 bytes.
pub(super) fn vector_type(element: ElementType) -> Option<&'static str> {
    match element {
        ElementType::F32 => Some("float4"),
        ElementType::Bf16 => Some("ushort4"),
        ElementType::U8 => Some("uchar4"),
        ElementType::U32 => Some("uint4"),
        ElementType::F64 | ElementType::I64 => None,
    }
}

/// Rounds to the nearest number with 8 bits of exponent and 7 of fraction, ties to even: as the upper one of two, since a number that is
/// rounded alone takes a slow unit of the device.
pub(super) const BF16_ROUND: &str = "\
static __device__ __forceinline__ float bf16_round(const float x) {
  unsigned int bits;
  asm(\"cvt.rn.bf16x2.f32 %0, %1, %2;\" : \"=r\"(bits) : \"f\"(x), \"f\"(0.0f));
  return __uint_as_float(bits);
}
";

/// Approximations of the device, which tests replace.
pub(super) const APPROXIMATE: &str = "\
static __device__ __forceinline__ float approximate_reciprocal(const float x) {
  float reciprocal;
  asm(\"rcp.approx.ftz.f32 %0, %1;\" : \"=f\"(reciprocal) : \"f\"(x));
  return reciprocal;
}
static __device__ __forceinline__ float approximate_power_of_two(const float x) {
  float power;
  asm(\"ex2.approx.ftz.f32 %0, %1;\" : \"=f\"(power) : \"f\"(x));
  return power;
}
";

/// Device functions by the text that asks for them; each uses at most those before it.
pub(super) const HELPERS: &[(&str, &str)] = &[
    ("bf16_round(", BF16_ROUND),
    (
        "bf16_load(",
        "\
static __device__ __forceinline__ float bf16_load(const unsigned short bits) {
  return __uint_as_float(static_cast<unsigned int>(bits) << 16);
}
",
    ),
    (
        "bf16_store(",
        "\
static __device__ __forceinline__ unsigned short bf16_store(const float x) {
  return static_cast<unsigned short>(__float_as_uint(x) >> 16);
}
",
    ),
    // The quotient of two bf16 numbers is approximate before it is rounded; a large divisor is made smaller first.
    (
        "bf16_divide(",
        "\
static __device__ __forceinline__ float bf16_divide(const float x, const float y) {
  const bool is_large = fabsf(y) >= 8.507059173e37f;
  const float divisor = is_large ? __fmul_rn(y, 0.25f) : y;
  float quotient;
  asm(\"div.approx.f32 %0, %1, %2;\" : \"=f\"(quotient) : \"f\"(x), \"f\"(divisor));
  if (is_large) quotient = __fmaf_rn(quotient, 0.25f, -0.0f);
  return bf16_round(quotient);
}
",
    ),
    // The assembler makes one operation of the recorded product and sum from 9.0 on: a product that is too small keeps its sign.
    (
        "bf16_multiply_add(",
        "\
static __device__ __forceinline__ float bf16_multiply_add(const float x, const float factor, const float term) {
#if __CUDA_ARCH__ >= 900
  return bf16_round(__fmaf_rn(x, factor, term));
#else
  return bf16_round(__fadd_rn(bf16_round(__fmul_rn(x, factor)), term));
#endif
}
",
    ),
    (
        "bf16_exp(",
        "\
static __device__ __forceinline__ float bf16_exp(const float x) {
  float power = __fmul_rn(x, __uint_as_float(0x3FB8AA3Cu));
  asm(\"ex2.approx.f32 %0, %0;\" : \"+f\"(power));
  return bf16_round(power);
}
",
    ),
    (
        "bf16_log(",
        "\
static __device__ __forceinline__ float bf16_log(const float x) {
  float logarithm;
  asm(\"lg2.approx.f32 %0, %1;\" : \"=f\"(logarithm) : \"f\"(x));
  return bf16_round(__fmul_rn(logarithm, __uint_as_float(0x3F317218u)));
}
",
    ),
    (
        "bf16_sqrt(",
        "\
static __device__ __forceinline__ float bf16_sqrt(const float x) {
  float root;
  asm(\"sqrt.approx.f32 %0, %1;\" : \"=f\"(root) : \"f\"(x));
  return bf16_round(root);
}
",
    ),
    (
        "nan_max(",
        "\
static __device__ __forceinline__ float nan_max(const float x, const float y) {
  return x != x || y != y ? __uint_as_float(0x7FFF0000u) : fmaxf(x, y);
}
",
    ),
    (
        "nan_min(",
        "\
static __device__ __forceinline__ float nan_min(const float x, const float y) {
  return x != x || y != y ? __uint_as_float(0x7FFF0000u) : fminf(x, y);
}
",
    ),
    // e^x + term with the last product of e^x and the sum rounded once, which is what contraction makes of it in the
    // recorded kernels.
    (
        "exp_plus(",
        "\
static __device__ __forceinline__ float exp_plus(const float x, const float term) {
  const float clamped = __saturatef(__fmaf_rn(x, __uint_as_float(0x3BBB989Du), 0.5f));
  const float shifted = __fmaf_rd(clamped, 252.0f, __uint_as_float(0x4B400001u));
  const float whole = __fadd_rn(shifted, __uint_as_float(0xCB40007Fu));
  float rest = __fmaf_rn(x, __uint_as_float(0x3FB8AA3Bu), -whole);
  rest = __fmaf_rn(x, __uint_as_float(0x32A57060u), rest);
  asm(\"ex2.approx.ftz.f32 %0, %0;\" : \"+f\"(rest));
  return __fmaf_rn(rest, __uint_as_float(__float_as_uint(shifted) << 23), term);
}
",
    ),
    (
        "gelu_tanh(",
        "\
static __device__ __forceinline__ float gelu_tanh(const float x) {
  const float cube = __fmul_rn(x, __fmul_rn(x, x));
  const float inner = __fmaf_rn(cube, __uint_as_float(0x3D372713u), x);
  const float bend = tanhf(__fmul_rn(inner, __uint_as_float(0x3F4C422Au)));
  return __fmul_rn(__fmul_rn(x, 0.5f), __fadd_rn(bend, 1.0f));
}
",
    ),
    ("approximate_", APPROXIMATE),
    // erfc(x) / 2 of 0 <= x <= 4, to 2^-18 of it, with a `slope` of 0.35 and -log2(e) for `falling`; with 0.35 sqrt(1/2) and half of that,
    // of x sqrt(1/2). The factors are those of a fit times 1 + 2^-20: so no number of `bf16` comes as near to a tie as approximations are off.
    (
        "half_erfc(",
        "\
static __device__ __forceinline__ float half_erfc(const float x, const float slope, const float falling) {
  const float t = approximate_reciprocal(__fmaf_rn(x, slope, 1.0f));
  const float power = approximate_power_of_two(__fmul_rn(__fmul_rn(x, x), falling));
  float sum = __fmaf_rn(-0.100635074f, t, 0.394235194f);
  sum = __fmaf_rn(sum, t, -0.356609553f);
  sum = __fmaf_rn(sum, t, 0.359695286f);
  sum = __fmaf_rn(sum, t, -0.0146028837f);
  sum = __fmaf_rn(sum, t, 0.121163093f);
  sum = __fmaf_rn(sum, t, 0.0967544615f);
  return __fmul_rn(__fmul_rn(t, power), sum);
}
",
    ),
    // `normcdff` and `erff` of a number of `bf16`, rounded to one.
    (
        "bf16_normal_cdf(",
        "\
static __device__ __forceinline__ float bf16_normal_cdf(const float x) {
  if (!(x >= -5.5f)) return bf16_round(normcdff(x));
  const float tail = half_erfc(fabsf(x), 0.247487374f, -0.72134752f);
  return bf16_round(x < 0.0f ? tail : __fsub_rn(1.0f, tail));
}
",
    ),
    (
        "bf16_erf(",
        "\
static __device__ __forceinline__ float bf16_erf(const float x) {
  const float size = fabsf(x), square = __fmul_rn(x, x);
  float series = __fmaf_rn(__fmaf_rn(-0.026866f, square, 0.11283792f), square, -0.37612638f);
  series = __fmul_rn(size, __fmaf_rn(series, square, 1.1283792f));
  const float rest = __fmaf_rn(half_erfc(size, 0.35f, -1.44269504f), -2.0f, 1.0f);
  return bf16_round(copysignf(size < 0.25f ? series : rest, x));
}
",
    ),
    // Hides a number from the compiler, which is then left with the general algorithm as the recorded kernels are.
    (
        "hidden(",
        "\
static __device__ __forceinline__ float hidden(const unsigned int bits) {
  float value;
  asm(\"mov.b32 %0, %1;\" : \"=f\"(value) : \"r\"(bits));
  return value;
}
",
    ),
];
