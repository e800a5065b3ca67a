//! `esper check-config`: reads a configuration as `esper train` would, and says what is wrong with it.

use std::process::ExitCode;

use crate::cli::CheckArgs;
use crate::config::{EsperConfig, Layer};
use crate::output;

/// Runs the sub-command.
///
/// # Errors
/// [`ConfigError`](crate::config::ConfigError) with every mistake that can be found at once.
pub fn command(args: &CheckArgs) -> anyhow::Result<ExitCode> {
    let flags = args.set.iter().map(|setting| Layer::set(setting)).collect::<Result<Vec<_>, _>>()?;
    let loaded = EsperConfig::load(Some(&args.file), flags)?;
    output::print(&loaded.to_toml()?)?;
    Ok(ExitCode::SUCCESS)
}
