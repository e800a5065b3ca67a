//! Attribution of a batch and of its samples, in the mode asked for or the one that remains.

use leyline::batch::Batch;
use leyline::seed::{Attribution, AttributionMode};
use leyline::task::Task;

use crate::attribution::shares::{Acting, Scores};
use crate::attribution::{AttributionScope, SampleAttribution, measured};
use crate::error::Error;
use crate::graft::GraftedModel;

/// Attributes a batch. `acting`: every acting seed, ordered by id.
///
/// # Sync
/// As the mode.
pub(crate) fn attribute(
    mode: AttributionMode,
    scope: AttributionScope,
    model: &GraftedModel,
    acting: &[Acting],
    batch: &Batch,
    task: Option<&dyn Task>,
) -> Result<Attribution, Error> {
    if scope == AttributionScope::Sample && is_measured(mode) {
        return Ok(attribute_samples(mode, model, acting, batch, task)?.mean()?);
    }
    if acting.is_empty() || mode == AttributionMode::HostOnly {
        return Ok(Attribution::host_only());
    }
    match scores(mode, AttributionScope::Batch, model, acting, batch, task)?.into_shares() {
        Some(shares) => weighted(mode, acting, shares),
        None => by_alpha(acting),
    }
}

/// Attributes each sample of a batch.
///
/// # Sync
/// As the mode.
pub(crate) fn attribute_samples(
    mode: AttributionMode,
    model: &GraftedModel,
    acting: &[Acting],
    batch: &Batch,
    task: Option<&dyn Task>,
) -> Result<SampleAttribution, Error> {
    let num_samples = batch.num_samples();
    if acting.is_empty() || !is_measured(mode) {
        let attribution = attribute(mode, AttributionScope::Batch, model, acting, batch, task)?;
        return Ok(SampleAttribution::repeated(&attribution, num_samples));
    }
    match scores(mode, AttributionScope::Sample, model, acting, batch, task)?.into_shares() {
        Some(shares) => {
            let seeds = acting.iter().map(|acting| acting.seed).collect();
            Ok(SampleAttribution::new(mode, num_samples, seeds, shares))
        }
        None => Ok(SampleAttribution::repeated(&by_alpha(acting)?, num_samples)),
    }
}

/// Whether samples of one batch may have different shares.
fn is_measured(mode: AttributionMode) -> bool {
    match mode {
        AttributionMode::HostOnly | AttributionMode::Stage | AttributionMode::Alpha => false,
        AttributionMode::Contribution | AttributionMode::Probe => true,
    }
}

fn scores(
    mode: AttributionMode,
    scope: AttributionScope,
    model: &GraftedModel,
    acting: &[Acting],
    batch: &Batch,
    task: Option<&dyn Task>,
) -> Result<Scores, Error> {
    match mode {
        AttributionMode::HostOnly => Ok(Scores { host: vec![1.0], seeds: vec![0.0; acting.len()] }),
        AttributionMode::Stage => Ok(Scores::by_stage(acting)),
        AttributionMode::Alpha => Ok(Scores::by_alpha(acting)),
        AttributionMode::Contribution => measured::by_contribution(model, acting, batch, scope),
        AttributionMode::Probe => {
            let task = task.ok_or(Error::NoTask { what: "`attribution = \"probe\"`" })?;
            measured::by_probe(model, acting, (batch, task), scope)
        }
    }
}

fn by_alpha(acting: &[Acting]) -> Result<Attribution, Error> {
    match Scores::by_alpha(acting).into_shares() {
        Some(shares) => weighted(AttributionMode::Alpha, acting, shares),
        None => Ok(Attribution::host_only()),
    }
}

fn weighted(used: AttributionMode, acting: &[Acting], shares: Vec<f64>) -> Result<Attribution, Error> {
    let weights = acting.iter().zip(shares).map(|(acting, share)| (acting.seed, share)).collect();
    Ok(Attribution::new(used, weights)?)
}
