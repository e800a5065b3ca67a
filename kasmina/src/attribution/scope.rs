//! What shares are measured over.

use serde::{Deserialize, Serialize};

/// What shares are measured over.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttributionScope {
    /// The batch as a whole.
    #[default]
    Batch,
    /// Each sample; the batch gets the mean.
    Sample,
}
