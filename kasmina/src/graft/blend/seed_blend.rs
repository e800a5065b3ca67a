//! A blend with the tensors it needs at one slot.

use candle_core::{Device, Tensor};
use leyline::command::Blend;
use leyline::id::SeedId;

use super::confidence::Confidence;
use super::constant::Constant;
use super::strength::{Strength, scaled, toward};
use super::{axes, gate};
use crate::error::Error;
use crate::host::SlotShape;
use crate::weight::{View, WeightSet, WeightSource, num_elements};

/// A blend with the tensors it needs at one slot.
#[derive(Debug, Clone)]
pub(crate) struct SeedBlend {
    slot: SlotShape,
    formula: Formula,
}

/// A mode with its tensors.
#[derive(Debug, Clone)]
pub(super) enum Formula {
    Residual,
    /// α of a seed in full: 1.
    Convex(Constant),
    /// One weight per channel.
    Channel(Constant),
    Confidence(Confidence),
    Multiply,
    Gate(WeightSet),
}

impl SeedBlend {
    /// What the names of its tensors begin with within a seed; those of a module must not.
    pub(crate) const PREFIX: &str = "gate";

    /// Makes what the blend needs at this slot.
    ///
    /// # Errors
    /// [`Error::ChannelWeights`] for another number of weights than the slot has channels, [`Error::NoMargin`] for a
    /// `confidence` blend at a slot of one channel, or when the tensors cannot be made.
    pub(crate) fn build(
        blend: &Blend,
        seed: SeedId,
        slot: SlotShape,
        source: &mut WeightSource<'_>,
        device: &Device,
    ) -> Result<Self, Error> {
        let channels = slot.channels();
        let formula = match blend {
            Blend::Residual => Formula::Residual,
            Blend::Convex => Formula::Convex(Constant::new(&[1.0], &[1], device)?),
            Blend::Multiply => Formula::Multiply,
            Blend::Channel(weights) => {
                let weights = weights.get();
                if weights.len() != channels {
                    return Err(Error::ChannelWeights { found: weights.len(), expected: channels, shape: slot });
                }
                Formula::Channel(Constant::new(weights, &axes::per_channel(slot), device)?)
            }
            Blend::Confidence(_) if channels < 2 => return Err(Error::NoMargin { shape: slot }),
            Blend::Confidence(settings) => Formula::Confidence(Confidence::new(*settings, channels, device)?),
            Blend::Gate => {
                let prefix = format!("seed.{:04}.{}", seed.0, Self::PREFIX);
                Formula::Gate(source.build(&prefix, &gate::weights(channels), device)?)
            }
        };
        Ok(Self { slot, formula })
    }

    /// Elements of the tensors that the blend needs at this slot and that belong to the seed (count).
    pub(crate) fn num_elements(blend: &Blend, slot: SlotShape) -> u64 {
        match blend {
            Blend::Gate => num_elements(&gate::weights(slot.channels())),
            Blend::Residual | Blend::Convex | Blend::Multiply | Blend::Channel(_) | Blend::Confidence(_) => 0,
        }
    }

    /// Trainable tensors of the blend itself, which belong to the seed.
    pub(crate) fn weights(&self) -> Option<&WeightSet> {
        match &self.formula {
            Formula::Gate(weights) => Some(weights),
            Formula::Residual
            | Formula::Convex(_)
            | Formula::Channel(_)
            | Formula::Confidence(_)
            | Formula::Multiply => None,
        }
    }

    /// The slot's output for its value `h` and the output `f` of the seed's module.
    ///
    /// # Shapes
    /// `h`, `f` and the result: a batch of the slot.
    /// # Errors
    /// When shapes do not fit or the device fails.
    /// # Sync
    /// none
    pub(crate) fn mix(&self, h: &Tensor, f: Tensor, strength: Strength<'_>, view: View) -> candle_core::Result<Tensor> {
        let weights = self.weights().map_or(&[][..], |weights| weights.view(view));
        mix(&self.formula, self.slot, weights, h, f, strength)
    }
}

/// As [`SeedBlend::mix`], with these tensors as the `weights` of a gate.
pub(super) fn mix(
    formula: &Formula,
    slot: SlotShape,
    weights: &[Tensor],
    h: &Tensor,
    f: Tensor,
    strength: Strength<'_>,
) -> candle_core::Result<Tensor> {
    let alpha = strength.alpha(h)?;
    let alpha = alpha.as_ref();
    match formula {
        Formula::Residual => h + scaled(f, alpha)?,
        Formula::Convex(one) => match alpha {
            Some(alpha) => toward(h, &f, alpha),
            // 0·h + 1·f: see the module's documentation. A product with the number 0 would pass no gradient on in candle.
            None => toward(h, &f, &one.tensor(h.dtype())?),
        },
        Formula::Channel(weight) => toward(h, &f, &scaled(weight.tensor(h.dtype())?, alpha)?),
        Formula::Confidence(confidence) => {
            let weight = axes::per_sample(&confidence.evaluate(&f, slot)?, h)?;
            toward(h, &f, &scaled(weight, alpha)?)
        }
        Formula::Multiply => h * scaled(f.tanh()?, alpha)?.affine(1.0, 1.0)?,
        Formula::Gate(_) => {
            let weight = axes::per_sample(&gate::evaluate(weights, h, slot)?, h)?;
            h + f.broadcast_mul(&scaled(weight, alpha)?)?
        }
    }
}

#[cfg(test)]
mod tests;
