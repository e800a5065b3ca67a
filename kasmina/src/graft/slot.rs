//! One slot with its seeds: how they act on the value that passes through.

use std::sync::Arc;

use candle_core::{Device, Tensor};
use esper_layers::recompute;
use leyline::id::SeedId;
use leyline::model::AlphaOverride;
use leyline::unit::Alpha;

use crate::blueprint::{Blueprint, SeedModule};
use crate::error::Error;
use crate::graft::AlphaCell;
use crate::graft::blend::{SeedBlend, Strength};
use crate::graft::spec::SeedSpec;
use crate::host::{Past, SlotShape};
use crate::weight::{View, WeightSet, WeightSource};

/// What a seed does in a forward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Nothing.
    Idle,
    /// It learns from a side loss.
    Shadow,
    /// It acts at its α.
    Acting,
    /// It acts at its α and no longer learns.
    Fading,
    /// It is part of the host.
    Permanent,
}

/// A seed in the network.
#[derive(Debug, Clone)]
pub(crate) struct Graft {
    pub(crate) seed: SeedId,
    pub(crate) role: Role,
    pub(crate) module: SeedModule,
    pub(crate) blend: SeedBlend,
    pub(crate) alpha: AlphaCell,
}

/// How a seed enters the computation of a training step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// Through a side loss.
    Shadow,
    /// Multiplied by its device scalar.
    Scaled,
    /// The same, with its parameters held fixed.
    Fading,
    /// In full.
    Full,
}

impl Graft {
    /// Makes the parts of a seed at a slot.
    ///
    /// # Errors
    /// When its tensors cannot be made, or its blend does not fit the slot.
    pub(crate) fn build(
        seed: &SeedSpec,
        role: Role,
        blueprint: &Arc<dyn Blueprint>,
        slot: SlotShape,
        source: &mut WeightSource<'_>,
        device: &Device,
    ) -> Result<Self, Error> {
        let module = SeedModule::without_probe(blueprint, seed.id, slot, seed.width, source, device)?;
        let blend = SeedBlend::build(&seed.blend, seed.id, slot, source, device)?;
        let alpha = AlphaCell::new(seed.alpha, source.dtype(), device)?;
        Ok(Self { seed: seed.id, role, module, blend, alpha })
    }

    /// Its part in a training step; none when it takes no part.
    pub(crate) fn part(&self) -> Option<Part> {
        match self.role {
            Role::Idle => None,
            Role::Shadow => Some(Part::Shadow),
            Role::Acting => (!self.alpha.is_zero()).then_some(Part::Scaled),
            Role::Fading => (!self.alpha.is_zero()).then_some(Part::Fading),
            Role::Permanent => Some(Part::Full),
        }
    }

    /// The sets of tensors that belong to the seed: its module's, then its blend's.
    pub(crate) fn weights(&self) -> impl Iterator<Item = &WeightSet> {
        std::iter::once(self.module.weights()).chain(self.blend.weights())
    }

    /// How much of it acts; none when it does not.
    fn strength(&self, overrides: &[AlphaOverride]) -> Option<Strength<'_>> {
        match overrides.iter().find(|o| o.seed == self.seed).map(|o| o.alpha) {
            Some(alpha) if self.alpha.rounds_to_zero(alpha) => None,
            Some(alpha) if alpha.is_one() => Some(Strength::Full),
            Some(alpha) => Some(Strength::Fixed(Alpha::get(alpha))),
            None => match self.part() {
                None | Some(Part::Shadow) => None,
                Some(Part::Scaled | Part::Fading) => Some(Strength::Cell(self.alpha.tensor())),
                Some(Part::Full) => Some(Strength::Full),
            },
        }
    }

    /// The slot's output for its value `h` where the seed sees `x`; none when it does not act.
    fn act(
        &self,
        (h, x): (&Tensor, &Tensor),
        view: View,
        overrides: &[AlphaOverride],
    ) -> candle_core::Result<Option<Tensor>> {
        let view = if self.role == Role::Fading { View::Frozen } else { view };
        self.strength(overrides).map(|strength| self.mix((h, x), strength, view)).transpose()
    }

    /// The same for tokens that follow those of `past`.
    fn next(&self, h: &Tensor, past: &mut Past) -> candle_core::Result<Option<Tensor>> {
        let Some(strength) = self.strength(&[]) else { return Ok(None) };
        self.blend.mix(h, self.module.delta_next(h, past)?, strength, View::Frozen).map(Some)
    }

    fn mix(&self, (h, x): (&Tensor, &Tensor), strength: Strength<'_>, view: View) -> candle_core::Result<Tensor> {
        self.blend.mix(h, self.module.delta(x, view)?, strength, view)
    }

    /// The slot's output for its value `h` if the seed, which sees `x`, acted in full.
    pub(crate) fn act_in_full(&self, h: &Tensor, x: &Tensor, view: View) -> candle_core::Result<Tensor> {
        self.mix((h, x), Strength::Full, view)
    }
}

/// Looks on while a seed acts: its id, the value before it, and its share of the output, which is the value after it less
/// the value before it.
pub(crate) type Observer<'a> = dyn FnMut(SeedId, &Tensor, &Tensor) -> candle_core::Result<()> + 'a;

/// One slot with its seeds.
#[derive(Debug, Clone, Default)]
pub(crate) struct SlotGrafts {
    /// In the order in which they became permanent, which is the order of their ids.
    pub(crate) permanent: Vec<Graft>,
    pub(crate) live: Option<Graft>,
}

impl SlotGrafts {
    pub(crate) fn grafts(&self) -> impl Iterator<Item = &Graft> {
        self.permanent.iter().chain(&self.live)
    }

    /// Lets every seed act on `h`. They see `x`, or `h` itself where there is none. What an observer sees is computed only for one.
    pub(crate) fn act(
        &self,
        mut h: Tensor,
        x: Option<&Tensor>,
        view: View,
        overrides: &[AlphaOverride],
        mut observer: Option<&mut Observer<'_>>,
    ) -> candle_core::Result<Tensor> {
        for graft in self.grafts() {
            if let Some(output) = graft.act((&h, x.unwrap_or(&h)), view, overrides)? {
                if let Some(observer) = observer.as_deref_mut() {
                    observer(graft.seed, &h, &(&output - &h)?)?;
                }
                h = output;
            }
        }
        Ok(h)
    }

    /// [`Self::act`] for training: of seeds that act, all but what they look at is computed again for the backward pass.
    pub(crate) fn act_kept_small(&self, h: Tensor) -> candle_core::Result<Tensor> {
        let acting: Vec<&Graft> =
            self.grafts().filter(|graft| graft.part().is_some_and(|part| part != Part::Shadow)).collect();
        if acting.is_empty() {
            return Ok(h);
        }
        let sets = acting.into_iter().flat_map(Graft::weights);
        let slot = self.clone();
        let variables = sets.flat_map(WeightSet::parameters).map(|parameter| &parameter.var);
        recompute(&h, variables, move |h| slot.act(h.clone(), None, View::Live, &[], None))
    }

    /// Lets every seed act on `h`, the value at tokens that follow those of `past`.
    pub(crate) fn next(&self, mut h: Tensor, past: &mut Past) -> candle_core::Result<Tensor> {
        for graft in self.grafts() {
            h = graft.next(&h, past)?.unwrap_or(h);
        }
        Ok(h)
    }

    /// The seed that learns in the shadow here.
    pub(crate) fn shadow(&self) -> Option<&Graft> {
        self.live.as_ref().filter(|graft| graft.role == Role::Shadow)
    }
}
