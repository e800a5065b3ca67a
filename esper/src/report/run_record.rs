//! `run.json`: where a run came from, written before its first step and when it is resumed.

use leyline::id::RunId;
use serde::{Deserialize, Serialize};

use crate::data::Preparation;
use crate::exit::UsageError;

use crate::bench::BUILD;

/// Everything needed to tell one run from another and to do it again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunRecord {
    /// The run.
    pub run_id: RunId,
    /// What trained it.
    pub versions: Versions,
    /// What it learned from.
    pub data: DataRecord,
    /// Where tensors lived: `cpu`, `cuda:0`.
    pub device: String,
    /// Seed of everything random.
    pub seed: u64,
    /// Milliseconds since 1970-01-01 UTC at which the run was first started.
    pub started_unix_ms: u64,
    /// The newest part of a run that was resumed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed: Option<ResumedRecord>,
    /// Command line that continues the run from its newest checkpoint.
    pub resume_command: String,
    /// Command line that does the same run again, from the merged configuration.
    pub reproduce_command: String,
}

/// When a run was resumed last.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResumedRecord {
    /// Milliseconds since 1970-01-01 UTC at which it was.
    pub unix_ms: u64,
    /// Seconds that the parts before it took. Of a part that was killed those up to its newest checkpoint are known.
    pub earlier_s: f64,
}

/// The program that trained.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Versions {
    /// Version of `esper`.
    pub esper: String,
    /// Compiler, where the build recorded it.
    pub rustc: Option<String>,
    /// Processor and operating system: `x86_64-linux`.
    pub target: String,
    /// Commit of the sources, where the build recorded it.
    pub git_commit: Option<String>,
}

impl Versions {
    /// This program. A build records its compiler by setting `ESPER_RUSTC` in the environment of the compiler, and its commit by
    /// `ESPER_GIT_COMMIT` or by being built from exactly that commit in the repository.
    #[must_use]
    pub fn of_this_build() -> Self {
        Self {
            esper: env!("CARGO_PKG_VERSION").to_owned(),
            rustc: option_env!("ESPER_RUSTC").map(str::to_owned),
            target: format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS),
            git_commit: option_env!("ESPER_GIT_COMMIT")
                .or(BUILD.commit.filter(|_| BUILD.is_known()))
                .map(str::to_owned),
        }
    }
}

/// The data of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataRecord {
    /// Name or path, as configured.
    pub name: String,
    /// Digest of exactly the bytes of all three parts.
    pub digest: String,
    /// Digest of the tokenizer; absent where none turned a text into tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<String>,
    /// Samples that trained (count).
    pub num_train: u64,
    /// Samples that decisions were made on (count).
    pub num_validation: u64,
    /// Samples looked at once, at the end (count).
    pub num_test: u64,
}

impl DataRecord {
    /// Confirms that a text is still turned into tokens as it was: by name, before its tokens are compared.
    ///
    /// # Errors
    /// [`UsageError`] with both digests.
    pub(crate) fn expect_tokenizer(&self, preparation: &Preparation) -> Result<(), UsageError> {
        let found = preparation.tokenizer.as_ref();
        if found.map(|file| &file.digest) == self.tokenizer.as_ref() {
            return Ok(());
        }
        let (source, found) = found.map_or(("none", "none"), |file| (&file.source, &file.digest));
        let expected = self.tokenizer.as_deref().unwrap_or("none");
        let problem = "is not the tokenizer that the run was begun with";
        Err(UsageError(format!("data.tokenizer: {source} {problem}: expected the digest {expected}, found {found}")))
    }
}
