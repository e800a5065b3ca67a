//! The `esper` command: parses, runs, maps the result to an exit code.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use esper::cli::Cli;
use esper::{exit, graphs, logging, threads};

fn main() -> ExitCode {
    logging::init();
    threads::settle();
    match Cli::try_parse() {
        Ok(cli) => graphs::settle().and_then(|()| cli.run()).unwrap_or_else(|error| exit::report(&error)),
        Err(usage) => exit::usage(&usage),
    }
}
