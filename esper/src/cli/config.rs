//! `esper config`: a file to begin with, and what each setting means.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, Subcommand};

use crate::config::{EsperConfig, Layer, commented, explain, meanings, nearest, origin_of, value_of};
use crate::exit::UsageError;
use crate::{output, whole_file};

/// Sub-commands of `esper config`.
#[derive(Debug, Clone, Subcommand)]
pub(super) enum ConfigCommand {
    /// Write a configuration file with every setting, its meaning and its default, commented out.
    Init(InitArgs),
    /// Tell what a setting means, what it accepts, its default, and where its value comes from; without a key, all of them.
    Explain(ExplainArgs),
}

/// Flags of `esper config init`.
#[derive(Debug, Clone, Args)]
pub(super) struct InitArgs {
    /// Data whose defaults are written, as for `esper train`.
    #[arg(long, value_name = "NAME|PATH")]
    data: Option<String>,
    /// The file.
    #[arg(long, value_name = "FILE", default_value = "esper.toml")]
    out: PathBuf,
    /// Replace a file that is there.
    #[arg(long)]
    force: bool,
}

/// Flags of `esper config explain`.
#[derive(Debug, Clone, Args)]
pub(super) struct ExplainArgs {
    /// Dotted key of a setting, or of a section, whose settings are listed.
    key: Option<String>,
    /// TOML file with settings, as for `esper train`.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Data whose defaults hold.
    #[arg(long, value_name = "NAME|PATH")]
    data: Option<String>,
    /// Settings on top of the file, as for `esper train`.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
}

/// Runs the sub-command.
///
/// # Errors
/// [`UsageError`] for a key that is no setting, with the nearest one, and for a file that is there; what a configuration
/// refuses.
pub(super) fn command(command: &ConfigCommand) -> anyhow::Result<ExitCode> {
    match command {
        ConfigCommand::Init(args) => init(args)?,
        ConfigCommand::Explain(args) => tell(args)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn layers(data: Option<&String>, set: &[String]) -> anyhow::Result<Vec<Layer>> {
    let data = data.and_then(|data| Layer::flag(&format!("--data {data}"), "data.name", data));
    Ok(Layer::flags(data.into_iter().collect(), set)?)
}

fn init(args: &InitArgs) -> anyhow::Result<()> {
    let loaded = EsperConfig::load(None, layers(args.data.as_ref(), &[])?)?;
    let shown = args.out.display();
    if args.out.exists() && !args.force {
        return Err(UsageError(format!("--out {shown} is there; expected a new file, or --force to replace it")).into());
    }
    whole_file::write(&args.out, commented(&loaded.config).as_bytes()).with_context(|| format!("writing {shown}"))?;
    Ok(output::print(&format!("{shown}: {} settings; esper train --config {shown}\n", meanings().len()))?)
}

fn tell(args: &ExplainArgs) -> anyhow::Result<()> {
    let meanings = meanings();
    let Some(key) = args.key.as_deref().filter(|key| meanings.contains_key(*key)) else {
        let section = args.key.as_deref().unwrap_or_default();
        let within =
            |key: &str| section.is_empty() || key.strip_prefix(section).is_some_and(|rest| rest.starts_with('.'));
        let lines: String =
            meanings.iter().filter(|(key, _)| within(key)).map(|(key, text)| format!("{key}\n    {text}\n")).collect();
        if lines.is_empty() {
            let near = nearest(section).map_or_else(String::new, |near| format!("; did you mean `{near}`?"));
            let expected = "expected a setting, or a section such as train.batch; without a key all are listed";
            return Err(UsageError(format!("`{section}` is not a setting{near} {expected}")).into());
        }
        return Ok(output::print(&lines)?);
    };
    let loaded = EsperConfig::load(args.config.as_deref(), layers(args.data.as_ref(), &args.set)?)?;
    let explanation = explain(key).context("a setting has a meaning")?;
    let data = &loaded.config.data.name;
    let not_set = || "not set".to_owned();
    let default = value_of(&EsperConfig::defaults_for(data), key).unwrap_or_else(not_set);
    let value = value_of(&loaded.config, key).unwrap_or_else(not_set);
    Ok(output::print(&format!(
        "{key}\n    {}\n    accepted  {}\n    default   {default} (for {data})\n    value     {value}, from {}\n",
        explanation.meaning,
        explanation.accepted.join("; "),
        origin_of(&loaded, key)
    ))?)
}
