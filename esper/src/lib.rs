//! The `esper` command as a library: configuration, data, the composition root, the run folder and its report.
//!
//! ```text
//!   flags, file, defaults ─► config ─► data ─► wire (Kasmina + Tamiyo + Tolaria + telemetry) ─► run ─► run folder
//!                                                                                                        │
//!                                                             report.html, summary ◄── report ◄──────────┘
//! ```
//!
//! *Entry points*: [`cli::Cli::run`] for the command, [`wire::assemble`] for a trainer made of the real parts.
//! *Not here*: anything that trains, grows or decides.
#![forbid(unsafe_code)]

pub use esper_data as data;

pub mod cli;
pub mod config;
pub mod wire;
pub mod signature;
pub mod run;
pub mod telemetry;
pub mod progress;
mod phases;
pub mod report;
pub mod serve;
pub mod check;
pub mod library;
pub mod policy;
mod trained;
mod runs;
pub mod bench;
mod diagnose;
mod drill;
pub mod study;
pub mod output;
pub mod exit;
pub mod graphs;
pub mod kernel_cache;
pub mod logging;
pub mod threads;
