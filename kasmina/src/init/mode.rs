//! Which initialization.

use serde::{Deserialize, Serialize};

/// How the first layer of a new seed starts; the last one starts at zero in any case.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InitMode {
    /// As the blueprint draws it.
    #[default]
    Zero,
    /// Chosen from a batch, so that the gradient of the last layer is large. Where the manager has seen no batch, or the
    /// blueprint has no such layer, or the slot has more than 784 channels, it starts as drawn.
    ///
    /// # Source
    /// Evci et al. 2022 (arXiv 2201.05125).
    GradMax,
}
