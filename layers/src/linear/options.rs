//! What a linear layer computes beside the product.

use candle_core::DType;

/// What is applied to each element of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Activation {
    /// Nothing.
    #[default]
    None,
    /// max(0, z), with the derivative 0 at z = 0, as [`relu`](crate::relu()). Kernels of this crate for a GPU keep what is no
    /// number; a CPU makes 0 of it, and cuBLASLt promises neither.
    Relu,
    /// The Gaussian error linear unit in its form with tanh, as candle's `gelu`. Its derivative there has constants of six digits, and
    /// is NaN from 10¹³ on; that of this crate for `f32` on a CPU is within 5·10⁻⁷ of that of `f64`, and 1 or 0 there.
    ///
    /// # Source
    /// Hendrycks & Gimpel 2016, arXiv:1606.08415, section 2.
    Gelu,
    /// z·Φ(z) with the error function, as candle's `gelu_erf`.
    ///
    /// # Source
    /// Hendrycks & Gimpel 2016, arXiv:1606.08415, section 2.
    GeluErf,
}

/// How a weight lies in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WeightOrder {
    /// (in, out): the outputs of one input lie together.
    #[default]
    InOut,
    /// (out, in), as PyTorch's `Linear`: the inputs of one output lie together.
    OutIn,
}

/// The type of the numbers that are multiplied. Sums are those of `f32` at least.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Precision {
    /// That of the inputs; for `f32`, what [`with_precision`](esper_graph::precision::with_precision) says where it runs.
    #[default]
    AsIs,
    /// Inputs, weights and the gradients between them are rounded to `bf16` for products; outputs and gradients have the
    /// types of the inputs.
    Bf16,
    /// The same with `f16`, which ends at 65 504: the loss is to be scaled so that gradients are neither beyond it nor lost
    /// below 2⁻²⁴.
    F16,
}

impl Precision {
    /// The type to which inputs of this type are rounded for products; none where they stay as they are.
    pub(super) fn half(self, inputs: DType) -> Option<DType> {
        let half = match self {
            Self::AsIs if inputs == DType::F32 => esper_graph::precision::half(),
            Self::AsIs => None,
            Self::Bf16 => Some(DType::BF16),
            Self::F16 => Some(DType::F16),
        };
        half.filter(|half| *half != inputs)
    }
}

/// Settings of [`linear`](super::linear).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LinearOptions {
    /// How the weight lies in memory.
    pub order: WeightOrder,
    /// What follows the product and the bias.
    pub activation: Activation,
    /// What is multiplied.
    pub precision: Precision,
}
