//! Words for operations and types.

use crate::compile::block::Lifetime;
use crate::compile::pointwise::{BinaryOp, Comparison, ElementType, UnaryOp};
use crate::compile::reduction::Reduction;

/// Values that have a word each.
pub(super) trait Named: Copy + PartialEq + 'static {
    const WORDS: &'static [(Self, &'static str)];

    fn word(self) -> &'static str {
        Self::WORDS.iter().find(|(value, _)| *value == self).map_or("?", |(_, word)| word)
    }

    fn of_word(word: &str) -> Option<Self> {
        Self::WORDS.iter().find(|(_, of)| *of == word).map(|(value, _)| *value)
    }
}

impl Named for Lifetime {
    const WORDS: &'static [(Self, &'static str)] = &[(Self::External, "x"), (Self::Arena, "a"), (Self::Graph, "g")];
}

impl Named for ElementType {
    const WORDS: &'static [(Self, &'static str)] = &[
        (Self::F32, "f32"),
        (Self::F64, "f64"),
        (Self::Bf16, "bf16"),
        (Self::U8, "u8"),
        (Self::U32, "u32"),
        (Self::I64, "i64"),
    ];
}

impl Named for UnaryOp {
    const WORDS: &'static [(Self, &'static str)] = &[
        (Self::Negate, "neg"),
        (Self::Abs, "abs"),
        (Self::Exp, "exp"),
        (Self::Log, "log"),
        (Self::Sin, "sin"),
        (Self::Cos, "cos"),
        (Self::Tanh, "tanh"),
        (Self::Square, "square"),
        (Self::Sqrt, "sqrt"),
        (Self::Reciprocal, "reciprocal"),
        (Self::Relu, "relu"),
        (Self::Silu, "silu"),
        (Self::Sigmoid, "sigmoid"),
        (Self::Gelu, "gelu"),
        (Self::GeluErf, "gelu_erf"),
        (Self::Erf, "erf"),
        (Self::Ceil, "ceil"),
        (Self::Floor, "floor"),
        (Self::Round, "round"),
        (Self::NormalCdf, "normal_cdf"),
        (Self::Sign, "sign"),
    ];
}

impl Named for BinaryOp {
    const WORDS: &'static [(Self, &'static str)] = &[
        (Self::Add, "add"),
        (Self::Subtract, "sub"),
        (Self::Multiply, "mul"),
        (Self::Divide, "div"),
        (Self::Minimum, "min"),
        (Self::Maximum, "max"),
        (Self::MinimumNumber, "min_number"),
        (Self::MaximumNumber, "max_number"),
    ];
}

impl Named for Reduction {
    const WORDS: &'static [(Self, &'static str)] = &[
        (Self::Sum, "row_sum"),
        (Self::StridedSum, "row_sum_strided"),
        (Self::EightsSum, "row_sum_eights"),
        (Self::OrderedSum, "row_sum_ordered"),
        (Self::Maximum, "row_max"),
        (Self::Minimum, "row_min"),
        (Self::MaximumOrNan, "row_max_nan"),
        (Self::MinimumOrNan, "row_min_nan"),
    ];
}

impl Named for Comparison {
    const WORDS: &'static [(Self, &'static str)] = &[
        (Self::Equal, "eq"),
        (Self::NotEqual, "ne"),
        (Self::Less, "lt"),
        (Self::LessOrEqual, "le"),
        (Self::Greater, "gt"),
        (Self::GreaterOrEqual, "ge"),
    ];
}
