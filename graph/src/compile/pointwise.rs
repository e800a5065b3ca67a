//! What a kernel computes for each element, as far as passes can merge it with others.

use super::reduction::Reduction;

/// One output element per position of a shape, each from the elements of the operands at that position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pointwise {
    /// Shape of the output, which is contiguous, the last dimension the fastest.
    pub shape: Vec<usize>,
    /// What is read.
    pub operands: Vec<Operand>,
    /// What is written: index into [`Kernel::pointers`](super::Kernel::pointers).
    pub output: usize,
    /// Type of the output.
    pub output_type: ElementType,
    /// The computation; the last step gives the output. Steps name earlier ones by their index.
    pub steps: Vec<Step>,
}

/// A tensor that is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operand {
    /// Index into [`Kernel::pointers`](super::Kernel::pointers); the address is that of the element at position zero.
    pub pointer: usize,
    /// Type of its elements.
    pub element: ElementType,
    /// Elements from one position to the next in each dimension; absent where it is contiguous like the output.
    pub strides: Option<Vec<usize>>,
}

/// Type of an element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ElementType {
    /// 32-bit float.
    F32,
    /// 64-bit float.
    F64,
    /// 16-bit float with 8 bits of exponent.
    Bf16,
    /// 8-bit unsigned integer; what comparisons give.
    U8,
    /// 32-bit unsigned integer.
    U32,
    /// 64-bit integer.
    I64,
}

/// One operation; its operands are indices of earlier steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// The element of an operand: index into [`Pointwise::operands`].
    Load(usize),
    /// A number of a type, by the bits of its `f64`.
    Constant(ElementType, u64),
    /// A function of one number.
    Unary(UnaryOp, usize),
    /// A function of two numbers of one type.
    Binary(BinaryOp, [usize; 2]),
    /// `value · factor + term`, rounded once; the numbers are the bits of their `f32`.
    MultiplyAdd {
        /// The value.
        value: usize,
        /// Bits of the factor.
        factor: u32,
        /// Bits of the term.
        term: u32,
    },
    /// 1 where the comparison holds, else 0, as `U8`.
    Compare(Comparison, [usize; 2]),
    /// The second where the first is not 0, else the third.
    Select([usize; 3]),
    /// The value as another type.
    Convert(ElementType, usize),
    /// The value to a power that is the same for all, the bits of its `f32`.
    Power(usize, u32),
    /// The value where it is greater than 0, else `α·(eˣ − 1)`; the number is the bits of the `f32` of α.
    Elu(usize, u32),
    /// One number of those that a row holds, the same for each of its positions.
    Reduce(Reduction, usize),
}

/// A function of one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnaryOp {
    /// −x
    Negate,
    /// |x|
    Abs,
    /// eˣ
    Exp,
    /// ln x
    Log,
    /// sin x
    Sin,
    /// cos x
    Cos,
    /// tanh x
    Tanh,
    /// x²
    Square,
    /// √x
    Sqrt,
    /// 1/x
    Reciprocal,
    /// max(x, 0); what is not a number becomes 0 as a 32- or 64-bit float, and stays as a 16-bit one
    Relu,
    /// x·σ(x)
    Silu,
    /// σ(x)
    Sigmoid,
    /// x·Φ(x), Φ approximated with tanh
    Gelu,
    /// x·Φ(x)
    GeluErf,
    /// erf x
    Erf,
    /// The smallest whole number that is not less
    Ceil,
    /// The largest whole number that is not greater
    Floor,
    /// The nearest whole number, halves away from zero
    Round,
    /// Φ(x), the distribution function of the standard normal distribution
    NormalCdf,
    /// 1 for x > 0, −1 for x < 0, else 0
    Sign,
}

/// A function of two numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BinaryOp {
    /// a + b
    Add,
    /// a − b
    Subtract,
    /// a · b
    Multiply,
    /// a / b
    Divide,
    /// The smaller; not a number where either is none
    Minimum,
    /// The larger; not a number where either is none
    Maximum,
    /// The smaller; where one is not a number, the other
    MinimumNumber,
    /// The larger; where one is not a number, the other
    MaximumNumber,
}

/// A comparison of two numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    /// a = b
    Equal,
    /// a ≠ b
    NotEqual,
    /// a < b
    Less,
    /// a ≤ b
    LessOrEqual,
    /// a > b
    Greater,
    /// a ≥ b
    GreaterOrEqual,
}

impl ElementType {
    /// Bytes of an element.
    #[must_use]
    pub fn size_bytes(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::Bf16 => 2,
            Self::F32 | Self::U32 => 4,
            Self::F64 | Self::I64 => 8,
        }
    }
}
