//! The newest checkpoint of a run.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use tolaria::checkpoint::{CheckpointReader, Loaded, StdFs};

use crate::exit::UsageError;

/// Name of the seed manager's part of a checkpoint.
pub(crate) const SEEDS: &str = "seeds";

/// The newest checkpoint in the folder of a run that verifies; what is passed over for it is told.
///
/// # Errors
/// [`UsageError`] when there is none; when none can be read.
pub(crate) fn newest_checkpoint(run_dir: &Path) -> anyhow::Result<Loaded> {
    let dir = run_dir.join("checkpoints");
    let nothing = || {
        let shown = run_dir.display();
        UsageError(format!("{shown} has no checkpoint; expected a folder that `esper train` wrote, after an epoch"))
    };
    if !dir.is_dir() {
        return Err(nothing().into());
    }
    let loaded = CheckpointReader::new(&dir, Arc::new(StdFs)).load_latest();
    let loaded = loaded.with_context(|| format!("reading {}", dir.display()))?.ok_or_else(nothing)?;
    for (generation, reason) in &loaded.skipped {
        tracing::warn!("checkpoint {generation} does not verify and is passed over: {reason}");
    }
    Ok(loaded)
}
