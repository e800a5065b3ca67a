//! Whether this process captures graphs at all.

use std::env;

use anyhow::Context as _;
use esper_graph::{GraphManager, GraphMode};

use crate::exit::UsageError;

/// Takes over the environment variable [`GraphMode::SWITCH`]. It belongs to the process and not to the configuration:
/// a run may be taken up again with another setting, and gives the same result.
///
/// # Errors
/// [`UsageError`] for a value that means nothing, with those that are accepted.
pub fn settle() -> anyhow::Result<()> {
    let value = env::var_os(GraphMode::SWITCH).map(|value| value.to_string_lossy().into_owned());
    let mode = GraphMode::from_switch(value.as_deref()).map_err(|error| UsageError(error.to_string()));
    if let Some(mode) = mode.context("starting")? {
        GraphManager::global().set_mode(mode);
    }
    Ok(())
}
