//! Steps on single numbers, on the processor.
//!
//! Numbers are the bits of their type in the lowest bytes of a word. Arithmetic rounds as on the device, and a result
//! that is not a number is always the same one. Functions such as `exp` are those of the processor: their last bits
//! may differ from the device's, and are the same wherever the steps stand.

use super::pointwise::{BinaryOp, Comparison, ElementType, Step, UnaryOp};

/// The result of each step, from the loaded elements of one position, which is a row by itself.
pub(super) fn evaluate(steps: &[Step], types: &[ElementType], load: impl Fn(usize) -> u64) -> Vec<u64> {
    let mut values: Vec<u64> = Vec::with_capacity(steps.len());
    for (index, step) in steps.iter().enumerate() {
        let value = match *step {
            Step::Load(operand) => load(operand),
            Step::Reduce(reduction, of) => reduction.of(&[values[of]]),
            _ => result(step, index, types, |input| values[input]),
        };
        values.push(value);
    }
    values
}

/// The results of each step at every position of a row, from the loaded elements by operand and position.
pub(super) fn evaluate_row(
    steps: &[Step],
    types: &[ElementType],
    columns: usize,
    load: impl Fn(usize, usize) -> u64,
) -> Vec<Vec<u64>> {
    let mut values: Vec<Vec<u64>> = Vec::with_capacity(steps.len());
    for (index, step) in steps.iter().enumerate() {
        let row = match *step {
            Step::Load(operand) => (0..columns).map(|column| load(operand, column)).collect(),
            Step::Reduce(reduction, of) => vec![reduction.of(&values[of]); columns],
            _ => (0..columns).map(|column| result(step, index, types, |input| values[input][column])).collect(),
        };
        values.push(row);
    }
    values
}

/// The result of a step that neither loads nor reduces, from those of earlier ones.
fn result(step: &Step, index: usize, types: &[ElementType], values: impl Fn(usize) -> u64) -> u64 {
    let element = types[index];
    match *step {
        Step::Load(_) | Step::Reduce(..) => unreachable!("it is no function of one position"),
        Step::Constant(element, bits) => encode(element, f64::from_bits(bits)),
        Step::Unary(op, of) => unary(op, element, values(of)),
        Step::Binary(op, [left, right]) => binary(op, element, values(left), values(right)),
        Step::MultiplyAdd { value, factor, term } => {
            let (factor, term) = (f32::from_bits(factor), f32::from_bits(term));
            multiply_add(element, values(value), factor, term)
        }
        Step::Compare(comparison, [left, right]) => {
            u64::from(compare(comparison, types[left], values(left), values(right)))
        }
        Step::Select([condition, yes, no]) => values(if values(condition) == 0 { no } else { yes }),
        Step::Convert(to, of) => convert(types[of], to, values(of)),
        Step::Power(of, exponent) => encode(element, decode(element, values(of)).powf(f32::from_bits(exponent).into())),
        Step::Elu(of, alpha) => {
            let (x, alpha) = (decode(element, values(of)), f64::from(f32::from_bits(alpha)));
            if x > 0.0 { values(of) } else { encode(element, alpha * x.exp_m1()) }
        }
    }
}

/// The constant that has these bits, if a number of the type has.
pub(super) fn constant(element: ElementType, bits: u64) -> Option<Step> {
    let value = decode(element, bits);
    (encode(element, value) == bits).then_some(Step::Constant(element, value.to_bits()))
}

/// The bits of a constant.
pub(super) fn constant_bits(element: ElementType, value: u64) -> u64 {
    encode(element, f64::from_bits(value))
}

/// The nearest number with 8 bits of exponent and 7 of fraction, ties to even.
fn to_bf16(value: f32) -> u16 {
    if value.is_nan() {
        return 0x7FFF;
    }
    let bits = value.to_bits();
    let [.., low, high] = (bits + 0x7FFF + (bits >> 16 & 1)).to_le_bytes();
    u16::from_le_bytes([low, high])
}

fn from_bf16(bits: u64) -> f32 {
    let [low, high, ..] = bits.to_le_bytes();
    f32::from_le_bytes([0, 0, low, high])
}

fn f32_of(bits: u64) -> f32 {
    let [a, b, c, d, ..] = bits.to_le_bytes();
    f32::from_le_bytes([a, b, c, d])
}

fn f32_bits(value: f32) -> u64 {
    if value.is_nan() { 0x7FFF_FFFF } else { value.to_bits().into() }
}

#[expect(clippy::cast_precision_loss, reason = "what a conversion to a float does")]
fn decode(element: ElementType, bits: u64) -> f64 {
    match element {
        ElementType::F32 => f32_of(bits).into(),
        ElementType::Bf16 => from_bf16(bits).into(),
        ElementType::F64 => f64::from_bits(bits),
        ElementType::U8 | ElementType::U32 => bits as f64,
        ElementType::I64 => bits.cast_signed() as f64,
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "what a conversion to a number does")]
fn encode(element: ElementType, value: f64) -> u64 {
    match element {
        ElementType::F32 => f32_bits(value as f32),
        ElementType::Bf16 => to_bf16(value as f32).into(),
        ElementType::F64 => value.to_bits(),
        ElementType::U8 => u64::from(value as u8),
        ElementType::U32 => u64::from(value as u32),
        ElementType::I64 => (value as i64).cast_unsigned(),
    }
}

/// As the device converts: floats to integers toward zero, at the ends of the range to the ends, of bytes the lowest. What is no
/// number is 0, but where one of both has 64 bits: then it is the highest bit alone.
fn convert(from: ElementType, to: ElementType, bits: u64) -> u64 {
    match (from, to) {
        _ if from == to => bits,
        (ElementType::F32 | ElementType::F64 | ElementType::Bf16, ElementType::I64) if decode(from, bits).is_nan() => {
            1 << 63
        }
        (ElementType::F64, ElementType::U32) if decode(from, bits).is_nan() => 1 << 31,
        (ElementType::U8 | ElementType::U32 | ElementType::I64, ElementType::U8) => bits & 0xFF,
        (ElementType::U8 | ElementType::U32 | ElementType::I64, ElementType::U32) => bits & 0xFFFF_FFFF,
        (ElementType::U8 | ElementType::U32, ElementType::I64) => bits,
        (ElementType::F32 | ElementType::F64 | ElementType::Bf16, ElementType::U8) => {
            encode(ElementType::U32, decode(from, bits)) & 0xFF
        }
        _ => encode(to, decode(from, bits)),
    }
}

/// Integers modulo their size.
fn wrapped(element: ElementType, bits: u64) -> u64 {
    match element {
        ElementType::U8 => bits & 0xFF,
        ElementType::U32 => bits & 0xFFFF_FFFF,
        ElementType::F32 | ElementType::F64 | ElementType::Bf16 | ElementType::I64 => bits,
    }
}

fn multiply_add(element: ElementType, value: u64, factor: f32, term: f32) -> u64 {
    match element {
        ElementType::F32 => f32_bits(f32_of(value).mul_add(factor, term)),
        ElementType::Bf16 => {
            // Factor or term changes nothing, so that a float holds the result well enough to round it again.
            let [factor, term] = [factor, term].map(|number| from_bf16(to_bf16(number).into()));
            to_bf16(from_bf16(value).mul_add(factor, term)).into()
        }
        ElementType::F64 => f64::from_bits(value).mul_add(factor.into(), term.into()).to_bits(),
        ElementType::U8 | ElementType::U32 | ElementType::I64 => {
            let [factor, term] = [factor, term].map(|number| encode(ElementType::I64, number.into()));
            wrapped(element, value.wrapping_mul(factor).wrapping_add(term))
        }
    }
}

pub(super) fn binary(op: BinaryOp, element: ElementType, left: u64, right: u64) -> u64 {
    match element {
        ElementType::F32 => f32_bits(binary_f32(op, f32_of(left), f32_of(right))),
        ElementType::Bf16 => {
            let (left, right) = (from_bf16(left), from_bf16(right));
            to_bf16(binary_f32(op, left, right)).into()
        }
        ElementType::F64 => {
            let (a, b) = (f64::from_bits(left), f64::from_bits(right));
            let value = match op {
                BinaryOp::Add => a + b,
                BinaryOp::Subtract => a - b,
                BinaryOp::Multiply => a * b,
                BinaryOp::Divide => a / b,
                BinaryOp::Minimum | BinaryOp::Maximum if a.is_nan() || b.is_nan() => f64::NAN,
                BinaryOp::Minimum | BinaryOp::MinimumNumber => a.min(b),
                BinaryOp::Maximum | BinaryOp::MaximumNumber => a.max(b),
            };
            if value.is_nan() { f64::NAN.to_bits() } else { value.to_bits() }
        }
        ElementType::U8 | ElementType::U32 | ElementType::I64 => {
            let is_less = compare(Comparison::Less, element, left, right);
            let value = match op {
                BinaryOp::Add => left.wrapping_add(right),
                BinaryOp::Subtract => left.wrapping_sub(right),
                BinaryOp::Multiply => left.wrapping_mul(right),
                BinaryOp::Divide if element == ElementType::I64 => {
                    left.cast_signed().checked_div(right.cast_signed()).unwrap_or(-1).cast_unsigned()
                }
                BinaryOp::Divide => left.checked_div(right).unwrap_or(u64::MAX),
                BinaryOp::Minimum | BinaryOp::MinimumNumber => {
                    if is_less {
                        left
                    } else {
                        right
                    }
                }
                BinaryOp::Maximum | BinaryOp::MaximumNumber => {
                    if is_less {
                        right
                    } else {
                        left
                    }
                }
            };
            wrapped(element, value)
        }
    }
}

/// −0 is less than +0.
fn binary_f32(op: BinaryOp, left: f32, right: f32) -> f32 {
    let order = left.partial_cmp(&right);
    let is_first_less = order.is_some_and(|order| order.is_lt() || (order.is_eq() && left.is_sign_negative()));
    match op {
        BinaryOp::Add => left + right,
        BinaryOp::Subtract => left - right,
        BinaryOp::Multiply => left * right,
        BinaryOp::Divide => left / right,
        BinaryOp::Minimum | BinaryOp::Maximum if left.is_nan() || right.is_nan() => f32::NAN,
        BinaryOp::MinimumNumber | BinaryOp::MaximumNumber if left.is_nan() => right,
        BinaryOp::MinimumNumber | BinaryOp::MaximumNumber if right.is_nan() => left,
        BinaryOp::Minimum | BinaryOp::MinimumNumber => {
            if is_first_less {
                left
            } else {
                right
            }
        }
        BinaryOp::Maximum | BinaryOp::MaximumNumber => {
            if is_first_less {
                right
            } else {
                left
            }
        }
    }
}

fn compare(comparison: Comparison, element: ElementType, left: u64, right: u64) -> bool {
    let order = match element {
        ElementType::I64 => Some(left.cast_signed().cmp(&right.cast_signed())),
        ElementType::U8 | ElementType::U32 => Some(left.cmp(&right)),
        ElementType::F32 | ElementType::F64 | ElementType::Bf16 => {
            decode(element, left).partial_cmp(&decode(element, right))
        }
    };
    match comparison {
        Comparison::Equal => order.is_some_and(std::cmp::Ordering::is_eq),
        Comparison::NotEqual => order.is_none_or(std::cmp::Ordering::is_ne),
        Comparison::Less => order.is_some_and(std::cmp::Ordering::is_lt),
        Comparison::LessOrEqual => order.is_some_and(std::cmp::Ordering::is_le),
        Comparison::Greater => order.is_some_and(std::cmp::Ordering::is_gt),
        Comparison::GreaterOrEqual => order.is_some_and(std::cmp::Ordering::is_ge),
    }
}

fn unary(op: UnaryOp, element: ElementType, bits: u64) -> u64 {
    match element {
        ElementType::F32 => f32_bits(unary_f32(op, f32_of(bits))),
        ElementType::Bf16 if op == UnaryOp::Relu && from_bf16(bits).is_nan() => 0x7FFF,
        ElementType::Bf16 => to_bf16(unary_f32(op, from_bf16(bits))).into(),
        ElementType::F64 => {
            let value = f64::from_bits(bits);
            match op {
                UnaryOp::Negate => (-value).to_bits(),
                UnaryOp::Abs => value.abs().to_bits(),
                UnaryOp::Square => (value * value).to_bits(),
                UnaryOp::Sqrt => value.sqrt().to_bits(),
                _ => encode(element, unary_f32(op, f32_of(convert(ElementType::F64, ElementType::F32, bits))).into()),
            }
        }
        ElementType::U8 | ElementType::U32 | ElementType::I64 => match op {
            UnaryOp::Negate => wrapped(element, bits.wrapping_neg()),
            UnaryOp::Square => wrapped(element, bits.wrapping_mul(bits)),
            _ => bits,
        },
    }
}

fn unary_f32(op: UnaryOp, x: f32) -> f32 {
    let sigmoid = 1.0 / (1.0 + (-x).exp());
    match op {
        UnaryOp::Negate => -x,
        UnaryOp::Abs => x.abs(),
        UnaryOp::Exp => x.exp(),
        UnaryOp::Log => x.ln(),
        UnaryOp::Sin => x.sin(),
        UnaryOp::Cos => x.cos(),
        UnaryOp::Tanh | UnaryOp::Erf => x.tanh(),
        UnaryOp::Square => x * x,
        UnaryOp::Sqrt => x.sqrt(),
        UnaryOp::Reciprocal => 1.0 / x,
        UnaryOp::Relu => binary_f32(BinaryOp::MaximumNumber, x, 0.0),
        UnaryOp::Silu => x / (1.0 + (-x).exp()),
        UnaryOp::Sigmoid => sigmoid,
        UnaryOp::Gelu => 0.5 * x * (1.0 + (0.797_884_6 * (x + 0.044_715 * x * x * x)).tanh()),
        UnaryOp::Ceil => x.ceil(),
        UnaryOp::Floor => x.floor(),
        UnaryOp::Round => x.round(),
        UnaryOp::Sign => f32::from(i8::from(x > 0.0) - i8::from(x < 0.0)),
        UnaryOp::NormalCdf => 0.5 * (1.0 + (x * 0.707_106_77).tanh()),
        UnaryOp::GeluErf => 0.5 * x * (1.0 + (x * 0.707_106_77).tanh()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixteen_bit_floats_round_to_even_and_keep_what_is_not_a_number() {
        let cases: [(f32, u16); 8] = [
            (1.0, 0x3F80),
            (f32::from_bits(0x3F80_8000), 0x3F80),
            (f32::from_bits(0x3F81_8000), 0x3F82),
            (f32::from_bits(0x3F80_8001), 0x3F81),
            (f32::MAX, 0x7F80),
            (-0.0, 0x8000),
            (f32::from_bits(1), 0),
            (f32::NAN, 0x7FFF),
        ];
        for (value, expected) in cases {
            assert_eq!(to_bf16(value), expected, "{value}");
        }
        for bits in 0..=u16::MAX {
            let value = from_bf16(bits.into());
            assert!(value.is_nan() || to_bf16(value) == bits, "{bits:#x}");
        }
    }

    #[test]
    fn the_device_rules_for_what_is_not_a_number_and_for_signs_of_zero_hold() {
        let [nan, zero, minus_zero, one] = [f32::NAN, 0.0, -0.0, 1.0_f32].map(|value| u64::from(value.to_bits()));
        let canonical = 0x7FFF_FFFF;
        let cases = [
            (BinaryOp::MaximumNumber, nan, one, one),
            (BinaryOp::Maximum, nan, one, canonical),
            (BinaryOp::MaximumNumber, minus_zero, zero, zero),
            (BinaryOp::MinimumNumber, zero, minus_zero, minus_zero),
            (BinaryOp::Add, zero, minus_zero, zero),
            (BinaryOp::Subtract, zero, zero, zero),
            (BinaryOp::Divide, zero, zero, canonical),
        ];
        for (op, left, right, expected) in cases {
            assert_eq!(binary(op, ElementType::F32, left, right), expected, "{op:?} {left:#x} {right:#x}");
        }
        assert_eq!(unary(UnaryOp::Relu, ElementType::F32, nan), zero);
        assert_eq!(convert(ElementType::F32, ElementType::U8, u64::from(300.5_f32.to_bits())), 300 & 0xFF);
        assert_eq!(convert(ElementType::F32, ElementType::U32, u64::from((-1.0_f32).to_bits())), 0);
        assert_eq!(convert(ElementType::F32, ElementType::U32, nan), 0);
        assert_eq!(convert(ElementType::F32, ElementType::I64, nan), 1 << 63);
        assert_eq!(convert(ElementType::F64, ElementType::U32, f64::NAN.to_bits()), 1 << 31);
        assert_eq!(convert(ElementType::F64, ElementType::U8, f64::NAN.to_bits()), 0);
        // Less than half of the smallest number.
        assert_eq!(multiply_add(ElementType::Bf16, 0x8001, 0.25, 0.0), 0x8000);
        assert_eq!(multiply_add(ElementType::Bf16, 0x3F80, 0.5, 0.0), 0x3F00);
    }
}
