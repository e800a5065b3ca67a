//! In which precision a step forms its products.

use candle_core::{DType, Device};
use esper_graph::{Precision, ProductSwitches};
use leyline::model::Parameter;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::optim::Rounding;

/// The precision of training steps. But for [`Self::Bf16Pure`] and [`Self::Bf16Stochastic`], it is that of products alone: parameters, gradients, moments, losses
/// and everything that is no product of a layer stay `f32`; so do evaluations, so that what is measured is what is exported.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrainPrecision {
    /// `f32`, on a GPU as candle's switch for the process says.
    #[default]
    F32,
    /// Factors rounded to 10 bits by the products of a GPU.
    Tf32,
    /// Factors rounded to `bf16`, sums of `f32`. A weight is rounded once per step.
    Bf16,
    /// The same with `f16`, and the loss is scaled: see [`LossScaleConfig`](super::LossScaleConfig).
    F16,
    /// Parameters, signals and gradients are of `bf16`, in evaluations, too; what updates leave over is kept beside a parameter, see
    /// [`Optimizer`](crate::optim::Optimizer). Rows of gradients, moments and losses are of `f32`.
    Bf16Pure,
    /// The same with nothing beside a parameter, and with moments of `bf16`: an update rounds both at random, so that they move by what
    /// the update is on average, see [`Rounding::Stochastic`].
    Bf16Stochastic,
}

impl TrainPrecision {
    /// As settings call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Tf32 => "tf32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::Bf16Pure => "bf16_pure",
            Self::Bf16Stochastic => "bf16_stochastic",
        }
    }

    /// Confirms that the device has it.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] with what it has.
    pub(super) fn check(self, device: &Device) -> Result<(), Error> {
        if self != Self::Tf32 || device.is_cuda() {
            return Ok(());
        }
        let message = "is `tf32`, which products of a GPU have: expected `f32`, `bf16`, `f16`, `bf16_pure` or \
                       `bf16_stochastic` on this device";
        Err(Error::InvalidConfig { key: "precision".to_owned(), message: message.to_owned() })
    }

    /// Type of the parameters that it trains.
    #[must_use]
    pub fn of_parameters(self) -> DType {
        if matches!(self, Self::Bf16Pure | Self::Bf16Stochastic) { DType::BF16 } else { DType::F32 }
    }

    /// How updates leave parameters of `bf16`.
    #[must_use]
    pub fn rounding(self) -> Rounding {
        if self == Self::Bf16Stochastic { Rounding::Stochastic } else { Rounding::Compensated }
    }

    /// Refuses a network of other parameters. Of other types than these, moments would lose what they add up; what is there twice
    /// would move twice.
    ///
    /// # Errors
    /// [`Error::UnsupportedParameter`], [`Error::SharedVariable`].
    pub(super) fn check_parameters(self, parameters: &[Parameter]) -> Result<(), Error> {
        let expected = self.of_parameters();
        if let Some(parameter) = parameters.iter().find(|parameter| parameter.var.dtype() != expected) {
            let (name, found) = (parameter.name.clone(), parameter.var.dtype().as_str());
            return Err(Error::UnsupportedParameter { name, found, expected: expected.as_str() });
        }
        #[expect(clippy::disallowed_types, reason = "identities have no order; that of the map is not used")]
        let mut seen = std::collections::HashMap::new();
        for Parameter { name, var } in parameters {
            if let Some(first) = seen.insert(var.id(), name) {
                return Err(Error::SharedVariable { first: first.clone(), second: name.clone() });
            }
        }
        Ok(())
    }

    pub(super) fn is_default(&self) -> bool {
        *self == Self::F32
    }

    /// What tells the graphs of steps apart.
    pub(super) fn of_products(self, device: &Device) -> Precision {
        match self {
            Self::F32 => Precision::of(device),
            Self::Tf32 => Precision::Tf32,
            Self::Bf16 | Self::Bf16Pure | Self::Bf16Stochastic => Precision::Bf16,
            Self::F16 => Precision::F16,
        }
    }

    /// candle's switches as steps find them, which tell their graphs apart too.
    pub(super) fn switches(self, device: &Device) -> ProductSwitches {
        let now = ProductSwitches::of(device);
        // A step turns this one on itself.
        if self == Self::Tf32 { ProductSwitches { tf32: device.is_cuda(), ..now } } else { now }
    }

    /// Refuses a step in which nothing was rounded though it was asked for.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`].
    pub(super) fn check_products(self, num_products: u64) -> Result<(), Error> {
        if !matches!(self, Self::Bf16 | Self::F16) || num_products > 0 {
            return Ok(());
        }
        let message =
            "asks for products of half precision, and the network has none of `esper_layers::linear`: expected `f32`";
        Err(Error::InvalidConfig { key: "precision".to_owned(), message: message.to_owned() })
    }
}
