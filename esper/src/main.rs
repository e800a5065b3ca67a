//! The `esper` command: parses, runs, maps the result to an exit code.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use esper::cli::Cli;
use esper::{exit, graphs, logging, threads};

fn main() -> ExitCode {
    let asked = Cli::try_parse();
    let (ranges, missing) = match graphs::ranges() {
        Ok((ranges, missing)) => (ranges, Ok(missing)),
        Err(error) => (None, Err(error)),
    };
    logging::init(asked.as_ref().is_ok_and(Cli::records_phases), ranges);
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
