//! How sure a seed is of each sample.

use candle_core::{D, Device, Result, Tensor};
use leyline::command::ConfidenceGate;

use super::axes::pooled;
use super::constant::Constant;
use super::gate::sigmoid;
use crate::host::SlotShape;

/// clamp(σ(k·(m − τ)), low, high) with the margin m of each sample.
#[derive(Debug, Clone)]
pub(super) struct Confidence {
    gate: ConfidenceGate,
    /// 0 to C − 1, of shape (1, C).
    channels: Tensor,
    /// Least and greatest value, of shape (1, 1); none where the logistic function keeps the bound by itself.
    low: Option<Constant>,
    high: Option<Constant>,
}

impl Confidence {
    pub(super) fn new(gate: ConfidenceGate, num_channels: usize, device: &Device) -> Result<Self> {
        let indices: Vec<u32> = (0..).take(num_channels).collect();
        let channels = Tensor::from_vec(indices, (1, num_channels), device)?;
        let bound = |value: f64, given: bool| given.then(|| Constant::new(&[value], &[1, 1], device)).transpose();
        let (low, high) = (bound(gate.low(), gate.low() > 0.0)?, bound(gate.high(), gate.high() < 1.0)?);
        Ok(Self { gate, channels, low, high })
    }

    /// The gate of each sample, (B, 1), without gradient, for the output `f` of a seed.
    pub(super) fn evaluate(&self, f: &Tensor, slot: SlotShape) -> Result<Tensor> {
        let margin = self.margin(&pooled(&f.detach(), slot)?)?;
        let (steepness, threshold) = (self.gate.steepness(), self.gate.threshold());
        let mut gate = sigmoid(&margin.affine(steepness, -steepness * threshold)?)?;
        if let Some(low) = &self.low {
            gate = gate.broadcast_maximum(&low.tensor(gate.dtype())?)?;
        }
        if let Some(high) = &self.high {
            gate = gate.broadcast_minimum(&high.tensor(gate.dtype())?)?;
        }
        Ok(gate)
    }

    /// Difference of the two largest softmax probabilities of each row: `scores` (B, C) → (B, 1).
    fn margin(&self, scores: &Tensor) -> Result<Tensor> {
        let exponentials = scores.broadcast_sub(&scores.max_keepdim(D::Minus1)?)?.exp()?;
        let probabilities = exponentials.broadcast_div(&exponentials.sum_keepdim(D::Minus1)?)?;
        // One of the largest is taken out by its place and not by its value: equal ones have no margin.
        let place = probabilities.argmax_keepdim(D::Minus1)?;
        let is_largest = self.channels.broadcast_eq(&place)?.to_dtype(probabilities.dtype())?;
        let rest = (&probabilities - (&probabilities * is_largest)?)?;
        probabilities.max_keepdim(D::Minus1)? - rest.max_keepdim(D::Minus1)?
    }
}
