//! How often isolation is checked during a run, and what a violation leads to.

use serde::{Deserialize, Serialize};

/// The monitor's part of the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct IsolationConfig {
    /// Epochs from one check to the next: the batch of `inspect_batch`, the first of the epoch, is checked, if a seed trains
    /// in the shadow then, and in any case when one does that was never checked (count). Where a caller skips that, the
    /// first batch that is attributed is. With 0 there are no checks, and the gates let no seed train or blend.
    pub check_every_epochs: u64,
    /// Whether a violation is an error; if not, it is counted and reported.
    pub strict: bool,
}

impl Default for IsolationConfig {
    fn default() -> Self {
        Self { check_every_epochs: 4, strict: false }
    }
}
