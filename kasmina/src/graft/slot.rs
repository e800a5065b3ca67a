//! One slot with its seeds: how they act on the value that passes through.

use candle_core::Tensor;
use leyline::id::SeedId;
use leyline::model::AlphaOverride;
use leyline::seed::SeedStage;
use leyline::unit::Alpha;

use crate::blueprint::SeedModule;
use crate::graft::AlphaCell;
use crate::weight::View;

/// What a seed does in a forward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Nothing.
    Idle,
    /// It learns from a side loss.
    Shadow,
    /// It acts at its α.
    Acting,
    /// It is part of the host.
    Permanent,
}

impl Role {
    /// The role of a seed in this stage; none when it has no parameters then.
    pub(crate) fn of(stage: SeedStage) -> Option<Self> {
        match stage {
            SeedStage::Germinated => Some(Self::Idle),
            SeedStage::Training => Some(Self::Shadow),
            SeedStage::Blending | SeedStage::Holding => Some(Self::Acting),
            SeedStage::Fossilized => Some(Self::Permanent),
            SeedStage::Dormant | SeedStage::Pruned | SeedStage::Embargoed | SeedStage::Resetting => None,
        }
    }
}

/// A seed in the network.
#[derive(Debug, Clone)]
pub(crate) struct Graft {
    pub(crate) seed: SeedId,
    pub(crate) role: Role,
    pub(crate) module: SeedModule,
    pub(crate) alpha: AlphaCell,
}

/// How a seed enters the computation of a training step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// Through a side loss.
    Shadow,
    /// Multiplied by its device scalar.
    Scaled,
    /// In full.
    Full,
}

enum Strength<'a> {
    Off,
    Full,
    Cell(&'a Tensor),
    Fixed(f64),
}

impl Graft {
    /// Its part in a training step; none when it takes no part.
    pub(crate) fn part(&self) -> Option<Part> {
        match self.role {
            Role::Idle => None,
            Role::Shadow => Some(Part::Shadow),
            Role::Acting => (!self.alpha.is_zero()).then_some(Part::Scaled),
            Role::Permanent => Some(Part::Full),
        }
    }

    fn strength(&self, overrides: &[AlphaOverride]) -> Strength<'_> {
        match overrides.iter().find(|o| o.seed == self.seed).map(|o| o.alpha) {
            Some(alpha) if alpha.is_zero() => Strength::Off,
            Some(alpha) if alpha.is_one() => Strength::Full,
            Some(alpha) => Strength::Fixed(Alpha::get(alpha)),
            None => match self.part() {
                None | Some(Part::Shadow) => Strength::Off,
                Some(Part::Scaled) => Strength::Cell(self.alpha.tensor()),
                Some(Part::Full) => Strength::Full,
            },
        }
    }

    /// α·f(h); none when the seed does not act.
    fn share(&self, h: &Tensor, view: View, overrides: &[AlphaOverride]) -> candle_core::Result<Option<Tensor>> {
        let strength = self.strength(overrides);
        if let Strength::Off = strength {
            return Ok(None);
        }
        let delta = self.module.delta(h, view)?;
        Ok(Some(match strength {
            Strength::Off | Strength::Full => delta,
            Strength::Cell(alpha) => delta.broadcast_mul(alpha)?,
            Strength::Fixed(alpha) => delta.affine(alpha, 0.0)?,
        }))
    }
}

/// Looks on while a seed acts: its id, the value before it, and its share α·f(h).
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

    /// Lets every acting seed add its share to `h`.
    pub(crate) fn act(
        &self,
        mut h: Tensor,
        view: View,
        overrides: &[AlphaOverride],
        observer: &mut Observer<'_>,
    ) -> candle_core::Result<Tensor> {
        for graft in self.grafts() {
            if let Some(share) = graft.share(&h, view, overrides)? {
                observer(graft.seed, &h, &share)?;
                h = (&h + share)?;
            }
        }
        Ok(h)
    }

    /// The seed that learns in the shadow here.
    pub(crate) fn shadow(&self) -> Option<&Graft> {
        self.live.as_ref().filter(|graft| graft.role == Role::Shadow)
    }
}
