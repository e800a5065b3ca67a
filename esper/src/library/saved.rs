//! The weights of one seed in the saved state of a seed manager.
//!
//! Of the saved document only the fields below are looked at. Tensors are named `seed.0007.down.weight`; those of a
//! seed's way of blending, `seed.0007.gate.weight`, are no part of its blueprint.

use anyhow::Context as _;
use candle_core::{DType, Device, Tensor};
use esper_weights::HostTensor;
use leyline::durable::SavedState;
use leyline::id::{BlueprintId, SeedId};
use serde::Deserialize;

use crate::exit::UsageError;

/// The parts of the saved document that say which seeds there are.
#[derive(Debug, Deserialize)]
struct Document {
    seeds: Vec<SavedSeed>,
}

/// A seed of the saved state.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct SavedSeed {
    pub(super) id: SeedId,
    pub(super) blueprint: BlueprintId,
    pub(super) stage: String,
    weights_pending: bool,
}

/// A seed with its weights, in the order of their names.
///
/// # Errors
/// [`UsageError`] with the seeds that there are, when this one is unknown, was removed, waits for weights itself, or has
/// weights that a library cannot hold.
pub(super) fn weights(state: &SavedState, seed: SeedId) -> anyhow::Result<(SavedSeed, Vec<HostTensor>)> {
    let document: Document = serde_json::from_str(&state.json).context("reading the seeds of the checkpoint")?;
    let own = |seed: &SavedSeed| {
        let prefix = format!("seed.{:04}.", seed.id.0);
        let tensors = state.tensors.iter();
        tensors.filter_map(move |(name, tensor)| {
            let name = name.strip_prefix(&prefix).filter(|name| !name.starts_with("gate."))?;
            Some((name.to_owned(), tensor))
        })
    };
    let has_weights = |seed: &&SavedSeed| !seed.weights_pending && own(seed).next().is_some();
    let Some(found) = document.seeds.iter().filter(has_weights).find(|saved| saved.id == seed) else {
        let known: Vec<String> = document.seeds.iter().filter(has_weights).map(describe).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        let problem = match document.seeds.iter().find(|saved| saved.id == seed) {
            None => "is not in the checkpoint".to_owned(),
            Some(saved) if saved.weights_pending => "waits for weights itself".to_owned(),
            Some(saved) => format!("is {} and has no weights", saved.stage),
        };
        return Err(UsageError(format!("--seed {}: {seed} {problem}; seeds with weights: {known}", seed.0)).into());
    };
    let tensors = own(found).map(|(name, tensor)| to_host(seed, name, tensor)).collect::<anyhow::Result<_>>()?;
    Ok((found.clone(), tensors))
}

fn describe(seed: &SavedSeed) -> String {
    format!("{} ({}, {})", seed.id.0, seed.blueprint, seed.stage)
}

/// Exact: `f32`, and `bf16`, which is its upper half.
#[expect(clippy::disallowed_methods, reason = "a checkpoint is read on the CPU, where no device is waited for")]
fn to_host(seed: SeedId, name: String, tensor: &Tensor) -> anyhow::Result<HostTensor> {
    let dtype = tensor.dtype();
    if !matches!(dtype, DType::F32 | DType::BF16) {
        let message = format!(
            "--seed {}: `{name}` of {seed} has elements of {}; libraries hold f32, and only f32 and bf16 become that \
             without rounding",
            seed.0,
            dtype.as_str()
        );
        return Err(UsageError(message).into());
    }
    let values = tensor.to_device(&Device::Cpu)?.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?;
    Ok(HostTensor { name, shape: tensor.dims().to_vec(), values })
}
