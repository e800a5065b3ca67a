//! What a command line asks for: a new run, or the continuation of an old one, with its configuration.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use esper_disk::Fs;
use leyline::id::RunId;

use crate::check::{Checked, check};
use crate::config::{Diagnostic, EsperConfig, Layer, Loaded};
use crate::data::Prepared;
use crate::exit::UsageError;
use crate::run::TrainArgs;
use crate::run::folder::RunFolder;

/// A run that can start.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) loaded: Loaded<EsperConfig>,
    pub(super) prepared: Prepared,
    /// What is told when the run starts.
    pub(super) warnings: Vec<Diagnostic>,
    pub(super) folder: PathBuf,
    /// Name of a new run, unlike that of any other; none for a run that has one.
    pub(super) name: Option<String>,
}

impl Plan {
    /// Reads files and flags; nothing is written.
    pub(super) fn of(args: &TrainArgs, fs: &Arc<dyn Fs>, now_unix_s: u64) -> anyhow::Result<Self> {
        if args.resume {
            return Self::resumed(args, fs);
        }
        let Checked { loaded, prepared, warnings } = check(args.config.as_deref(), flags(args)?)?;
        let random = getrandom::u32().map_err(|error| anyhow::anyhow!("drawing the name of the run: {error}"))?;
        let name = run_name(&loaded.config, now_unix_s, random);
        let folder = loaded.config.run.out.clone().unwrap_or_else(|| Path::new("runs").join(&name));
        Ok(Self { loaded, prepared, warnings, folder, name: Some(name) })
    }

    /// A resumed run keeps the configuration of its folder, but for [`FREE`]: it may be made longer. A file or a flag that
    /// would change anything else is refused, and what they do not say stays.
    fn resumed(args: &TrainArgs, fs: &Arc<dyn Fs>) -> anyhow::Result<Self> {
        let out = args.out.clone().ok_or_else(|| UsageError("--resume: expected --out DIR beside it".to_owned()))?;
        let folder = RunFolder::open(Arc::clone(fs), &out)?;
        let kept = EsperConfig::load(Some(&folder.config()), Vec::new())?;
        let mut over = args.config.as_deref().map(Layer::file).transpose()?.into_iter().collect::<Vec<_>>();
        over.extend(flags(args)?);
        let asked = check(Some(&folder.config()), over)?;
        let Checked { mut loaded, prepared, warnings } = asked;
        let changed = differences(&kept.config, &loaded.config);
        if !changed.is_empty() {
            return Err(UsageError(format!(
                "--resume: a run keeps its configuration, but these settings differ: {}; \
                 expected the values of {}",
                changed.join(", "),
                folder.config().display()
            ))
            .into());
        }
        if !says_shadow_cost(&folder.config())? {
            loaded.config.seeds.shadow_cost = None;
        }
        Ok(Self { loaded, prepared, warnings, folder: out, name: None })
    }
}

/// Whether a run says what a seed in the shadow may cost. One of an earlier version does not: its seeds learn from all samples.
fn says_shadow_cost(file: &Path) -> anyhow::Result<bool> {
    let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let given: toml::Table = text.parse().with_context(|| file.display().to_string())?;
    Ok(given.get("seeds").and_then(|seeds| seeds.get("shadow_cost")).is_some())
}

/// The flags of `esper train` as settings, in their order of strength.
fn flags(args: &TrainArgs) -> anyhow::Result<Vec<Layer>> {
    let mut layers = args.data.iter().flat_map(|data| Layer::data(data)).collect::<Vec<_>>();
    layers.extend(path_flag("tokenizer", "data.tokenizer", args.tokenizer.as_deref().map(Path::new))?);
    layers.extend(path_flag("policy-file", "policy.learned.file", args.policy_file.as_deref())?);
    layers.extend(path_flag("out", "run.out", args.out.as_deref())?);
    let mut flag = |name: &str, key: &str, value: &Option<String>| {
        if let Some(value) = value {
            layers.extend(Layer::flag(&format!("--{name} {value}"), key, value));
        }
    };
    flag("device", "run.device", &args.device);
    flag("gpu-dataset", "run.gpu_dataset", &args.gpu_dataset);
    flag("policy", "policy.policy", &args.policy);
    flag("epochs", "run.epochs", &args.epochs);
    flag("max-steps", "run.max_steps", &args.max_steps);
    flag("seed", "run.seed", &args.seed);
    Ok(Layer::flags(layers, &args.set)?)
}

/// A flag that names a file or a folder. One that a configuration cannot hold would be written to another place.
fn path_flag(name: &str, key: &str, path: Option<&Path>) -> Result<Option<Layer>, UsageError> {
    let Some(path) = path else { return Ok(None) };
    let shown = path.display();
    let text = path.to_str().ok_or_else(|| UsageError(format!("--{name} {shown}: expected a path in UTF-8")))?;
    Ok(Layer::text_flag(&format!("--{name} {shown}"), key, text))
}

/// Dotted paths whose values differ, of those that a resumed run must keep.
fn differences(kept: &EsperConfig, asked: &EsperConfig) -> Vec<String> {
    let mut changed = Vec::new();
    compare("", &to_keep(kept), &to_keep(asked), &mut changed);
    changed
}

/// Settings that a resumed run may change: where it writes, when it ends, how often it looks and which checkpoints it keeps,
/// how its steps reach the device, what they keep for their backward pass, and how long it waits for others. None of them changes a bit of what a step does to the network.
const FREE: [(&str, &[&str]); 5] = [
    ("run", &["out", "epochs", "max_steps", "gpu_dataset", "gpu_dataset_mib"]),
    ("checkpoint", &["every_epochs", "every_steps", "keep_last", "keep_best", "in_background"]),
    ("seeds", &["activation_checkpointing"]),
    ("telemetry", &["max_mib"]),
    ("train", &["execution", "loader", "safety", "early_stop", "eval_every_steps"]),
];

/// Those of [`FREE`] that earlier versions counted among what a run keeps.
const KEPT_BEFORE: &[&str] = &["every_epochs", "keep_last"];

/// The part of a configuration that a resumed run must keep: all but [`FREE`].
fn to_keep(config: &EsperConfig) -> toml::Value {
    without_free(config, &[])
}

fn without_free(config: &EsperConfig, but: &[&str]) -> toml::Value {
    let mut value = toml::Value::try_from(config).expect("a loaded configuration can be written as TOML");
    for (section, keys) in FREE {
        let Some(table) = value.get_mut(section).and_then(toml::Value::as_table_mut) else { continue };
        for key in keys.iter().filter(|key| !but.contains(key)) {
            table.remove(*key);
        }
    }
    value
}

fn compare(path: &str, kept: &toml::Value, asked: &toml::Value, changed: &mut Vec<String>) {
    match (kept, asked) {
        (toml::Value::Table(kept), toml::Value::Table(asked)) => {
            let keys: std::collections::BTreeSet<&String> = kept.keys().chain(asked.keys()).collect();
            for key in keys {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                match (kept.get(key), asked.get(key)) {
                    (Some(kept), Some(asked)) => compare(&path, kept, asked, changed),
                    (kept, asked) => changed.push(format!("{path} ({} → {})", show(kept), show(asked))),
                }
            }
        }
        (kept, asked) if kept != asked => changed.push(format!("{path} ({kept} → {asked})")),
        _ => {}
    }
}

fn show(value: Option<&toml::Value>) -> String {
    value.map_or_else(|| "not set".to_owned(), ToString::to_string)
}

/// A digest of everything that a resumed run must keep.
pub(super) fn digest(config: &EsperConfig) -> String {
    digest_of(&to_keep(config))
}

/// The same as earlier versions took it.
pub(super) fn earlier_digest(config: &EsperConfig) -> String {
    digest_of(&without_free(config, KEPT_BEFORE))
}

/// A digest of all of it.
pub(crate) fn whole_digest(config: &EsperConfig) -> String {
    digest_of(&toml::Value::try_from(config).expect("a loaded configuration can be written as TOML"))
}

fn digest_of(kept: &toml::Value) -> String {
    let text = toml::to_string(kept).expect("a TOML value can be written as TOML");
    blake3::hash(text.as_bytes()).to_hex().to_string()
}

/// `digits-heuristic-0-1732150000-9f3a61c2`: data, policy, seed, seconds since 1970, and a random number, for several runs
/// may start in one second. A long name of the data is cut, so that the whole is the name of a run.
fn run_name(config: &EsperConfig, now_unix_s: u64, random: u32) -> String {
    let rest = format!("-{}-{}-{now_unix_s}-{random:08x}", config.policy.policy, config.run.seed);
    let room = 64_usize.saturating_sub(rest.len()).min(24);
    let data = config.data.name.to_string();
    let stem = Path::new(&data).file_stem().map_or(String::new(), |stem| stem.to_string_lossy().to_lowercase());
    let clean: String =
        stem.chars().filter(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || *c == '-').take(room).collect();
    clean + &rest
}

pub(super) fn run_id(name: &str) -> anyhow::Result<RunId> {
    Ok(RunId::new(name)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::DataName;

    #[test]
    fn the_name_of_a_run_is_its_own_and_accepted_whatever_the_data_are_called() {
        for data in ["digits", "a-very-long-name-of-a-data-set-in-a-file.csv", "ΔΣ.csv"] {
            let mut config = EsperConfig::defaults_for(&DataName::parse(data).unwrap());
            config.run.seed = u64::MAX;
            let names = [1, 2].map(|random| run_name(&config, 1_732_150_000, random));
            assert_ne!(names[0], names[1]);
            assert!(run_id(&names[0]).is_ok(), "{names:?}");
        }
        let config = EsperConfig::defaults_for(&DataName::Digits);
        let expected = format!("digits-heuristic-{}-1732150000-9f3a61c2", config.run.seed);
        assert_eq!(run_name(&config, 1_732_150_000, 0x9f3a_61c2), expected);
    }

    #[test]
    fn a_resumed_run_may_end_and_be_looked_at_in_another_way_but_not_learn_in_another_way() {
        let kept = EsperConfig::defaults_for(&DataName::Digits);
        let mut asked = kept.clone();
        asked.train.execution.mode = tolaria::trainer::StepMode::Eager;
        asked.train.execution.compile_cache = Some("kernels".into());
        asked.train.execution.prefetch = true;
        asked.run.gpu_dataset = tolaria::batch::GpuDataset::Off;
        asked.train.loader.workers = 4;
        asked.train.safety.policy_ms = std::num::NonZeroU64::new(250);
        asked.run.max_steps = std::num::NonZeroU64::new(9);
        asked.train.eval_every_steps = asked.run.max_steps;
        asked.train.early_stop = asked.run.max_steps.map(tolaria::trainer::EarlyStopConfig::new);
        (asked.checkpoint.every_steps, asked.checkpoint.keep_best) = (asked.run.max_steps, false);
        asked.checkpoint.in_background = false;
        // Checkpoints of earlier versions have this digest.
        assert_eq!(earlier_digest(&kept), earlier_digest(&asked));
        assert_ne!(earlier_digest(&kept), digest(&kept));
        asked.checkpoint.every_epochs = asked.checkpoint.every_epochs.saturating_add(1);
        asked.checkpoint.keep_last = asked.checkpoint.keep_last.saturating_add(1);
        assert_eq!(differences(&kept, &asked), Vec::<String>::new());
        assert_eq!(digest(&kept), digest(&asked));
        asked.train.clip_norm = Some(2.0);
        assert_eq!(differences(&kept, &asked), ["train.clip_norm (1.0 → 2.0)"]);
        assert_ne!(digest(&kept), digest(&asked));
    }
}
