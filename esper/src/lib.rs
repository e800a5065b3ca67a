//! The `esper` command as a library: configuration, data, the composition root, the run folder and its report.
//!
//! ```text
//!   flags, file, defaults ─► config ─► data ─► wire (Kasmina + Tamiyo + Tolaria + telemetry) ─► run ─► run folder
//!                                                                                                        │
//!                                                             report.html, summary ◄── report ◄──────────┘
//! ```
//!
//! *Entry points*: [`command`] for the program, [`cli::Cli::run`] for what was parsed, [`wire::assemble`] for a trainer made of the real parts.
//! *Not here*: anything that trains, grows or decides.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser as _;

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

/// What the program does: parses its arguments, runs, and maps the result to an exit code.
#[must_use]
pub fn command() -> ExitCode {
    let asked = cli::Cli::try_parse();
    let (ranges, missing) = match graphs::ranges() {
        Ok((ranges, missing)) => (ranges, Ok(missing)),
        Err(error) => (None, Err(error)),
    };
    logging::init(asked.as_ref().is_ok_and(cli::Cli::records_phases), ranges);
    threads::settle();
    let settled = missing.and_then(|missing| {
        missing.iter().for_each(|missing| tracing::warn!("{missing}"));
        graphs::settle()
    });
    match asked {
        Ok(cli) => settled.and_then(|()| cli.run()).unwrap_or_else(|error| exit::report(&error)),
        Err(usage) => exit::usage(&usage),
    }
}
