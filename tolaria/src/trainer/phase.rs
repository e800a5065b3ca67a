//! Phases of a run as spans: who wants to know where the time goes subscribes to [`TARGET`].
//!
//! | span | what |
//! |---|---|
//! | `epoch` | one epoch, all of the others but `write` included |
//! | `load` | samples of a step: waited for, gathered or copied |
//! | `plan` | attribution, and what the host computes of a step before it |
//! | `eager` | a step, operation by operation |
//! | `replay` | a step by its graph: host time to load inputs and launch it; recordings and eager steps of new shapes too |
//! | `read` | sums of the epoch; on a GPU the wait for its steps |
//! | `evaluate` | held-out data, with the probes of seeds |
//! | `decide` | the policy, and its orders carried out |
//! | `publish` | telemetry of the epoch |
//! | `checkpoint` | what training waits for a checkpoint |
//! | `write` | a checkpoint on its way to the disk, on a thread of its own |
//!
//! Where nobody subscribes, a span costs a few nanoseconds, and nothing is read from the device for any of them.

/// Target of every span of a phase.
pub const TARGET: &str = "tolaria::phase";

/// Begins a phase, which ends where what it gives goes out of scope.
macro_rules! phase {
    ($name:literal) => {
        tracing::trace_span!(target: $crate::trainer::phase::TARGET, $name).entered()
    };
}

pub(super) use phase;
