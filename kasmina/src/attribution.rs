//! How much of a microbatch's loss each seed is responsible for.
//!
//! Only seeds that act (blending, holding or permanent, with α > 0) can influence the loss of the batch; they share it
//! with the host in proportion to these scores:
//!
//! | mode | score of a seed | score of the host |
//! |---|---|---|
//! | `host_only` | none | 1 |
//! | `stage` | ½ while blending, else 1 | 1 |
//! | `alpha` | α | 1 |
//! | `contribution` | ‖α·f(h)‖ over the batch at its slot | Σ ‖h‖ over the slots with acting seeds |
//! | `probe` | \|loss without it − loss\| | loss |
//!
//! A mode whose scores are not finite or sum to zero falls back to `alpha`. Without an acting seed every mode gives
//! `host_only`.
#![deny(clippy::wildcard_enum_match_arm)]

use candle_core::Tensor;
use candle_nn::loss::cross_entropy;
use leyline::batch::Batch;
use leyline::id::SeedId;
use leyline::model::{AlphaOverride, Pass, TrainableModel};
use leyline::seed::{Attribution, AttributionMode, SeedStage};
use leyline::unit::Alpha;

use crate::error::Error;
use crate::graft::GraftedModel;
use crate::host_read::read_f32;

/// A seed that can influence the loss.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Acting {
    pub(crate) seed: SeedId,
    pub(crate) stage: SeedStage,
    pub(crate) alpha: Alpha,
}

/// Attributes a microbatch. `acting`: every acting seed, ordered by id.
///
/// # Sync
/// `contribution` and `probe` make one device-to-host copy, the others none.
pub(crate) fn attribute(
    mode: AttributionMode,
    model: &GraftedModel,
    acting: &[Acting],
    batch: &Batch,
) -> Result<Attribution, Error> {
    if acting.is_empty() {
        return Ok(Attribution::host_only());
    }
    let scores = match mode {
        AttributionMode::HostOnly => return Ok(Attribution::host_only()),
        AttributionMode::Stage => by_stage(acting),
        AttributionMode::Alpha => by_alpha(acting),
        AttributionMode::Contribution => by_contribution(model, acting, batch)?,
        AttributionMode::Probe => by_probe(model, acting, batch)?,
    };
    if let Some(weights) = scores.weights(acting) {
        return Ok(Attribution::new(mode, weights)?);
    }
    match by_alpha(acting).weights(acting) {
        Some(weights) => Ok(Attribution::new(AttributionMode::Alpha, weights)?),
        None => Ok(Attribution::host_only()),
    }
}

struct Scores {
    host: f64,
    seeds: Vec<f64>,
}

impl Scores {
    /// Shares of 1; none when the scores are no basis for them.
    fn weights(&self, acting: &[Acting]) -> Option<Vec<(SeedId, f64)>> {
        let sum = self.host + self.seeds.iter().sum::<f64>();
        let usable = |score: &f64| score.is_finite() && *score >= 0.0;
        if !(sum.is_finite() && sum > 0.0 && usable(&self.host) && self.seeds.iter().all(usable)) {
            return None;
        }
        Some(acting.iter().zip(&self.seeds).map(|(acting, score)| (acting.seed, score / sum)).collect())
    }
}

fn by_stage(acting: &[Acting]) -> Scores {
    let score = |acting: &Acting| match acting.stage {
        SeedStage::Blending => 0.5,
        SeedStage::Holding | SeedStage::Fossilized => 1.0,
        SeedStage::Dormant
        | SeedStage::Germinated
        | SeedStage::Training
        | SeedStage::Pruned
        | SeedStage::Embargoed
        | SeedStage::Resetting => 0.0,
    };
    Scores { host: 1.0, seeds: acting.iter().map(score).collect() }
}

fn by_alpha(acting: &[Acting]) -> Scores {
    Scores { host: 1.0, seeds: acting.iter().map(|acting| acting.alpha.get()).collect() }
}

fn by_contribution(model: &GraftedModel, acting: &[Acting], batch: &Batch) -> Result<Scores, Error> {
    let mut order = Vec::new();
    let mut squares = Vec::new();
    let mut host_entries = Vec::new();
    let mut last_slot: Option<usize> = None;
    model.observe(&batch.inputs, &mut |seed, h, share| {
        // The host's value is what the first seed of a slot sees; a later one sees another slot or the sum so far.
        let slot = model.slot_index(seed);
        if last_slot != slot {
            host_entries.push(squares.len());
            squares.push(h.sqr()?.sum_all()?);
            last_slot = slot;
        }
        order.push((seed, squares.len()));
        squares.push(share.sqr()?.sum_all()?);
        Ok(())
    })?;
    let norms: Vec<f64> = read_f32(&Tensor::stack(&squares, 0)?)?.into_iter().map(|s| f64::from(s).sqrt()).collect();
    let norm_of = |acting: &Acting| {
        let entry = order.iter().find(|(seed, _)| *seed == acting.seed);
        entry.map_or(f64::NAN, |&(_, index)| norms[index])
    };
    let host = host_entries.iter().map(|&index| norms[index]).sum();
    Ok(Scores { host, seeds: acting.iter().map(norm_of).collect() })
}

fn by_probe(model: &GraftedModel, acting: &[Acting], batch: &Batch) -> Result<Scores, Error> {
    let loss = |overrides: &[AlphaOverride]| -> Result<Tensor, Error> {
        let logits = model.forward(&batch.inputs, Pass::Evaluate { overrides })?.logits;
        Ok(cross_entropy(&logits, &batch.targets)?)
    };
    let mut losses = vec![loss(&[])?];
    for acting in acting {
        losses.push(loss(&[AlphaOverride { seed: acting.seed, alpha: Alpha::ZERO }])?);
    }
    let losses: Vec<f64> = read_f32(&Tensor::stack(&losses, 0)?)?.into_iter().map(f64::from).collect();
    let (on, off) = losses.split_first().expect("the loss with all seeds was pushed first");
    Ok(Scores { host: *on, seeds: off.iter().map(|off| (off - on).abs()).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acting(alphas: &[f64]) -> Vec<Acting> {
        let seed = |(index, &alpha): (usize, &f64)| Acting {
            seed: SeedId(u32::try_from(index).unwrap() + 1),
            stage: SeedStage::Blending,
            alpha: Alpha::new(alpha).unwrap(),
        };
        alphas.iter().enumerate().map(seed).collect()
    }

    #[track_caller]
    fn check(host: f64, seeds: &[f64], expected: Option<&[f64]>) {
        let acting = acting(&vec![1.0; seeds.len()]);
        let weights = Scores { host, seeds: seeds.to_vec() }.weights(&acting);
        let weights = weights.map(|weights| weights.into_iter().map(|(_, weight)| weight).collect::<Vec<_>>());
        assert_eq!(weights.as_deref(), expected);
    }

    #[test]
    fn scores_become_shares_of_one_or_nothing() {
        check(1.0, &[1.0, 2.0], Some(&[0.25, 0.5]));
        check(0.0, &[2.0], Some(&[1.0]));
        check(1.0, &[0.0], Some(&[0.0]));
        check(0.0, &[0.0], None);
        check(f64::NAN, &[1.0], None);
        check(1.0, &[f64::INFINITY], None);
        check(1.0, &[-0.5, 1.0], None);
    }

    #[test]
    fn alpha_is_shared_with_a_host_of_one() {
        let acting = acting(&[0.5, 1.0]);
        assert_eq!(by_alpha(&acting).weights(&acting).unwrap(), [(SeedId(1), 0.2), (SeedId(2), 0.4)]);
    }
}
