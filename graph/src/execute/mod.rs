//! Running a region again and again: eagerly, replayed as it was captured, or replayed as it was compiled.
//!
//! ```text
//!   shape of the step ─► graph kept? ── yes ─► test due? ─► replay, captured or compiled ─┬─ enqueued ─► done
//!                            │ no                                                         └─ refused ─► eagerly, never again
//!                            ▼
//!                     eagerly, under warm-up ─► often enough? ─► record (nothing runs) ─► keep, or refuse with a reason
//! ```
//!
//! An [`Executor`] keeps what can be replayed, by shape, and takes each step exactly once; [`GraphFunction`], [`GraphModel`]
//! and trainers run theirs through one. What was captured is a hypothesis: the region is recorded again before some of the
//! later replays, and compared; who builds on the results asks [`Executor::open_shapes`] first. A captured graph is compiled
//! in the background while it is replayed, and the compiled one takes over once both have left the same results.
//!
//! [`GraphFunction`]: crate::GraphFunction
//! [`GraphModel`]: crate::GraphModel

mod backend;
mod compiling;
mod config;
mod executor;
mod gpu;
mod region;
mod replayable;
mod shape;

pub use backend::Backend;
pub use compiling::{CompileSchedule, Compiler, Notice, Taken};
pub use config::ExecutorConfig;
pub use executor::Executor;
pub use gpu::Gpu;
pub use region::{Failure, Ran, Region, Unconfirmed, Watch};
