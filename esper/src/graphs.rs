//! Whether this process captures graphs at all, how far it rewrites them, and whether their kernels start early.

use std::env;

use anyhow::Context as _;
use esper_graph::{BadSwitch, GraphManager, GraphMode};

use crate::exit::UsageError;

/// Takes over the environment variables [`GraphMode::SWITCH`], [`GraphManager::FUEL`] and [`GraphManager::OVERLAP`]. They belong to the process and
/// not to the configuration: a run may be taken up again with another setting, and gives the same result.
///
/// # Errors
/// [`UsageError`] for a value that means nothing, with those that are accepted.
pub fn settle() -> anyhow::Result<()> {
    let value = |name: &str| env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    let refused = |error: BadSwitch| UsageError(error.to_string());
    let mode = GraphMode::from_switch(value(GraphMode::SWITCH).as_deref()).map_err(refused);
    if let Some(mode) = mode.context("starting")? {
        GraphManager::global().set_mode(mode);
    }
    let fuel = GraphManager::fuel_from(value(GraphManager::FUEL).as_deref()).map_err(refused);
    GraphManager::global().set_fuel(fuel.context("starting")?);
    let overlap = GraphManager::overlap_from(value(GraphManager::OVERLAP).as_deref()).map_err(refused);
    if let Some(overlap) = overlap.context("starting")? {
        GraphManager::global().set_overlap(overlap);
    }
    Ok(())
}
