//! One run in a table of many: from its small files alone, so that a folder of hundreds is listed at once.

use std::collections::BTreeMap;
use std::path::Path;

use leyline::seed::SeedStage;
use leyline::state::ACCURACY;
use serde::Serialize;

use super::settings::Settings;
use crate::report::{
    self, CONFIG_FILE, METRICS_FILE, ReportError, RunRecord, SUMMARY_FILE, Summary, count, decimal, percent, printable,
};

/// A run of a list; what is not known of it is absent.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Row {
    /// Its folder.
    pub(crate) dir: String,
    /// `completed`, `interrupted`, `diverged`, `failed`; `unfinished` while it trains and where it was killed; `damaged` where
    /// its files cannot be read.
    pub(crate) state: &'static str,
    pub(crate) name: Option<String>,
    pub(crate) data: Option<String>,
    pub(crate) policy: Option<String>,
    pub(crate) seed: Option<u64>,
    pub(crate) started_unix_ms: Option<u64>,
    /// Completed.
    pub(crate) epochs: Option<u64>,
    /// On the test data, nats per sample or what the task measures its loss in.
    pub(crate) test_loss: Option<f64>,
    /// On the test data.
    pub(crate) test_measures: BTreeMap<String, f64>,
    /// Permanent at the end.
    pub(crate) seeds_kept: Option<u64>,
    /// Of the network that was tested; of the last one where none was.
    pub(crate) parameters: Option<u64>,
    pub(crate) wall_s: Option<f64>,
    /// Why it failed or diverged, or what is wrong with its files.
    pub(crate) problem: Option<String>,
}

impl Row {
    /// The run in a folder; none in a folder that no run has begun in.
    pub(crate) fn read(dir: &Path) -> Option<Self> {
        let shown = printable(&dir.display().to_string());
        let is_begun = dir.join(CONFIG_FILE).is_file() || dir.join(SUMMARY_FILE).is_file();
        match Self::read_whole(dir) {
            Ok(row) => Some(Self { dir: shown, ..row }),
            Err(ReportError::NotARun { .. }) if !is_begun => None,
            Err(error) => {
                let problem = Some(printable(&format!("{:#}", anyhow::Error::new(error))));
                Some(Self { dir: shown, state: "damaged", problem, ..Self::default() })
            }
        }
    }

    fn read_whole(dir: &Path) -> Result<Self, ReportError> {
        let record = report::read_record(dir)?;
        let policy = Settings::read(dir)?.get("policy.policy").map(|policy| policy.trim_matches('"').to_owned());
        Ok(match report::read_summary(dir)? {
            Some(summary) => Self::ended(record, policy, summary),
            None => {
                // Lines are written in one piece, line break included.
                let metrics = report::read(dir, METRICS_FILE)?.unwrap_or_default();
                let epochs = metrics.iter().filter(|&&byte| byte == b'\n').count() as u64;
                Self { epochs: Some(epochs), state: "unfinished", ..Self::begun(record, policy) }
            }
        })
    }

    fn begun(record: RunRecord, policy: Option<String>) -> Self {
        Self {
            name: Some(record.run_id.to_string()),
            data: Some(printable(&record.data.name)),
            policy: policy.map(|policy| printable(&policy)),
            seed: Some(record.seed),
            started_unix_ms: Some(record.started_unix_ms),
            ..Self::default()
        }
    }

    fn ended(record: RunRecord, policy: Option<String>, summary: Summary) -> Self {
        let kept = summary.seeds.iter().filter(|seed| seed.stage == SeedStage::Fossilized).count() as u64;
        let parameters = summary.tested_parameters();
        let accuracy = summary.test_accuracy.map(|accuracy| (ACCURACY.to_owned(), accuracy));
        // Of a folder from elsewhere the names may be anything.
        let measures = summary.test_measures.into_iter().map(|(name, value)| (printable(&name), value));
        Self {
            state: summary.outcome.name(),
            epochs: Some(summary.epochs),
            test_loss: summary.test_loss,
            test_measures: measures.chain(accuracy).collect(),
            seeds_kept: Some(kept),
            parameters: Some(parameters),
            wall_s: Some(summary.wall_s),
            problem: summary.reason.map(|reason| printable(&reason)),
            ..Self::begun(record, policy)
        }
    }

    /// Its cells, in the order of the head; absent ones are not known.
    pub(crate) fn cells(&self, measures: &[&str]) -> Vec<Option<String>> {
        let name = self.name.clone().unwrap_or_else(|| self.dir.clone());
        let mut cells = vec![
            Some(name),
            self.data.clone(),
            self.policy.clone(),
            self.seed.map(|seed| seed.to_string()),
            self.epochs.map(count),
            self.test_loss.map(decimal),
        ];
        cells.extend(measures.iter().map(|&measure| Some(show(measure, *self.test_measures.get(measure)?))));
        cells.extend([self.seeds_kept.map(count), self.parameters.map(count), Some(self.state.to_owned())]);
        cells
    }
}

/// A value of this measure for people.
pub(super) fn show(measure: &str, value: f64) -> String {
    if report::is_ratio(measure) { percent(value) } else { decimal(value) }
}

/// Names of everything that one of the runs was measured by, the accuracy first.
pub(crate) fn measures<'a>(rows: impl IntoIterator<Item = &'a Row>) -> Vec<&'a str> {
    let mut names: Vec<&str> = rows.into_iter().flat_map(|row| row.test_measures.keys()).map(String::as_str).collect();
    names.sort_by_key(|&name| (name != ACCURACY, name));
    names.dedup();
    names
}

/// What stands over the cells.
pub(crate) fn head<'a>(measures: &[&'a str]) -> Vec<&'a str> {
    let before = ["name", "data", "policy", "seed", "epochs", "test loss"];
    before
        .into_iter()
        .chain(measures.iter().copied())
        .chain(["seeds kept", "parameters, tested or last", "state"])
        .collect()
}

/// The runs as lines of aligned columns, with what is wrong below them.
pub(crate) fn table(rows: &[Row]) -> String {
    let measures = measures(rows);
    let head = head(&measures);
    let mut lines = vec![head.iter().map(|&cell| cell.to_owned()).collect::<Vec<_>>()];
    lines.extend(
        rows.iter()
            .map(|row| row.cells(&measures).into_iter().map(|cell| cell.unwrap_or_else(|| "–".to_owned())).collect()),
    );
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let mut text = String::new();
    for line in &lines {
        let cells = line.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| {
            // Words to the left, numbers to the right.
            if column < 3 || column + 1 == head.len() { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        text += cells.collect::<Vec<_>>().join("  ").trim_end();
        text.push('\n');
    }
    for row in rows {
        if let Some(problem) = &row.problem {
            text += &format!("{} {}: {problem}\n", row.name.as_ref().unwrap_or(&row.dir), row.state);
        }
    }
    text
}
