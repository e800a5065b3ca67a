//! The trainer: epochs of optimizer steps, evaluation on held-out data, decisions, checkpoints.
//!
//! ```text
//!   Sampler ─► window of microbatches ─► step (in a region) ─► finish_step        … for every optimizer step
//!   validation data ─► evaluate, each live seed on and off ─► evidence ─► gates
//!   samples that confirm ─► each seed that would pass, once ─► confirmation ─► gates
//!   SystemState ─► Policy ─► orders ─► SeedManager::apply                         … at the end of every epoch
//!   EpochReport ─► Observer, Recorder, checkpoint
//! ```
//!
//! Start reading at [`Trainer::run`]; one optimizer step is in `step.rs`, how many share a launch in
//! `launch.rs`, what of them may be recorded in `region.rs`, what they read in `inputs.rs`, the graphs of its steps in `executor.rs` (whether it runs eagerly or as one is decided in
//! [`esper_graph::execute`]), the end of an epoch in `boundary.rs`.

mod precision;
mod loss_scale;
mod config;
mod run;
mod facts;
mod splits;
mod step;
mod launch;
mod cut;
mod region;
mod feed;
mod inputs;
mod executor;
mod execution_log;
mod sums;
mod gradients;
mod evaluate;
mod evaluations;
mod confirm;
mod boundary;
mod setup;
mod stop;
mod state;
mod saver;
mod saving;
mod recovery;
mod ring;
mod rollback;
mod culprit;
mod divergence;
mod safety;
mod instruments;
mod gradient_instruments;
mod observer;
pub mod phase;
pub mod report;

pub use config::{ExecutionConfig, StepMode, TrainConfig};
pub use esper_safety::{BreakerConfig, Emergency, Level, Origin, SignalFile};
pub use evaluate::{Evaluation, HeldOut, Probe, evaluate};
pub use loss_scale::LossScaleConfig;
pub use observer::{Flow, NullObserver, Observer, RunEvent, SoFar, StepReport};
pub use precision::TrainPrecision;
pub use recovery::RecoveryConfig;
pub use rollback::{RolledBack, Tier};
pub use run::{Checkpoints, Outcome, Parts, Resumed, Splits, Trainer};
pub use safety::SafetyConfig;
pub use saver::MAX_CHECKPOINTS_IN_FLIGHT;
pub use state::epochs_begun;
pub use stop::{Best, EarlyStopConfig, StepEvaluation};
