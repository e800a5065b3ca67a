//! What must hold before a run is resumed. Everything is looked at before anything is written: a refused resume changes no
//! file.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use tolaria::checkpoint::{CheckpointReader, Signing, Snapshot, StdFs};
use tolaria::trainer::report::EpochReport;
use tolaria::trainer::{MAX_CHECKPOINTS_IN_FLIGHT, epochs_begun};

use crate::config::EsperConfig;
use crate::data::Prepared;
use crate::exit::UsageError;
use crate::report::{self, METRICS_FILE, ResumedRecord, RunOutcome, RunRecord, Summary};
use crate::run::folder::RunFolder;
use crate::run::plan;

/// Confirms that the run in `folder` can go on with this configuration and these data, and gives its record with what
/// this resume adds.
///
/// # Errors
/// [`UsageError`] for other data, another configuration, fewer epochs than were begun, or checkpoints that are gone; when a
/// file cannot be read, or no checkpoint verifies.
pub(super) fn check(
    folder: &RunFolder,
    config: &EsperConfig,
    prepared: &Prepared,
    signing: Option<Signing>,
    now_unix_ms: u64,
) -> anyhow::Result<RunRecord> {
    let record = report::read_record(folder.path())?;
    let out = folder.path().display();
    let instead = format!("or a new run: {}", record.reproduce_command);
    record.data.expect_tokenizer(&prepared.preparation)?;
    let data = prepared.digest;
    if record.data.digest != data.to_string() {
        return Err(UsageError(format!(
            "--resume: the run in {out} was begun with other data: `{}` had the digest {}, and has {data} now; \
             expected the data as they were, {instead}",
            record.data.name, record.data.digest
        ))
        .into());
    }
    let summary = report::read_summary(folder.path())?;
    let newest = newest(&folder.checkpoints(), signing)?;
    match &newest {
        Some(newest) => compare(newest, config, folder)?,
        None => expect_no_progress(folder, config, summary.as_ref(), &instead)?,
    }
    let started_unix_ms = record.resumed.as_ref().map_or(record.started_unix_ms, |resumed| resumed.unix_ms);
    let before_s = record.resumed.as_ref().map_or(0.0, |resumed| resumed.earlier_s);
    let killed_s = || {
        let until_unix_ms = newest.as_ref().map_or(started_unix_ms, |newest| newest.meta.created_unix_ms);
        before_s + until_unix_ms.saturating_sub(started_unix_ms) as f64 / 1e3
    };
    let earlier_s = summary.map_or_else(killed_s, |summary| summary.wall_s);
    Ok(RunRecord { resumed: Some(ResumedRecord { unix_ms: now_unix_ms, earlier_s }), ..record })
}

fn newest(checkpoints: &Path, signing: Option<Signing>) -> anyhow::Result<Option<Snapshot>> {
    if !checkpoints.is_dir() {
        return Ok(None);
    }
    let reader = CheckpointReader::new(checkpoints, Arc::new(StdFs)).with_signing(signing);
    let loaded = reader.load_latest().context("resuming")?;
    Ok(loaded.map(|loaded| loaded.snapshot))
}

fn compare(newest: &Snapshot, config: &EsperConfig, folder: &RunFolder) -> anyhow::Result<()> {
    let (saved, given) = (&newest.meta.config_digest, plan::digest(config));
    if *saved != given && *saved != plan::earlier_digest(config) {
        return Err(UsageError(format!(
            "--resume: the newest checkpoint belongs to a configuration with the digest {saved}, but that of {} has \
             {given}; expected the file as the run wrote it",
            folder.config().display()
        ))
        .into());
    }
    let (begun, asked) = (epochs_begun(newest).context("resuming")?, config.run.epochs.get());
    if asked < begun {
        return Err(UsageError(format!(
            "--resume: `run.epochs` is {asked}, but the run has begun {begun}; expected at least {begun}"
        ))
        .into());
    }
    let taken = newest.meta.step.0;
    if let Some(asked) = config.run.max_steps.filter(|asked| asked.get() < taken) {
        return Err(UsageError(format!(
            "--resume: `run.max_steps` is {asked}, but the run has taken {taken} steps; expected at least {taken}"
        ))
        .into());
    }
    Ok(())
}

/// A run without a checkpoint is begun anew, unless it had one: its folder would be written over. The line of an epoch is written
/// before its checkpoint, and so are those of the epochs while which checkpoints may be on their way.
fn expect_no_progress(
    folder: &RunFolder,
    config: &EsperConfig,
    summary: Option<&Summary>,
    instead: &str,
) -> anyhow::Result<()> {
    let metrics = report::read(folder.path(), METRICS_FILE)?.unwrap_or_default();
    let lines =
        metrics.split(|&byte| byte == b'\n').filter_map(|line| serde_json::from_slice::<EpochReport>(line).ok());
    let epochs = lines.map(|report| report.epoch.0).max().unwrap_or(0);
    let num_on_their_way = if config.checkpoint.in_background { MAX_CHECKPOINTS_IN_FLIGHT as u64 } else { 0 };
    let before_the_first = config.checkpoint.every_epochs.get().saturating_mul(1 + num_on_their_way);
    let had_one = summary.is_some_and(|summary| {
        matches!(summary.outcome, RunOutcome::Completed | RunOutcome::Interrupted | RunOutcome::Halted)
    }) || epochs > before_the_first
        || !metrics.is_empty() && !folder.checkpoints().is_dir();
    if !had_one {
        return Ok(());
    }
    Err(UsageError(format!(
        "--resume: {} holds no checkpoint, but {} tells of {epochs} epochs: the checkpoints are gone, and the run would \
         begin anew over its own files; expected the checkpoints back, {instead}",
        folder.checkpoints().display(),
        folder.metrics().display()
    ))
    .into())
}
