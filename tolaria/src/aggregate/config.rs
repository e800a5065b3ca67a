//! How conflicts between owners are resolved.

use serde::{Deserialize, Serialize};

/// How the gradients of one accumulation window become one gradient.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConflictResolution {
    /// The mean over samples; conflicts are not looked for.
    #[default]
    Mean,
    /// Each owner's gradient loses what points against another owner's (PCGrad).
    PcGrad,
}
