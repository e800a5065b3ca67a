//! The linear layer.

use candle_core::{Result, Tensor};
use esper_layers::{Activation, LinearOptions};

/// activation(x·W + b): `x` (B, in), `weight` (in, out), `bias` (out) → (B, out).
///
/// Weights are stored as the product needs them, so no forward pass has to transpose them.
pub(crate) fn linear(x: &Tensor, weight: &Tensor, bias: &Tensor, activation: Activation) -> Result<Tensor> {
    esper_layers::linear(x, weight, Some(bias), &LinearOptions { activation, ..LinearOptions::default() })
}
