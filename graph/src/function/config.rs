//! When and how much of a function is captured.

use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroUsize};

use serde::{Deserialize, Serialize};

use crate::manager::GraphMode;

/// When and how much is captured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GraphFunctionConfig {
    /// Eager calls per input shape before its capture.
    pub warmup_calls: NonZeroU32,
    /// Most graphs held, and most input shapes in warm-up.
    pub limit: NonZeroUsize,
    /// Whether anything is captured; the manager can switch it off too.
    pub mode: GraphMode,
    /// What else the function depends on, as part of each [`GraphKey`](crate::GraphKey).
    pub tags: BTreeMap<String, String>,
}

impl Default for GraphFunctionConfig {
    fn default() -> Self {
        Self {
            warmup_calls: NonZeroU32::new(2).expect("2 is not 0"),
            limit: NonZeroUsize::new(8).expect("8 is not 0"),
            mode: GraphMode::default(),
            tags: BTreeMap::new(),
        }
    }
}
