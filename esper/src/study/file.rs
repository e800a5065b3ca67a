//! The file of a study: every run with what it was made by, so that only runs of the same origin are taken over.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::ops::Add;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use esper_disk::{StdFs, replace_file};
use esper_layers::operations::Operations;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::arms::Arm;
use crate::bench::BUILD;
use crate::exit::UsageError;
use crate::{data, output, run};

/// One run of the study.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Run {
    pub(super) data: String,
    pub(super) policy: String,
    pub(super) seed: u64,
    pub(super) test_accuracy: f64,
    pub(super) test_loss: f64,
    pub(super) steps: u64,
    /// How long training took, evaluations and decisions included; unknown of runs of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) seconds: Option<f64>,
    /// Operations of training, evaluations and decisions included; of runs of earlier versions and on a GPU unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) operations: Option<Counted>,
    /// Accuracy and loss on the validation data, as they were evaluated last, at the end of the run; unknown of runs of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) validation: Option<(f64, f64)>,
    pub(super) parameters: usize,
    pub(super) num_fossilized: usize,
    /// Seeds that germinated; unknown of runs of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) num_germinated: Option<u64>,
    /// Seeds for which the samples that confirm were read; none where nothing is confirmed, and unknown of runs of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) num_confirmations: Option<u64>,
    /// What each of them found, in the order of seeds: the p-value of "the mean gain is at most the least that matters".
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) p_values: Vec<f64>,
    /// Why no seed of this run could have been confirmed, whatever it was worth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) unconfirmable: Option<String>,
    /// The settings that were given.
    #[serde(default)]
    pub(super) set: Vec<String>,
    /// Unknown of runs of earlier versions and of programs that cannot read themselves; such runs are not taken over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) origin: Option<Origin>,
}

/// Operations of products, as [`esper_layers::operations`] counts them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Counted {
    pub(super) training: u64,
    pub(super) evaluation: u64,
    /// Of seeds in the shadow, and of evaluations with a seed on or off.
    pub(super) looking: u64,
}

impl Counted {
    pub(super) fn total(&self) -> u64 {
        self.training + self.evaluation + self.looking
    }
}

impl Add for Counted {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            training: self.training + other.training,
            evaluation: self.evaluation + other.evaluation,
            looking: self.looking + other.looking,
        }
    }
}

impl From<Operations> for Counted {
    fn from(Operations { training, evaluation, looking }: Operations) -> Self {
        Self { training, evaluation, looking }
    }
}

impl Run {
    /// Whether it is the run of this arm, by its names.
    pub(super) fn has_name_of(&self, arm: &Arm) -> bool {
        self.data == arm.data && self.policy == arm.policy && self.seed == arm.seed
    }

    /// Whether training the arm with the program `build` would come to the same. Reads data where nothing else differs.
    fn has_origin_of(&self, arm: &Arm, build: Option<&str>) -> anyhow::Result<bool> {
        let Some(origin) = self.origin.as_ref() else { return Ok(false) };
        let (config, network) = (run::whole_digest(&arm.config), network_of(arm));
        if build != Some(&origin.build) || origin.config != config || origin.network != network {
            return Ok(false);
        }
        Ok(data::load(&arm.config.data)?.digest.to_string() == origin.data)
    }
}

/// What a run was made by. With the same, another run comes to the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Origin {
    /// The commit of the program; where its sources differed from it, or it is unknown, a digest of the program.
    build: String,
    /// Digest of the whole configuration.
    config: String,
    /// Digest of the data, as they were divided.
    data: String,
    /// Digest of the learned policy, where one decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    network: Option<String>,
}

impl Origin {
    /// Of a run of the program `build`, where that is known, on data with this digest.
    pub(super) fn of(build: Option<&str>, arm: &Arm, data: &data::Prepared) -> Option<Self> {
        let (config, data) = (run::whole_digest(&arm.config), data.digest.to_string());
        Some(Self { build: build?.to_owned(), config, data, network: network_of(arm) })
    }
}

fn network_of(arm: &Arm) -> Option<String> {
    arm.network.as_ref().map(|held| held.digest.clone())
}

/// What this program is, for [`Origin`].
pub(super) fn build() -> Option<String> {
    if let Some(commit) = BUILD.commit.filter(|_| BUILD.is_known()) {
        return Some(commit.to_owned());
    }
    let mut hasher = blake3::Hasher::new();
    let program = std::env::current_exe().and_then(File::open);
    let read = program.and_then(|mut program| std::io::copy(&mut program, &mut hasher));
    read.ok().map(|_| format!("program {}", hasher.finalize().to_hex()))
}

/// The file of a study, and what it holds of others.
#[derive(Debug)]
pub(super) struct RunFile {
    path: PathBuf,
    /// Whether it is replaced as a whole; a device is written to.
    is_file: bool,
    /// Runs that are none of this study, as they were found.
    others: Vec<Value>,
}

impl RunFile {
    /// Reads the file at `path`, and makes it where there is none. With it come the runs of `arms` that need not be trained again;
    /// that others must be is told.
    ///
    /// # Errors
    /// When it can be neither read nor written, holds anything but runs, or the data of a run that is in it cannot be read.
    pub(super) fn open(path: &Path, arms: &[Arm], build: Option<&str>) -> anyhow::Result<(Self, Vec<Run>)> {
        let shown = format!("--out {}", path.display());
        let writable = OpenOptions::new().append(true).create(true).open(path);
        writable.map_err(|error| UsageError(format!("{shown}: {error}; expected a file")))?;
        let is_file = path.is_file();
        let text = if is_file { fs::read_to_string(path) } else { Ok(String::new()) };
        let text = text.map_err(|error| UsageError(format!("{shown}: {error}; expected runs of a study")))?;
        let text = if text.trim().is_empty() { "[]" } else { &text };
        let expected = |error| UsageError(format!("{shown}: {error}; expected runs of a study, or no such file"));
        let runs: Vec<Run> = serde_json::from_str(text).map_err(expected)?;
        let values: Vec<Value> = serde_json::from_str(text).map_err(expected)?;

        let mut taken: Vec<Option<Run>> = vec![None; arms.len()];
        let (mut others, mut differ) = (Vec::new(), BTreeSet::new());
        for (run, value) in runs.into_iter().zip(values) {
            match arms.iter().position(|arm| run.has_name_of(arm)) {
                Some(place) if taken[place].is_none() && run.has_origin_of(&arms[place], build)? => {
                    taken[place] = Some(run);
                }
                place => {
                    differ.extend(place.filter(|place| run.set == arms[*place].set));
                    others.push(value);
                }
            }
        }
        let num_again = differ.into_iter().filter(|place| taken[*place].is_none()).count();
        if num_again > 0 {
            output::tell(&format!(
                "{shown}: {num_again} runs of another or unknown build, configuration or data stay in the file and are trained again\n"
            ));
        }
        // What a link points to is replaced, not the link.
        let path = if is_file { fs::canonicalize(path)? } else { path.to_owned() };
        let (file, taken) = (Self { path, is_file, others }, taken.into_iter().flatten().collect::<Vec<Run>>());
        if is_file {
            // What cannot be replaced is told before anything is trained.
            file.keep(&taken)
                .map_err(|error| UsageError(format!("--out: {error:#}; expected a file that can be replaced")))?;
        }
        Ok((file, taken))
    }

    /// Writes what was done so far, beside what was there: wholly or not at all.
    pub(super) fn keep(&self, runs: &[Run]) -> anyhow::Result<()> {
        let runs: Result<Vec<Value>, _> = runs.iter().map(serde_json::to_value).collect();
        let all: Vec<Value> = self.others.iter().cloned().chain(runs?).collect();
        let text = serde_json::to_string_pretty(&all)? + "\n";
        let written =
            if self.is_file { replace_file(&StdFs, &self.path, text.as_bytes()) } else { fs::write(&self.path, text) };
        written.with_context(|| format!("writing {}", self.path.display()))
    }
}
