//! The type in which a network keeps its weights and computes.

use candle_core::DType;
use serde::{Deserialize, Serialize};

/// Type of the elements of weights, signals and α cells.
///
/// Initial weights are the same numbers for each of them: drawn as `f32`, then converted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ElementType {
    /// 32 bits.
    #[default]
    F32,
    /// 64 bits; for checks of gradients and of rounding.
    F64,
    /// 16 bits with the range of `f32`. Products are added as `f32`. Logits are turned into `f32`, so that the loss is of
    /// that type: with 8 significant bits it would hide what a seed gains.
    Bf16,
}

impl ElementType {
    /// As the tensor library calls it.
    #[must_use]
    pub fn dtype(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::F64 => DType::F64,
            Self::Bf16 => DType::BF16,
        }
    }

    /// The type that the tensor library calls so; none where no network has it.
    #[must_use]
    pub fn of(dtype: DType) -> Option<Self> {
        [Self::F32, Self::F64, Self::Bf16].into_iter().find(|known| known.dtype() == dtype)
    }
}
