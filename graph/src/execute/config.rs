//! When steps are captured and compiled, and how much is kept.

use std::num::{NonZeroU32, NonZeroUsize};

use super::compiling::CompileSchedule;

/// When steps are captured and compiled, and how much is kept.
#[derive(Debug, Clone)]
pub struct ExecutorConfig {
    /// Whether anything is captured; the manager can switch it off too.
    pub is_on: bool,
    /// Eager steps of a shape before its capture.
    pub warm_up: NonZeroU32,
    /// When captured shapes are compiled; absent where they are not.
    pub compile: Option<CompileSchedule>,
    /// Most graphs held.
    pub limit: NonZeroUsize,
    /// Shapes in a row that could not be captured before no further one is tried; absent tries all.
    pub max_failures: Option<NonZeroU32>,
    /// Whether a shape keeps its inputs and its warm-up when its graph goes. Where it does not, no more shapes than `limit`
    /// are in warm-up.
    pub keeps_shapes: bool,
}
