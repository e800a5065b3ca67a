//! `esper config`: a file to begin with, and what each setting means.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use esper_disk::{StdFs, replace_file};

use crate::check::{is_sized, layer_of_sizes};
use crate::config::{
    EsperConfig, Layer, Loaded, Place, commented, explain, meanings, nearest, origin_of, sizes, value_of,
};
use crate::exit::UsageError;
use crate::output;

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
    Ok(Layer::flags(data.into_iter().flat_map(|data| Layer::data(data)).collect(), set)?)
}

/// Sizes that follow from the data.
#[derive(Debug, Clone)]
enum Sizes {
    /// None do.
    None,
    Known(Layer),
    /// The data cannot be read.
    Unknown,
}

/// The configuration as a run would have it, as far as the data can be read.
fn sized(file: Option<&Path>, flags: &[Layer]) -> anyhow::Result<(Loaded<EsperConfig>, Sizes)> {
    let loaded = EsperConfig::load(file, flags.to_vec())?;
    if !is_sized(&loaded.config.data) {
        return Ok((loaded, Sizes::None));
    }
    match layer_of_sizes(file, flags, &loaded.config.data) {
        Some(layer) => Ok((EsperConfig::gather(file, flags.to_vec(), vec![layer.clone()])?.0, Sizes::Known(layer))),
        None => Ok((loaded, Sizes::Unknown)),
    }
}

fn init(args: &InitArgs) -> anyhow::Result<()> {
    let flags = layers(args.data.as_ref(), &[])?;
    let (loaded, sizes) = sized(None, &flags)?;
    let shown = args.out.display();
    if args.out.exists() && !args.force {
        return Err(UsageError(format!("--out {shown} is there; expected a new file, or --force to replace it")).into());
    }
    replace_file(&StdFs, &args.out, commented(&loaded.config).as_bytes())
        .with_context(|| format!("writing {shown}"))?;
    if matches!(sizes, Sizes::Unknown) {
        let (data, keys) = (&loaded.config.data.name, sizes::KEYS.join(", "));
        output::tell(&format!(
            "{data} cannot be read here: {keys} will follow from it, whatever {shown} says of them\n"
        ));
    }
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
    let (file, flags) = (args.config.as_deref(), layers(args.data.as_ref(), &args.set)?);
    let (loaded, sizes) =
        if sizes::KEYS.contains(&key) { sized(file, &flags)? } else { (EsperConfig::load(file, flags)?, Sizes::None) };
    let explanation = explain(key).context("a setting has a meaning")?;
    let data = &loaded.config.data.name;
    let not_set = || "not set".to_owned();
    let name = data.to_string();
    let format = loaded.config.data.format.iter().filter_map(|format| Layer::text_flag("", "data.format", format));
    let of_data = Layer::text_flag("", "data.name", &name).into_iter().chain(format).collect();
    let follows = || "follows from the data, which cannot be read here".to_owned();
    let (default, value) = match sizes {
        Sizes::Unknown if matches!(loaded.provenance.get(key), None | Some(Place::Default { .. })) => {
            (follows(), follows())
        }
        Sizes::Unknown => (follows(), value_of(&loaded.config, key).unwrap_or_else(not_set)),
        Sizes::None | Sizes::Known(_) => {
            let sizes = if let Sizes::Known(layer) = sizes { vec![layer] } else { Vec::new() };
            let (defaults, _) = EsperConfig::gather(None, of_data, sizes)?;
            let shown = |config| value_of(config, key).unwrap_or_else(not_set);
            (shown(&defaults.config), shown(&loaded.config))
        }
    };
    Ok(output::print(&format!(
        "{key}\n    {}\n    accepted  {}\n    default   {default} (for {data})\n    value     {value}, from {}\n",
        explanation.meaning,
        explanation.accepted.join("; "),
        origin_of(&loaded, key)
    ))?)
}
