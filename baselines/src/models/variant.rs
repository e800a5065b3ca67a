//! What the networks are built of.

use std::fmt;
use std::str::FromStr;

use candle_core::{DType, Tensor};
use tolaria::trainer::TrainPrecision;

/// Who computes a layer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Form {
    /// Basic operations of candle, as in a model that knows nothing of this project.
    #[default]
    Primitive,
    /// The functions of `esper-layers`.
    Layers,
}

impl Form {
    /// Both.
    pub(crate) const ALL: [Self; 2] = [Self::Primitive, Self::Layers];

    /// Its name in results.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Primitive => "primitive",
            Self::Layers => "layers",
        }
    }
}

/// Arithmetic of the products with weights. Parameters, attention and everything else stay in `f32`, but for the last, and but for
/// what layers give on to each other with products of `bf16`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Precision {
    /// `f32`.
    #[default]
    F32,
    /// `f32` with factors rounded to 10 bits. A setting of the process, which whoever measures switches; a network is
    /// built as for `f32`.
    Tf32,
    /// Factors rounded to `bf16`, as PyTorch's autocast does it.
    Bf16,
    /// Parameters and signals of `bf16`; updates are compensated.
    Bf16Pure,
    /// The same, with updates that are rounded at random.
    Bf16Stochastic,
}

impl Precision {
    /// All of them.
    pub(crate) const ALL: [Self; 5] = [Self::F32, Self::Tf32, Self::Bf16, Self::Bf16Pure, Self::Bf16Stochastic];

    /// The same of the trainer.
    pub(crate) fn of_training(self) -> TrainPrecision {
        match self {
            Self::F32 => TrainPrecision::F32,
            Self::Tf32 => TrainPrecision::Tf32,
            Self::Bf16 => TrainPrecision::Bf16,
            Self::Bf16Pure => TrainPrecision::Bf16Pure,
            Self::Bf16Stochastic => TrainPrecision::Bf16Stochastic,
        }
    }

    /// Its name in results.
    pub(crate) fn name(self) -> &'static str {
        self.of_training().name()
    }

    /// Type of the parameters.
    pub(crate) fn of_parameters(self) -> DType {
        self.of_training().of_parameters()
    }
}

impl FromStr for Precision {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|precision| precision.name() == name);
        found.ok_or_else(|| format!("expected one of {}", Self::ALL.map(Self::name).join(", ")))
    }
}

/// One way to build a network.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Variant {
    /// Who computes a layer.
    pub(crate) form: Form,
    /// Arithmetic of the products.
    pub(crate) precision: Precision,
}

impl Variant {
    /// Whether layers round its weights, which are of `f32`.
    pub(crate) fn rounds_weights(self) -> bool {
        (self.form, self.precision) == (Form::Layers, Precision::Bf16)
    }

    /// In `f32`.
    pub(crate) fn of(form: Form) -> Self {
        Self { form, precision: Precision::F32 }
    }

    /// What reaches a layer: of the type of the parameters, where that is `bf16`, and of the type that layers multiply, as with
    /// PyTorch's autocast.
    pub(crate) fn signal(self, x: &Tensor) -> candle_core::Result<Tensor> {
        let is_half = self.precision.of_parameters() == DType::BF16 || self.rounds_weights();
        if is_half { x.to_dtype(DType::BF16) } else { Ok(x.clone()) }
    }

    /// A factor of a product: of `bf16`, where products alone are.
    pub(crate) fn factor(self, x: &Tensor) -> candle_core::Result<Tensor> {
        if self.precision == Precision::Bf16 { x.to_dtype(DType::BF16) } else { Ok(x.clone()) }
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.precision.name(), self.form.name())
    }
}
