//! What a checkpoint holds: the snapshot of a run, its description, and the number it is stored under.

use std::collections::BTreeMap;
use std::fmt;

use leyline::durable::SavedState;
use leyline::id::{EpochIndex, RunId, StepIndex, TopologyRevision};
use serde::{Deserialize, Serialize};

/// Number of a stored snapshot; larger is newer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Generation(pub u64);

impl Generation {
    /// Name of the directory that holds this generation: `gen-00000042`.
    #[must_use]
    pub fn directory_name(self) -> String {
        format!("gen-{:08}", self.0)
    }

    /// Name of the directory while this generation is written or removed: `tmp-00000042`.
    pub(super) fn temporary_name(self) -> String {
        format!("tmp-{:08}", self.0)
    }

    /// The generation whose [`directory_name`](Self::directory_name) is `name`; other spellings of a number are not.
    pub(super) fn from_directory_name(name: &str) -> Option<Self> {
        parse(name, "gen-").filter(|generation| generation.directory_name() == name)
    }

    /// Name of the file beside the generations that keeps this one: `keep-00000042`.
    #[must_use]
    pub fn keep_name(self) -> String {
        format!("keep-{:08}", self.0)
    }

    /// The generation whose [`keep_name`](Self::keep_name) is `name`.
    pub(super) fn from_keep_name(name: &str) -> Option<Self> {
        parse(name, "keep-").filter(|generation| generation.keep_name() == name)
    }

    /// The generation whose temporary name is `name`.
    pub(super) fn from_temporary_name(name: &str) -> Option<Self> {
        parse(name, "tmp-").filter(|generation| generation.temporary_name() == name)
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Where in which run a snapshot was taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SnapshotMeta {
    /// The run.
    pub run_id: RunId,
    /// Epochs completed.
    pub epoch: EpochIndex,
    /// Optimizer steps taken.
    pub step: StepIndex,
    /// Structure of the network.
    pub topology: TopologyRevision,
    /// Calendar time of the snapshot, milliseconds since 1970-01-01 UTC.
    pub created_unix_ms: u64,
    /// Digest of the configuration, so that resuming with another one is noticed. At most 256 bytes, no control
    /// characters; may be empty.
    pub config_digest: String,
}

/// The whole state of a run at one moment.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// Where it was taken.
    pub meta: SnapshotMeta,
    /// State of each component, by the component's name: 1 to 64 characters of `A-Z`, `a-z`, `0-9`, `.`, `_`, `-`.
    pub components: BTreeMap<String, SavedState>,
}

fn parse(name: &str, prefix: &str) -> Option<Generation> {
    name.strip_prefix(prefix)?.parse().ok().map(Generation)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(name: &str, expected: Option<u64>) {
        assert_eq!(Generation::from_directory_name(name), expected.map(Generation), "{name}");
        let temporary = name.replacen("gen", "tmp", 1);
        assert_eq!(Generation::from_temporary_name(&temporary), expected.map(Generation), "{temporary}");
        let keep = name.replacen("gen", "keep", 1);
        assert_eq!(Generation::from_keep_name(&keep), expected.map(Generation), "{keep}");
    }

    #[test]
    fn only_the_canonical_name_of_a_generation_is_one() {
        check("gen-00000042", Some(42));
        check("gen-00000000", Some(0));
        check("gen-123456789", Some(123_456_789));
        check("gen-18446744073709551615", Some(u64::MAX));
        for other in ["gen-42", "gen-000000042", "gen-+0000042", "gen-", "gen-0000004x", "gen-18446744073709551616"] {
            check(other, None);
        }
        for other in ["", "00000042", "Gen-00000042", "gen-00000042 ", "gen-00000042/..", "lock"] {
            assert_eq!(Generation::from_directory_name(other), None, "{other}");
        }
    }
}
