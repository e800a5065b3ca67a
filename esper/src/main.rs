//! The `esper` command: parses, runs, maps the result to an exit code.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use esper::cli::Cli;
use esper::{exit, graphs, logging, threads};

fn main() -> ExitCode {
    let asked = Cli::try_parse();
    logging::init(asked.as_ref().is_ok_and(Cli::records_phases));
    threads::settle();
    match asked {
        Ok(cli) => graphs::settle().and_then(|()| cli.run()).unwrap_or_else(|error| exit::report(&error)),
        Err(usage) => exit::usage(&usage),
    }
}
