//! Reads and checks a run folder.

use std::io;
use std::path::{Path, PathBuf};

use esper_disk::{Fs as _, StdFs};
use serde::de::DeserializeOwned;
use tolaria::trainer::report::EpochReport;

use super::format::{count, counted};
use super::printable::{printable, printable_lines};
use super::{ReportError, RunRecord, Summary};

/// The merged configuration.
pub const CONFIG_FILE: &str = "config.toml";
/// Where the run came from: [`RunRecord`].
pub const RECORD_FILE: &str = "run.json";
/// Which rows of a file went where: [`esper_data::Assignment`].
pub const ROWS_FILE: &str = "rows.json";
/// What was learned from the training part: [`esper_data::Preparation`].
pub const PREPARATION_FILE: &str = "preparation.json";
/// One [`EpochReport`] per line.
pub const METRICS_FILE: &str = "metrics.jsonl";
/// What the run came to: [`Summary`].
pub const SUMMARY_FILE: &str = "summary.json";

/// The longest file of a run folder that is read; a line of metrics has some thousand bytes.
const LIMIT_BYTES: u64 = 1 << 30;

/// A run folder in memory.
#[derive(Debug, Clone)]
pub struct Run {
    /// The folder.
    pub dir: PathBuf,
    /// Where the run came from.
    pub record: RunRecord,
    /// The merged configuration, as it stands in the file but for control characters.
    pub config: String,
    /// Completed epochs, in ascending order.
    pub epochs: Vec<EpochReport>,
    /// What it came to; absent while it trains, and when it ended before it could say.
    pub summary: Option<Summary>,
    /// What a reader of the report must know about the files: sentences.
    pub notes: Vec<String>,
}

impl Run {
    /// Reads a folder.
    ///
    /// A run that is still going, or that was killed, has no summary and may have a torn last line of metrics: that line
    /// is left out, and [`Self::notes`] says so.
    ///
    /// # Errors
    /// [`ReportError::NotARun`] without `run.json` or `config.toml`; [`ReportError::Malformed`], with file and line, for
    /// content that cannot have been written by a run, a number that is not finite included; [`ReportError::Read`].
    pub fn read(dir: &Path) -> Result<Self, ReportError> {
        let mut run = Self::read_going(dir)?;
        if run.summary.is_none() && !run.epochs.is_empty() {
            run.notes.push(format!("There is no {SUMMARY_FILE}: the run is still going, or was ended from outside."));
        }
        Ok(run)
    }

    /// As [`read`](Self::read), for who knows that the run is going: what it will write at its end is not missed.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn read_going(dir: &Path) -> Result<Self, ReportError> {
        let record = read_record(dir)?;
        let config = read_config(dir)?;
        let summary = read_summary(dir)?;
        let metrics = read(dir, METRICS_FILE)?.unwrap_or_default();
        let (epochs, torn) = epochs(&dir.join(METRICS_FILE), &metrics)?;
        let notes = notes(&epochs, summary.as_ref(), torn);
        Ok(Self { dir: dir.to_owned(), record, config, epochs, summary, notes })
    }
}

/// Where the run of a folder came from.
///
/// # Errors
/// As [`Run::read`].
pub fn read_record(dir: &Path) -> Result<RunRecord, ReportError> {
    parse(&dir.join(RECORD_FILE), &required(dir, RECORD_FILE)?)
}

/// The merged configuration of a run, but for control characters.
pub(crate) fn read_config(dir: &Path) -> Result<String, ReportError> {
    text(&dir.join(CONFIG_FILE), required(dir, CONFIG_FILE)?)
}

/// What the run of a folder came to; absent while it trains, and when it ended before it could say.
///
/// # Errors
/// As [`Run::read`].
pub fn read_summary(dir: &Path) -> Result<Option<Summary>, ReportError> {
    let path = dir.join(SUMMARY_FILE);
    read(dir, SUMMARY_FILE)?.map(|bytes| parse(&path, &bytes)).transpose()
}

fn required(dir: &Path, file: &'static str) -> Result<Vec<u8>, ReportError> {
    read(dir, file)?.ok_or_else(|| ReportError::NotARun { dir: dir.to_owned(), file })
}

/// The bytes of a file; none when there is no such file.
pub(crate) fn read(dir: &Path, file: &str) -> Result<Option<Vec<u8>>, ReportError> {
    let path = dir.join(file);
    match StdFs.read(&path, LIMIT_BYTES) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
            let source = io::Error::new(error.kind(), format!("expected at most {LIMIT_BYTES} bytes"));
            Err(ReportError::Read { path, source })
        }
        Err(source) => Err(ReportError::Read { path, source }),
    }
}

fn text(path: &Path, bytes: Vec<u8>) -> Result<String, ReportError> {
    match String::from_utf8(bytes) {
        Ok(text) => Ok(printable_lines(&text)),
        Err(error) => {
            let valid = error.utf8_error().valid_up_to();
            let before = &error.as_bytes()[..valid];
            let line = before.iter().filter(|&&byte| byte == b'\n').count() + 1;
            let column = valid - before.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1) + 1;
            Err(ReportError::Malformed {
                path: path.to_owned(),
                line,
                column,
                problem: "not UTF-8; expected text".to_owned(),
            })
        }
    }
}

fn parse<T: DeserializeOwned>(path: &Path, bytes: &[u8]) -> Result<T, ReportError> {
    serde_json::from_slice(bytes).map_err(|error| malformed(path, error.line(), &error))
}

/// The epochs, and the number of the torn last line if there is one.
fn epochs(path: &Path, bytes: &[u8]) -> Result<(Vec<EpochReport>, Option<usize>), ReportError> {
    let mut epochs: Vec<EpochReport> = Vec::new();
    for (index, line) in bytes.split_inclusive(|&byte| byte == b'\n').enumerate() {
        if line.trim_ascii().is_empty() {
            continue;
        }
        let number = index + 1;
        let report: EpochReport = match serde_json::from_slice(line) {
            Ok(report) => report,
            // Lines are written in one piece, line break included: what has none was cut off.
            Err(_) if !line.ends_with(b"\n") => return Ok((epochs, Some(number))),
            Err(error) => return Err(malformed(path, number, &error)),
        };
        if let Some(before) = epochs.last().filter(|before| before.epoch >= report.epoch) {
            let problem = format!("epoch {} after epoch {}; expected ascending epochs", report.epoch, before.epoch);
            return Err(ReportError::Malformed { path: path.to_owned(), line: number, column: 0, problem });
        }
        epochs.push(report);
    }
    Ok((epochs, None))
}

/// The place is in the error already, so the parser's own ` at line L column C` goes.
fn malformed(path: &Path, line: usize, error: &serde_json::Error) -> ReportError {
    let mut problem = printable(&error.to_string());
    if let Some(place) = problem.rfind(" at line ") {
        problem.truncate(place);
    }
    if problem.starts_with("invalid type: null, expected f64") {
        // JSON has no NaN: a number that is not finite is written as null.
        problem = "a number is null, which stands for NaN or infinity; expected a finite number".to_owned();
    }
    ReportError::Malformed { path: path.to_owned(), line, column: error.column(), problem }
}

fn notes(epochs: &[EpochReport], summary: Option<&Summary>, torn: Option<usize>) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(line) = torn {
        notes.push(format!(
            "{METRICS_FILE} ends in the middle of line {line}: the writer was cut off, and that line is left out."
        ));
    }
    let told = summary.into_iter().flat_map(|summary| summary.reason.iter().chain(&summary.warnings));
    notes.extend(told.map(|sentence| printable(sentence)));
    let skipped: u64 = epochs.iter().map(|report| report.skipped_steps).sum();
    if skipped > 0 {
        notes.push(format!(
            "{} changed nothing, because the loss or the gradient was not finite: look for such values in the data.",
            counted(skipped, "optimizer step")
        ));
    }
    match summary {
        None if epochs.is_empty() => notes.push("No epoch was completed yet: there is nothing to draw.".to_owned()),
        None => {}
        Some(summary) => {
            let last = epochs.last().map_or(0, |report| report.epoch.0);
            if summary.epochs != last {
                notes.push(format!(
                    "{SUMMARY_FILE} speaks of {} but {METRICS_FILE} ends at epoch {}: what follows covers what is there.",
                    counted(summary.epochs, "epoch"),
                    count(last)
                ));
            }
        }
    }
    notes
}
