//! What can go wrong in the policy.

use leyline::config::ConfigIssue;
use leyline::error::{Error as LeylineError, ErrorKind};
use leyline::id::SeedId;
use leyline::region::RegionError;

use crate::policy::PolicyKind;

/// Error of every function of this crate.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration cannot be used.
    #[error("{}", join(issues))]
    Config {
        /// Everything that is wrong with it.
        issues: Vec<ConfigIssue>,
    },
    /// A region rule was broken.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The seeds of the state are not in strict order of their ids.
    #[error("{seed} is out of order or listed twice in the state: expected seeds in ascending order of id")]
    SeedOrder {
        /// The seed.
        seed: SeedId,
    },
    /// The state of the policy cannot be written down.
    #[error("the state of the policy cannot be saved")]
    Save(#[source] serde_json::Error),
    /// The saved text is not a state of this policy.
    #[error("the saved state of the policy cannot be read")]
    Restore(#[source] serde_json::Error),
    /// The saved state has another format.
    #[error("`format` of the saved policy state is {found}: expected {expected}")]
    RestoreFormat {
        /// The format this build reads.
        expected: u32,
        /// The format found.
        found: u32,
    },
    /// The saved state does not name one policy with its memory.
    #[error("`memory` of the saved policy state cannot be read")]
    RestoreMemory(#[source] serde_json::Error),
    /// The saved state is that of another policy.
    #[error("`memory` was saved by the policy `{found}`: expected `{expected}`, as configured")]
    RestorePolicy {
        /// The configured policy.
        expected: PolicyKind,
        /// The policy that saved.
        found: PolicyKind,
    },
}

impl LeylineError for Error {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Config { .. } => ErrorKind::InvalidConfig,
            Self::Region(error) => error.kind(),
            Self::SeedOrder { .. } => ErrorKind::Rejected,
            Self::Save(_) => ErrorKind::Other,
            Self::Restore(_) | Self::RestoreFormat { .. } | Self::RestoreMemory(_) | Self::RestorePolicy { .. } => {
                ErrorKind::Corrupt
            }
        }
    }
}

fn join(issues: &[ConfigIssue]) -> String {
    issues.iter().map(ConfigIssue::to_string).collect::<Vec<_>>().join("; ")
}
