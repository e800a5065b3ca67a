//! What passes cost, by the operations of their products, which are counted over one sample of zeros.

use candle_core::{DType, Tensor};
use esper_layers::operations::{Operations, counted_apart};
use leyline::id::SeedId;
use leyline::model::{AlphaOverride, Pass, TrainableModel};
use leyline::seed::Cost;
use leyline::unit::Alpha;

use crate::config::ActivationCheckpointing;
use crate::error::Error;
use crate::graft::seen::Seen;
use crate::graft::slot::Part;
use crate::graft::{Graft, GraftedModel};
use crate::weight::View;

/// So many of `num_samples` as `share` of them comes to, at least one.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of a count")]
pub(crate) fn part_of(num_samples: usize, share: f64) -> usize {
    ((num_samples as f64 * share) as usize).clamp(num_samples.min(1), num_samples)
}

fn operations<R>(run: impl FnOnce() -> Result<R, Error>) -> Result<Operations, Error> {
    let (result, found) = counted_apart(run);
    result.map(|_| found)
}

impl GraftedModel {
    /// Of the network as it is, what its seeds in the shadow take left out.
    pub(crate) fn cost(&self) -> Result<Cost, Error> {
        // What is computed twice is counted once, but not before the backward pass.
        let model = self.clone().with_checkpointing(ActivationCheckpointing::None);
        let sample = self.sample()?;
        let training = operations(|| model.train(&sample))?.training as f64;
        Ok(Cost { training, evaluation: model.evaluation(&sample, &[])? })
    }

    /// Of looking at a live seed as it is now, with microbatches of so many samples; none where it takes no part.
    pub(crate) fn looking_cost(
        &self,
        graft: &Graft,
        slot_index: usize,
        batch_size: usize,
    ) -> Result<Option<Cost>, Error> {
        let (training, alpha) = match graft.part() {
            None | Some(Part::Full) => return Ok(None),
            Some(Part::Scaled | Part::Fading) => (0.0, Alpha::ZERO),
            Some(Part::Shadow) => {
                let share = part_of(batch_size, self.shadow_share(graft.seed)) as f64 / batch_size.max(1) as f64;
                (share * self.side_operations(graft, slot_index)?, Alpha::ONE)
            }
        };
        let overrides = [AlphaOverride { seed: graft.seed, alpha }];
        Ok(Some(Cost { training, evaluation: self.evaluation(&self.sample()?, &overrides)? }))
    }

    /// Of looking at `graft` if it were in the shadow at a slot of this network, which costs `network`.
    pub(crate) fn shadow_cost_of(
        &self,
        graft: &Graft,
        slot_index: usize,
        network: Cost,
        batch_size: usize,
    ) -> Result<Cost, Error> {
        let side = self.side_operations(graft, slot_index)?;
        let share = part_of(batch_size, self.share(side, network.training)) as f64 / batch_size.max(1) as f64;
        let (h, seen) = self.at_slot(slot_index)?;
        let x = seen.at(self.host(), slot_index).unwrap_or(&h);
        let alone = operations(|| Ok(graft.act_in_full(&h, x, View::Frozen)?))?.total() as f64;
        Ok(Cost { training: share * side, evaluation: network.evaluation + alone })
    }

    /// The shares of microbatches that seeds in the shadow learn from.
    pub(super) fn shares(&self) -> Result<Vec<(SeedId, f64)>, Error> {
        let mut shares = Vec::new();
        if self.grafts().all(|graft| graft.part() != Some(Part::Shadow)) || self.shadow_cost_is_unlimited() {
            return Ok(shares);
        }
        let network = self.cost()?.training;
        for graft in self.grafts().filter(|graft| graft.part() == Some(Part::Shadow)) {
            let slot_index = self.slot_index(graft.seed).expect("a graft of the network has a slot");
            shares.push((graft.seed, self.share(self.side_operations(graft, slot_index)?, network)));
        }
        Ok(shares)
    }

    /// Operations of a pass of a seed in the shadow and its backward pass over one sample.
    fn side_operations(&self, graft: &Graft, slot_index: usize) -> Result<f64, Error> {
        let (h, seen) = self.at_slot(slot_index)?;
        Ok(operations(|| self.shadow_logits(graft, slot_index, &h, seen))?.total() as f64)
    }

    fn evaluation(&self, sample: &Tensor, overrides: &[AlphaOverride]) -> Result<f64, Error> {
        Ok(operations(|| self.forward(sample, Pass::Evaluate { overrides }))?.total() as f64)
    }

    /// One sample of zeros, as the network takes it.
    fn sample(&self) -> Result<Tensor, Error> {
        let host = self.host();
        let dims: Vec<usize> = std::iter::once(1).chain(host.config().sample_shape()).collect();
        let dtype = if host.config().context().is_some() { DType::U32 } else { host.dtype() };
        Ok(Tensor::zeros(dims, dtype, self.device())?)
    }

    /// The same at a slot, and at those before it that are seen later.
    fn at_slot(&self, slot_index: usize) -> Result<(Tensor, Seen), Error> {
        let zeros =
            |index: usize| Tensor::zeros(self.host().slots()[index].shape.batch(1), self.host().dtype(), self.device());
        let mut seen = Seen::default();
        for index in (0..slot_index).filter(|&index| self.host().is_seen(index)) {
            seen.keep(self.host(), index, &zeros(index)?);
        }
        Ok((zeros(slot_index)?, seen))
    }
}
