//! What is confirmed before a run creates anything; `esper check-config` does that alone.

use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use candle_core::Device;
use clap::Args;
use kasmina::Kasmina;
use tamiyo::PolicyKind;
use tolaria::batch::num_windows;

use crate::config::sizes::{self, Room, Sized};
use crate::config::{ConfigError, Diagnostic, EsperConfig, Issue, Layer, Loaded};
use crate::data::{self, DataConfig, DataName, Prepared, Table};
use crate::{library, output, wire};

/// Flags of `esper check-config`.
#[derive(Debug, Clone, Args)]
pub struct CheckArgs {
    /// TOML file.
    pub file: PathBuf,
    /// Settings on top of the file, as for `esper train`.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
}

/// A configuration that can run, with its data.
#[derive(Debug)]
pub struct Checked {
    /// The configuration.
    pub loaded: Loaded<EsperConfig>,
    /// The data that it names.
    pub prepared: Prepared,
    /// What works, and hardly as it was meant.
    pub warnings: Vec<Diagnostic>,
}

/// Runs `esper check-config`.
///
/// # Errors
/// As [`check`].
pub fn command(args: &CheckArgs) -> anyhow::Result<ExitCode> {
    let checked = check(Some(&args.file), Layer::flags(Vec::new(), &args.set)?)?;
    tell_data(&checked.prepared);
    warn(&checked.warnings);
    output::print(&checked.loaded.to_toml()?)?;
    Ok(ExitCode::SUCCESS)
}

/// Tells what was decided about the data, and why.
pub fn tell_data(prepared: &Prepared) {
    output::tell(&prepared.notes.iter().map(|note| format!("data: {note}\n")).collect::<String>());
}

/// Tells the warnings.
pub fn warn(warnings: &[Diagnostic]) {
    output::tell(&warnings.iter().map(|warning| format!("warning: {warning}\n")).collect::<String>());
}

/// Reads a configuration and everything that it refers to: data, device, library, and the names of slots and blueprints.
/// Nothing is written.
///
/// # Errors
/// [`ConfigError`] with every mistake that can be found at once.
pub fn check(file: Option<&Path>, flags: Vec<Layer>) -> Result<Checked, ConfigError> {
    let (mut loaded, mut mistakes) = EsperConfig::gather(file, flags.clone(), Vec::new())?;
    let mut issues = Vec::new();
    let data = &loaded.config.data;
    let load = |data| data::load(data).map_err(|error| unloadable(data, error));
    let loading = wire::misfit_of_host(&loaded.config).map_or_else(|| load(data), Err);
    let mut prepared = loading.map_err(|issue| issues.push(issue)).ok();
    if let (Some(prepared), true) = (&mut prepared, is_sized(data)) {
        let sizes = sizes_of(file, &flags, &prepared.splits.train)?;
        (loaded, mistakes) = EsperConfig::gather(file, flags, vec![sizes::layer(&sizes)])?;
        prepared.notes.extend(sizes::taken(&sizes, &loaded));
    }
    let config = &loaded.config;
    issues
        .extend(wire::device(config.run.device).err().map(|problem| Issue::new("run.device", format!("is {problem}"))));
    let library = config.seeds.library.as_ref().map(library::open);
    issues.extend(library.and_then(Result::err).into_iter().flatten());
    if let Some(prepared) = &prepared {
        issues.extend(network(config, &prepared.splits.train));
        issues.extend(wire::task(config, prepared, &Device::Cpu).err());
        issues.extend(wire::augment(config, &prepared.splits.train).err());
        issues.extend(wire::misfit_of_sampler(config, &prepared.splits.train));
    }
    // What is wrong by itself is wrong beside the data too, and was told already.
    issues.retain(|issue| mistakes.iter().all(|told| told.key != issue.key));
    mistakes.extend(issues.into_iter().map(|issue| loaded.locate(issue)));
    match prepared {
        Some(prepared) if mistakes.is_empty() => {
            let train = &prepared.splits.train;
            let warnings = doubts(config, train.num_samples()).into_iter().chain(no_room(config, train));
            let warnings = warnings.map(|issue| loaded.locate(issue)).collect();
            Ok(Checked { loaded, prepared, warnings })
        }
        _ => Err(ConfigError::Invalid(mistakes)),
    }
}

/// Whether sizes follow from the data: the hosts of the small sets are starved on purpose.
pub(crate) fn is_sized(data: &DataConfig) -> bool {
    !matches!(data.name, DataName::Digits | DataName::Mnist1d)
}

/// The layer of sizes that follow from the data of a configuration; none where these cannot be read.
pub(crate) fn layer_of_sizes(file: Option<&Path>, flags: &[Layer], data: &DataConfig) -> Option<Layer> {
    let prepared = data::load(data).ok()?;
    Some(sizes::layer(&sizes_of(file, flags, &prepared.splits.train).ok()?))
}

fn sizes_of(file: Option<&Path>, flags: &[Layer], train: &Table) -> Result<Vec<Sized>, ConfigError> {
    let mut sizes = sizes::of_data(train);
    let (loaded, _) = EsperConfig::gather(file, flags.to_vec(), vec![sizes::layer(&sizes)])?;
    let network = wire::kasmina_config(&loaded.config, train).ok();
    let room = network.and_then(|network| Room::of(&network, &Kasmina::preview(&network).ok()?));
    sizes.extend(room.iter().flat_map(sizes::of_network));
    Ok(sizes)
}

/// A warning where no seed fits into what may grow.
fn no_room(config: &EsperConfig, train: &Table) -> Option<Issue> {
    if config.policy.policy != PolicyKind::Heuristic {
        return None;
    }
    let network = wire::kasmina_config(config, train).ok()?;
    let room = Room::of(&network, &Kasmina::preview(&network).ok()?)?;
    room.too_small(config).map(|(key, problem)| Issue::new(key, problem))
}

fn unloadable(config: &DataConfig, error: data::Error) -> Issue {
    match error {
        data::Error::Config { key, problem } => Issue::new(key, problem),
        other => {
            let name = &config.name;
            Issue::new("data.name", format!("is `{name}`, which cannot be used: {:#}", anyhow::Error::new(other)))
        }
    }
}

/// What does not fit the data, and names that the network does not have.
fn network(config: &EsperConfig, train: &Table) -> Vec<Issue> {
    let kasmina = match wire::kasmina_config(config, train) {
        Ok(kasmina) => kasmina,
        Err(issues) => return issues,
    };
    match Kasmina::preview(&kasmina) {
        Ok(slots) => {
            let issues = config.policy.validate_for(&slots).err().unwrap_or_default();
            issues.into_iter().map(|issue| Issue::new(format!("policy.{}", issue.key), issue.message)).collect()
        }
        Err(kasmina::Error::Config { issues }) => issues.into_iter().map(Issue::of_network).collect(),
        Err(error) => vec![Issue::new("host", format!("cannot be built: {error}"))],
    }
}

/// Sizes that are larger than what they are sizes of.
fn doubts(config: &EsperConfig, num_samples: usize) -> Vec<Issue> {
    let (batch, schedule, epochs) = (&config.train.batch, &config.train.schedule, config.run.epochs.get());
    let (size, of_step) = (batch.batch_size.get(), batch.samples_per_step());
    let steps = num_windows(num_samples, batch) as u64;
    let max_steps = config.run.max_steps.map_or(u64::MAX, NonZeroU64::get);
    let num_steps = steps.saturating_mul(epochs).min(max_steps);
    let mut doubts = Vec::new();
    if size > num_samples {
        let problem =
            format!("is {size}, but the training part has {num_samples} samples: every step takes all of them");
        doubts.push(Issue::new("train.batch.batch_size", problem));
    } else if of_step > num_samples {
        let problem = format!(
            "is {}, {of_step} samples a step, but the training part has {num_samples}: an epoch is one step of fewer \
             microbatches",
            batch.microbatches_per_step
        );
        doubts.push(Issue::new("train.batch.microbatches_per_step", problem));
    }
    if schedule.warmup_steps > num_steps {
        let problem = format!(
            "is {}, but the run has {num_steps} steps ({steps} in an epoch): the learning rate never reaches {}",
            schedule.warmup_steps, schedule.learning_rate
        );
        doubts.push(Issue::new("train.schedule.warmup_steps", problem));
    }
    doubts
}
