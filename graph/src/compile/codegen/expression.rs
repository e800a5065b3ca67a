//! One step as an expression of CUDA C++.

use crate::compile::evaluate::constant_bits;
use crate::compile::pointwise::{BinaryOp, Comparison, ElementType, Step, UnaryOp};

/// The value of a step, from those of earlier ones: none where no code is known to give the recorded kernel's bits.
/// A load has the same text for all types here.
pub(super) fn expression(step: &Step, types: &[ElementType]) -> Option<String> {
    Some(match *step {
        Step::Load(operand) => format!("a{operand}"),
        // Of many positions.
        Step::Reduce(..) => return None,
        Step::Constant(element, value) => constant(element, constant_bits(element, value)),
        Step::Unary(op, of) => unary(op, *types.get(of)?, &format!("s{of}"))?,
        Step::Binary(op, [left, right]) => binary(op, *types.get(left)?, &format!("s{left}"), &format!("s{right}"))?,
        Step::MultiplyAdd { value, factor, term } => multiply_add(*types.get(value)?, value, factor, term)?,
        Step::Compare(comparison, [left, right]) => {
            let sign = match comparison {
                Comparison::Equal => "==",
                Comparison::NotEqual => "!=",
                Comparison::Less => "<",
                Comparison::LessOrEqual => "<=",
                Comparison::Greater => ">",
                Comparison::GreaterOrEqual => ">=",
            };
            format!("static_cast<unsigned char>(s{left} {sign} s{right})")
        }
        Step::Select([condition, yes, no]) => format!("s{condition} != 0 ? s{yes} : s{no}"),
        Step::Convert(to, of) => convert(*types.get(of)?, to, &format!("s{of}"))?,
        Step::Elu(of, alpha) => match types.get(of)? {
            ElementType::F32 => {
                format!("s{of} > 0.0f ? s{of} : __fmul_rn(exp_plus(s{of}, -1.0f), __uint_as_float(0x{alpha:08X}u))")
            }
            ElementType::Bf16 => {
                let alpha = constant_bits(ElementType::Bf16, f64::from(f32::from_bits(alpha)).to_bits()) << 16;
                let rest = format!("bf16_round(__fadd_rn(bf16_exp(s{of}), -1.0f))");
                format!("s{of} > 0.0f ? s{of} : bf16_round(__fmul_rn({rest}, __uint_as_float(0x{alpha:08X}u)))")
            }
            ElementType::F64 | ElementType::U8 | ElementType::U32 | ElementType::I64 => return None,
        },
        Step::Power(of, exponent) => match types.get(of)? {
            ElementType::F32 => format!("powf(s{of}, hidden(0x{exponent:08X}u))"),
            ElementType::Bf16 => {
                let exponent = constant_bits(ElementType::Bf16, f64::from(f32::from_bits(exponent)).to_bits()) << 16;
                format!("bf16_round(powf(s{of}, hidden(0x{exponent:08X}u)))")
            }
            ElementType::F64 | ElementType::U8 | ElementType::U32 | ElementType::I64 => return None,
        },
    })
}

fn constant(element: ElementType, bits: u64) -> String {
    match element {
        ElementType::F32 => format!("__uint_as_float(0x{bits:08X}u)"),
        ElementType::Bf16 => format!("__uint_as_float(0x{:08X}u)", bits << 16),
        ElementType::F64 => format!("__longlong_as_double(0x{bits:016X}ll)"),
        ElementType::U8 => format!("static_cast<unsigned char>({bits}u)"),
        ElementType::U32 => format!("{bits}u"),
        ElementType::I64 => format!("static_cast<long long>(0x{bits:016X}ull)"),
    }
}

fn unary(op: UnaryOp, element: ElementType, x: &str) -> Option<String> {
    Some(match (element, op) {
        (ElementType::F32 | ElementType::Bf16 | ElementType::F64, UnaryOp::Negate) => format!("-{x}"),
        (ElementType::F32 | ElementType::Bf16, UnaryOp::Abs) => format!("fabsf({x})"),
        (ElementType::F32, _) => unary_f32(op, x)?,
        (ElementType::Bf16, UnaryOp::Exp) => format!("bf16_exp({x})"),
        (ElementType::Bf16, UnaryOp::Log) => format!("bf16_log({x})"),
        (ElementType::Bf16, UnaryOp::Sqrt) => format!("bf16_sqrt({x})"),
        (ElementType::Bf16, UnaryOp::Reciprocal) => format!("bf16_divide(1.0f, {x})"),
        (ElementType::Bf16, UnaryOp::Relu) => format!("nan_max({x}, 0.0f)"),
        (ElementType::Bf16, UnaryOp::GeluErf) => format!("bf16_round(__fmul_rn({x}, bf16_normal_cdf({x})))"),
        (ElementType::Bf16, UnaryOp::NormalCdf) => format!("bf16_normal_cdf({x})"),
        (ElementType::Bf16, UnaryOp::Erf) => format!("bf16_erf({x})"),
        // Reduced in another way, and contracted or not as the assembler likes.
        (ElementType::Bf16, UnaryOp::Sin | UnaryOp::Cos | UnaryOp::Gelu) => return None,
        (ElementType::Bf16, _) => format!("bf16_round({})", unary_f32(op, x)?),
        (ElementType::F64, UnaryOp::Relu) => format!("fmax({x}, 0.0)"),
        (ElementType::F64, UnaryOp::Abs) => format!("fabs({x})"),
        (ElementType::F64, UnaryOp::Square) => format!("__dmul_rn({x}, {x})"),
        (ElementType::F64, UnaryOp::Sqrt) => format!("__dsqrt_rn({x})"),
        _ => return None,
    })
}

fn unary_f32(op: UnaryOp, x: &str) -> Option<String> {
    Some(match op {
        UnaryOp::Negate => format!("-{x}"),
        UnaryOp::Abs => format!("fabsf({x})"),
        UnaryOp::Exp => format!("expf({x})"),
        UnaryOp::Log => format!("logf({x})"),
        UnaryOp::Sin => format!("sinf({x})"),
        UnaryOp::Cos => format!("cosf({x})"),
        UnaryOp::Tanh => format!("tanhf({x})"),
        UnaryOp::Square => format!("__fmul_rn({x}, {x})"),
        UnaryOp::Sqrt => format!("__fsqrt_rn({x})"),
        UnaryOp::Reciprocal => format!("__frcp_rn({x})"),
        UnaryOp::Relu => format!("fmaxf({x}, 0.0f)"),
        UnaryOp::Silu => format!("__fdiv_rn({x}, exp_plus(-{x}, 1.0f))"),
        UnaryOp::Sigmoid => format!("__frcp_rn(exp_plus(-{x}, 1.0f))"),
        UnaryOp::Gelu => format!("gelu_tanh({x})"),
        UnaryOp::GeluErf => format!("__fmul_rn({x}, normcdff({x}))"),
        UnaryOp::Erf => format!("erff({x})"),
        UnaryOp::Ceil => format!("ceilf({x})"),
        UnaryOp::Floor => format!("floorf({x})"),
        UnaryOp::Round => format!("roundf({x})"),
        UnaryOp::NormalCdf => format!("normcdff({x})"),
        UnaryOp::Sign => format!("({x} > 0.0f ? 1.0f : 0.0f) - ({x} < 0.0f ? 1.0f : 0.0f)"),
    })
}

fn binary(op: BinaryOp, element: ElementType, x: &str, y: &str) -> Option<String> {
    let sign = match op {
        BinaryOp::Add => "+",
        BinaryOp::Subtract => "-",
        BinaryOp::Multiply => "*",
        _ => "",
    };
    let rounded = |prefix: char| {
        let name = match op {
            BinaryOp::Add => "add",
            BinaryOp::Subtract => "sub",
            BinaryOp::Multiply => "mul",
            _ => "div",
        };
        format!("__{prefix}{name}_rn({x}, {y})")
    };
    Some(match (element, op) {
        (ElementType::F32, BinaryOp::MinimumNumber) => format!("fminf({x}, {y})"),
        (ElementType::F32, BinaryOp::MaximumNumber) => format!("fmaxf({x}, {y})"),
        (ElementType::F64, BinaryOp::MinimumNumber) => format!("fmin({x}, {y})"),
        (ElementType::F64, BinaryOp::MaximumNumber) => format!("fmax({x}, {y})"),
        (ElementType::Bf16, BinaryOp::Minimum) => format!("nan_min({x}, {y})"),
        (ElementType::Bf16, BinaryOp::Maximum) => format!("nan_max({x}, {y})"),
        // There is no recorded kernel that these stand for.
        (ElementType::F32 | ElementType::F64, BinaryOp::Minimum | BinaryOp::Maximum)
        | (ElementType::Bf16, BinaryOp::MinimumNumber | BinaryOp::MaximumNumber)
        | (ElementType::U8 | ElementType::U32 | ElementType::I64, BinaryOp::Divide) => return None,
        (ElementType::F32, _) => rounded('f'),
        (ElementType::F64, _) => rounded('d'),
        (ElementType::Bf16, BinaryOp::Divide) => format!("bf16_divide({x}, {y})"),
        // A float holds sums and products of two bf16 numbers well enough that rounding twice is rounding once.
        (ElementType::Bf16, _) => format!("bf16_round({})", rounded('f')),
        (_, BinaryOp::Minimum | BinaryOp::MinimumNumber) => format!("{x} < {y} ? {x} : {y}"),
        (_, BinaryOp::Maximum | BinaryOp::MaximumNumber) => format!("{x} < {y} ? {y} : {x}"),
        (ElementType::U8, _) => format!("static_cast<unsigned char>({x} {sign} {y})"),
        (ElementType::U32, _) => format!("{x} {sign} {y}"),
        (ElementType::I64, _) => {
            let [x, y] = [x, y].map(|value| format!("static_cast<unsigned long long>({value})"));
            format!("static_cast<long long>({x} {sign} {y})")
        }
    })
}

fn multiply_add(element: ElementType, value: usize, factor: u32, term: u32) -> Option<String> {
    match element {
        ElementType::F32 => {
            Some(format!("__fmaf_rn(s{value}, __uint_as_float(0x{factor:08X}u), __uint_as_float(0x{term:08X}u))"))
        }
        ElementType::Bf16 => {
            let [factor, term] = [factor, term]
                .map(|bits| constant_bits(ElementType::Bf16, f64::from(f32::from_bits(bits)).to_bits()) << 16);
            // Where one of them is exact, all that is left to chance is the sign of a product that is too small.
            let is_exact = factor == 0x3F80_0000 || term & 0x7FFF_FFFF == 0;
            is_exact.then(|| {
                let [factor, term] = [factor, term].map(|bits| format!("__uint_as_float(0x{bits:08X}u)"));
                format!("bf16_multiply_add(s{value}, {factor}, {term})")
            })
        }
        ElementType::F64 | ElementType::U8 | ElementType::U32 | ElementType::I64 => None,
    }
}

fn convert(from: ElementType, to: ElementType, x: &str) -> Option<String> {
    use ElementType::{Bf16, F32, F64, I64, U8, U32};
    Some(match (from, to) {
        (F32, F32) | (Bf16, Bf16 | F32) | (F64, F64) | (U8, U8) | (U32, U32) | (I64, I64) => x.to_owned(),
        (F32, Bf16) => format!("bf16_round({x})"),
        (F32 | Bf16, F64) => format!("static_cast<double>({x})"),
        (F64, F32) => format!("__double2float_rn({x})"),
        (F32 | Bf16, U8) => format!("static_cast<unsigned char>(__float2uint_rz({x}))"),
        (F32 | Bf16, U32) => format!("__float2uint_rz({x})"),
        (F32, I64) => format!("__float2ll_rz({x})"),
        (U8 | U32, F32) => format!("__uint2float_rn({x})"),
        (U8, Bf16) => format!("__uint2float_rn({x})"),
        (I64, F32) => format!("__ll2float_rn({x})"),
        (U8 | U32, F64) => format!("__uint2double_rn({x})"),
        (I64, F64) => format!("__ll2double_rn({x})"),
        (U32 | I64, U8) => format!("static_cast<unsigned char>({x})"),
        (U8 | I64, U32) => format!("static_cast<unsigned int>({x})"),
        (U8 | U32, I64) => format!("static_cast<long long>({x})"),
        // Rounded in one go by the recorded kernel, or there is none.
        (F64, Bf16 | U8 | U32 | I64) | (U32 | I64, Bf16) | (Bf16, I64) => return None,
    })
}
