//! Whether this process captures graphs at all, how far it rewrites them, whether their kernels start early and their memory is kept, and whether
//! profilers see its phases.

use std::env;

use anyhow::Context as _;
use esper_graph::{BadSwitch, GraphManager, GraphMode, Nvtx};

use crate::exit::UsageError;

/// Takes over the environment variables [`GraphMode::SWITCH`], [`GraphManager::FUEL`], [`GraphManager::OVERLAP`] and [`GraphManager::KEEP_MEMORY`]. They
/// belong to the process and not to the configuration: a run may be taken up again with another setting, and gives the same result.
///
/// # Errors
/// [`UsageError`] for a value that means nothing, with those that are accepted.
pub fn settle() -> anyhow::Result<()> {
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
    let keeps = GraphManager::keep_memory_from(value(GraphManager::KEEP_MEMORY).as_deref()).map_err(refused);
    if let Some(keeps) = keeps.context("starting")? {
        GraphManager::global().set_keeps_memory(keeps);
    }
    Ok(())
}

/// What shows phases as ranges, where [`GraphManager::RANGES`] asks for it, and why there are none where the library is missing: no reason to end.
///
/// # Errors
/// [`UsageError`] for a value that means nothing, with those that are accepted.
pub fn ranges() -> anyhow::Result<(Option<Nvtx>, Option<String>)> {
    let wanted = GraphManager::ranges_from(value(GraphManager::RANGES).as_deref()).map_err(refused);
    Ok(match wanted.context("starting")?.unwrap_or(false).then(Nvtx::load) {
        None => (None, None),
        Some(Ok(ranges)) => (Some(ranges), None),
        Some(Err(missing)) => (None, Some(format!("{}: no ranges for profilers: {missing}", GraphManager::RANGES))),
    })
}

fn value(name: &str) -> Option<String> {
    env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

fn refused(error: BadSwitch) -> UsageError {
    UsageError(error.to_string())
}
