//! The scale of a loss whose gradients are rounded to `f16`: found, used and moved on the device, within the step.
//!
//! Gradients of `f16` end at 65 504 and are lost below 2⁻²⁴. The loss is multiplied with a power of two before the way back, and the
//! gradient divided by it in `f32` before anybody looks at it: norms, clipping, conflicts and updates see the gradient itself, and
//! the division changes no bit of a normal number. A step whose gradient is not finite changes nothing, as without a scale
//! (`aggregate/solve.rs`), and halves it; after so many good steps in a row it doubles. Where the loss itself is not finite, or beyond its
//! bound, no scale helps: that of the main loss stays as it is.
//!
//! The main loss and the shadow of each isolated seed have a scale of their own: what a shadow overflows does not touch the host.

use std::num::NonZeroU32;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use leyline::layout::Owner;
use serde::{Deserialize, Serialize};

use crate::aggregate::Combination;
use crate::cpu;
use crate::error::Error;
use crate::grad::{Geometry, GradientScope, Part};
use crate::kernels::{NO_PART, ScaleRule};
use crate::path::Path;

/// The largest scale: beyond it, nothing that `f32` adds up to a gradient would be kept in `f16` that is not now.
const LARGEST: f32 = 16_777_216.0;
/// The smallest: with it, what overflows would overflow without a scale, too.
const SMALLEST: f32 = 1.0;
/// How the loss is scaled where products are of `f16`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LossScaleConfig {
    /// Where it starts: a power of two from 1 to 16 777 216.
    pub initial: f64,
    /// Steps in a row with a finite gradient after which it doubles (count).
    pub growth_steps: NonZeroU32,
}

impl Default for LossScaleConfig {
    /// As PyTorch's scaler.
    fn default() -> Self {
        Self { initial: 65_536.0, growth_steps: const { NonZeroU32::new(2000).unwrap() } }
    }
}

impl LossScaleConfig {
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Every setting that cannot work, as (key, what is accepted).
    pub(super) fn validate(&self) -> Vec<(String, String)> {
        let mut issues = Vec::new();
        let is_power = self.initial.is_finite() && self.initial.log2().fract() == 0.0;
        if !(is_power && (f64::from(SMALLEST)..=f64::from(LARGEST)).contains(&self.initial)) {
            issues.push(("initial".to_owned(), "a power of two from 1 to 16777216".to_owned()));
        }
        if self.growth_steps.get() >= 1 << 24 {
            issues.push(("growth_steps".to_owned(), "less than 16777216".to_owned()));
        }
        issues
    }
}

/// Scales by domain, which stay where they are: recorded steps point at them.
#[derive(Debug)]
pub(super) struct LossScale {
    rule: ScaleRule,
    /// Shape (2, domains) of `f32`: the scales, and good steps in a row.
    state: Tensor,
    /// Shape (domains,) of `u32`: a part of each domain, by whose factor it is told whether it was finite.
    probes: Tensor,
    /// Shape (domains,) of `f32`: the scales with which the sums began.
    begun: Tensor,
    geometry: Arc<Geometry>,
}

impl LossScale {
    /// # Errors
    /// When the device fails.
    pub(super) fn new(config: &LossScaleConfig, geometry: Arc<Geometry>, device: &Device) -> Result<Self, Error> {
        #[expect(clippy::cast_possible_truncation, reason = "a power of two up to 2^24")]
        let scales = vec![config.initial as f32; num_domains(&geometry)];
        let numbers = [scales, vec![0.0; num_domains(&geometry)]].concat();
        Self::with(config, geometry, &numbers, device)
    }

    /// With the [`numbers`](Self::numbers) of the same geometry.
    ///
    /// # Errors
    /// [`Error::State`] when they are none.
    pub(super) fn with(
        config: &LossScaleConfig,
        geometry: Arc<Geometry>,
        numbers: &[f32],
        device: &Device,
    ) -> Result<Self, Error> {
        let domains = num_domains(&geometry);
        // Earlier versions did not say with which scales the sums began.
        let (state, begun) = numbers.split_at((2 * domains).min(numbers.len()));
        let begun = if begun.is_empty() { &state[..domains.min(state.len())] } else { begun };
        let is_scale = |scale: &f32| (SMALLEST..=LARGEST).contains(scale);
        let are_scales = |scales: &[f32]| scales.len() == domains && scales.iter().all(is_scale);
        if state.len() != 2 * domains || !are_scales(&state[..domains]) || !are_scales(begun) {
            let message =
                format!("expected {domains} scales from {SMALLEST} to {LARGEST} with counts, found {numbers:?}");
            return Err(Error::State { field: "sums.loss_scale", message });
        }
        let probes = probes(&geometry, device)?;
        let begun = Tensor::from_slice(begun, domains, device)?;
        let state = Tensor::from_slice(state, (2, domains), device)?;
        #[expect(clippy::cast_precision_loss, reason = "validated to be less than 2^24")]
        let growth_steps = config.growth_steps.get() as f32;
        let rule = ScaleRule { growth_steps, largest: LARGEST, smallest: SMALLEST };
        Ok(Self { rule, state, probes, begun, geometry })
    }

    /// The sums begin with these scales.
    ///
    /// # Sync
    /// none
    pub(super) fn begin(&mut self) -> Result<(), Error> {
        self.begun = self.state.get(0)?.copy()?;
        Ok(())
    }

    /// The same for another structure of the network, whose sums begin: each owner keeps its scale, a new domain starts with that of
    /// the main loss.
    ///
    /// # Sync
    /// none
    pub(super) fn refitted(&self, geometry: Arc<Geometry>) -> Result<Self, Error> {
        let slots = geometry.owners().iter().map(|owner| self.domain_of(*owner).unwrap_or(0));
        let indices: Vec<u32> =
            std::iter::once(0).chain(slots).map(|domain| u32::try_from(domain).unwrap_or(0)).collect();
        let device = self.state.device();
        let state = self.state.index_select(&Tensor::new(indices, device)?, 1)?;
        let begun = state.get(0)?.copy()?;
        Ok(Self { rule: self.rule, state, probes: probes(&geometry, device)?, begun, geometry })
    }

    /// The domain of an owner's isolated parts, if it has any.
    fn domain_of(&self, owner: Owner) -> Option<usize> {
        self.geometry
            .parts()
            .iter()
            .find(|part| part.isolated && self.geometry.owners()[part.slot] == owner)
            .map(|part| part.domain())
    }

    /// `loss`, a scalar, times the scale of its scope.
    pub(super) fn scaled(&self, loss: &Tensor, scope: GradientScope) -> Result<Tensor, Error> {
        Ok(loss.mul(&self.of(scope)?.reshape(loss.shape())?)?)
    }

    /// The scale of a scope, (1,), which its gradient is divided by on its way into a row.
    pub(super) fn of(&self, scope: GradientScope) -> Result<Tensor, Error> {
        let domain = match scope {
            GradientScope::Main => 0,
            GradientScope::Shadow(seed) => self.domain_of(Owner::Seed(seed)).unwrap_or(0),
        };
        Ok(self.state.flatten_all()?.narrow(0, domain, 1)?)
    }

    /// Moves the scales by what the window of `combination` came to: that of the main loss where `has_loss`, (1,) of `u8`, says that
    /// this is finite.
    pub(super) fn follow(&self, combination: &Combination, has_loss: &Tensor) -> Result<(), Error> {
        let before = self.state.copy()?;
        self.move_by(combination)?;
        let main = |state: &Tensor| state.narrow(1, 0, 1);
        let kept = has_loss.broadcast_as((2, 1))?.where_cond(&main(&self.state)?, &main(&before)?)?;
        Ok(self.state.slice_set(&kept, 1, 0)?)
    }

    fn move_by(&self, combination: &Combination) -> Result<(), Error> {
        let terms = combination.terms();
        match Path::of(terms.rows[0])? {
            Path::Device(kernels) => {
                let Some(factors) = terms.factors.device(self.state.device())? else { return Ok(()) };
                Ok(kernels.move_scales(&self.state, &factors, &self.probes, self.rule)?)
            }
            Path::Kernel => {
                let Some(factors) = terms.factors.host()? else { return Ok(()) };
                let domains = num_domains(&self.geometry);
                Ok(cpu::with_slice_mut(&self.state, |state| {
                    for domain in 0..domains {
                        let Some(probe) = probe(&self.geometry, domain) else { continue };
                        let (scale, good) = (state[domain], state[domains + domain]);
                        (state[domain], state[domains + domain]) =
                            self.rule.after(scale, good, !factors[probe].is_nan());
                    }
                })?)
            }
        }
    }

    /// Scales, counts and the scales with which the sums began, flat, of `f64`, which later steps do not change.
    pub(super) fn numbers(&self) -> Result<Tensor, Error> {
        Ok(Tensor::cat(&[&self.state.flatten_all()?, &self.begun], 0)?.to_dtype(DType::F64)?)
    }

    /// How many numbers that are.
    pub(super) fn num_numbers(&self) -> usize {
        self.state.elem_count() + self.begun.elem_count()
    }

    /// What such numbers say.
    pub(super) fn read(&self, numbers: &[f64]) -> Scales {
        let domains = num_domains(&self.geometry);
        let of = |domain: usize| Scale { now: numbers[domain], begun: numbers[2 * domains + domain] };
        let of_seed = |owner: &Owner| Some((*owner, of(self.domain_of(*owner)?)));
        let isolated = self.geometry.owners().iter().filter_map(of_seed).collect();
        Scales { main: of(0), isolated }
    }

    /// What a recorded step points at, with names for messages.
    pub(super) fn tensors(&self) -> [(&'static str, &Tensor); 2] {
        [("scales of the loss", &self.state), ("parts of the scales", &self.probes)]
    }
}

/// A scale as it was read.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Scale {
    pub(super) now: f64,
    /// With which the sums began.
    pub(super) begun: f64,
}

/// Scales of the loss, as they were read.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Scales {
    main: Scale,
    isolated: Vec<(Owner, Scale)>,
}

impl Scales {
    /// That of an owner's gradient.
    pub(super) fn of(&self, owner: Owner) -> Scale {
        self.isolated.iter().find(|(of, _)| *of == owner).map_or(self.main, |(_, scale)| *scale)
    }
}

/// A part whose gradient is scaled by the scale of this domain: one that learns, where there is one.
fn probe(geometry: &Geometry, domain: usize) -> Option<usize> {
    let parts = geometry.parts();
    let is_scaled = |part: &Part| if part.isolated { part.domain() == domain } else { domain == 0 };
    let learns = |part: &Part| is_scaled(part) && !part.frozen;
    parts.iter().position(learns).or_else(|| parts.iter().position(is_scaled))
}

/// For each domain, one of its parts.
fn probes(geometry: &Geometry, device: &Device) -> Result<Tensor, Error> {
    let of = |domain: usize| probe(geometry, domain).and_then(|part| u32::try_from(part).ok()).unwrap_or(NO_PART);
    Ok(Tensor::from_iter((0..num_domains(geometry)).map(of), device)?)
}

fn num_domains(geometry: &Geometry) -> usize {
    1 + geometry.owners().len()
}

#[cfg(test)]
mod tests;
