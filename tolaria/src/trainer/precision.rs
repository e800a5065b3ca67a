//! In which precision a step forms its products.

use candle_core::Device;
use esper_graph::Precision;
use serde::{Deserialize, Serialize};

use crate::error::Error;

/// The precision of products in training steps. Parameters, gradients, moments, losses and everything that is no product of a
/// layer stay `f32`; so do evaluations, so that what is measured is what is exported.
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
}

impl TrainPrecision {
    /// Confirms that the device has it.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] with what it has.
    pub(super) fn check(self, device: &Device) -> Result<(), Error> {
        if self != Self::Tf32 || device.is_cuda() {
            return Ok(());
        }
        let message = "is `tf32`, which products of a GPU have: expected `f32`, `bf16` or `f16` on this device";
        Err(Error::InvalidConfig { key: "precision".to_owned(), message: message.to_owned() })
    }

    pub(super) fn is_default(&self) -> bool {
        *self == Self::F32
    }

    /// What tells the graphs of steps apart.
    pub(super) fn of_products(self, device: &Device) -> Precision {
        match self {
            Self::F32 => Precision::of(device),
            Self::Tf32 => Precision::Tf32,
            Self::Bf16 => Precision::Bf16,
            Self::F16 => Precision::F16,
        }
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
