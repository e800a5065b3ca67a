//! The checkpoint of a run that is wanted.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use tolaria::checkpoint::{CheckpointError, CheckpointReader, Loaded, Signing, Snapshot, StdFs};

use crate::exit::UsageError;
use crate::report::{SUMMARY_FILE, Tested, Which};

/// Name of the seed manager's part of a checkpoint.
pub(crate) const SEEDS: &str = "seeds";
/// And of the optimizer's.
const OPTIMIZER: &str = "optimizer";

/// The newest checkpoint in the folder of a run that verifies; what is passed over for it is told.
///
/// # Errors
/// [`UsageError`] when there is none; when none can be read.
pub(crate) fn newest_checkpoint(run_dir: &Path, signing: Option<Signing>) -> anyhow::Result<Loaded> {
    load(run_dir, signing, CheckpointReader::load_latest)
}

/// The checkpoint of the network that the run came to: the one that was tested or, where none was, the newest.
///
/// # Errors
/// As [`newest_checkpoint`]; [`UsageError`] when the checkpoint is not the one that was tested.
pub(super) fn result_checkpoint(
    run_dir: &Path,
    tested: Option<Tested>,
    signing: Option<Signing>,
) -> anyhow::Result<Loaded> {
    let Some(tested) = tested else { return newest_checkpoint(run_dir, signing) };
    let (which, loaded) = match tested.network {
        Which::Best => ("best", load(run_dir, signing, CheckpointReader::load_pinned)?),
        Which::Last => ("newest", newest_checkpoint(run_dir, signing)?),
    };
    let found = loaded.snapshot.meta.step;
    if found != tested.step {
        let (shown, step) = (run_dir.display(), tested.step);
        return Err(UsageError(format!(
            "{shown}: {SUMMARY_FILE} says that the network of step {step} was tested, but the {which} checkpoint is of step {found}; \
             expected the checkpoints of this run"
        ))
        .into());
    }
    Ok(loaded)
}

/// Where averages of parameters were kept, they are the network: what was evaluated.
fn put_averages(snapshot: &mut Snapshot) {
    let Some(optimizer) = snapshot.components.get(OPTIMIZER).cloned() else { return };
    let Some(seeds) = snapshot.components.get_mut(SEEDS) else { return };
    for (name, average) in tolaria::optim::averages(&optimizer) {
        if let Some(parameter) = seeds.tensors.get_mut(name) {
            *parameter = average.clone();
        }
    }
}

fn load(
    run_dir: &Path,
    signing: Option<Signing>,
    which: fn(&CheckpointReader) -> Result<Option<Loaded>, CheckpointError>,
) -> anyhow::Result<Loaded> {
    let dir = run_dir.join("checkpoints");
    let nothing = || {
        let shown = run_dir.display();
        UsageError(format!("{shown} has no checkpoint; expected a folder that `esper train` wrote, after an epoch"))
    };
    if !dir.is_dir() {
        return Err(nothing().into());
    }
    let loaded = which(&CheckpointReader::new(&dir, Arc::new(StdFs)).with_signing(signing));
    let mut loaded = loaded.with_context(|| format!("reading {}", dir.display()))?.ok_or_else(nothing)?;
    put_averages(&mut loaded.snapshot);
    for (generation, reason) in &loaded.skipped {
        tracing::warn!("checkpoint {generation} does not verify and is passed over: {reason}");
    }
    Ok(loaded)
}
