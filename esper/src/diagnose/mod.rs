//! `esper diagnose`: what this machine makes of training steps, looked at with a network of pictures and text.
//!
//! ```text
//!  sizes ─► network, batches ─► checked steps ─► parts ─► modes ─► varying ─► dispatch ─► ablations ─► BenchResult
//! ```
//!
//! The network is made here and trained by functions that are captured (`esper_graph::GraphFunction`); no run, seed or policy takes part.
//! Each section is one file, is printed as soon as it is done, and leaves measurements; what only a GPU can do says so and leaves none.

mod sizes;
mod batch;
mod network;
mod execution;
mod lab;
mod checked;
mod parts;
mod modes;
mod varying;
mod dispatch;
mod command;

pub(crate) use command::{DiagnoseArgs, command};
