//! When and how much of a function is captured and compiled.

use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::execute::{CompileSchedule, ExecutorConfig};
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
    /// Whether what is captured is compiled while it is replayed.
    pub compile: GraphMode,
    /// Replays of a graph before it is compiled.
    pub compile_warmup_calls: u32,
    /// Calls that both graphs take, with results compared, before the compiled one is replayed.
    pub compile_verify_calls: NonZeroU32,
    /// Folder that keeps generated kernels from run to run; absent keeps none.
    pub compile_cache: Option<PathBuf>,
    /// What else the function depends on, as part of each [`GraphKey`](crate::GraphKey).
    pub tags: BTreeMap<String, String>,
}

impl GraphFunctionConfig {
    /// The same for an executor.
    pub(super) fn execution(&self) -> ExecutorConfig {
        let compile =
            CompileSchedule { warmup_steps: self.compile_warmup_calls, verify_steps: self.compile_verify_calls };
        ExecutorConfig {
            is_on: self.mode == GraphMode::Auto,
            warm_up: self.warmup_calls,
            compile: (self.compile == GraphMode::Auto).then_some(compile),
            limit: self.limit,
            max_failures: None,
            keeps_shapes: false,
        }
    }
}

impl Default for GraphFunctionConfig {
    fn default() -> Self {
        Self {
            warmup_calls: NonZeroU32::new(2).expect("2 is not 0"),
            limit: NonZeroUsize::new(8).expect("8 is not 0"),
            mode: GraphMode::default(),
            compile: GraphMode::default(),
            compile_warmup_calls: 8,
            compile_verify_calls: NonZeroU32::new(2).expect("2 is not 0"),
            compile_cache: None,
            tags: BTreeMap::new(),
        }
    }
}
