//! What keeps a run going when a part of it does not: calls with deadlines, breakers, emergency levels.
//!
//! ```text
//!  trainer ─► Timed<P>::decide ─► breaker ─► exchange ─► the policy's own thread ─► P::decide
//!                 │ in time: its orders                       │
//!                 └ late: CallError::Late, and what comes ◄───┘ is dropped by its generation; the policy forgets it
//!
//!  limits of the run, an operator ─► Emergency: one level ─► what the trainer may do
//!                                          └─► SignalFile ─► other processes
//! ```
//!
//! *Entry points*: [`Timed`] around any policy, [`Breaker`] before anything that fails, [`Emergency`]. *Not here*: what a
//! trainer does at a level, and when it raises one.
#![forbid(unsafe_code)]

mod sync;
pub mod breaker;
mod exchange;
pub mod timed;
pub mod emergency;
pub mod signal;

pub use breaker::{Breaker, BreakerConfig, BreakerState};
pub use emergency::{Emergency, Level, Origin};
pub use signal::{Signal, SignalFile};
pub use timed::{CallError, Limits, Timed};
