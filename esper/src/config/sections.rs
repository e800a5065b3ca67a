//! What the command can be told: the sections of a configuration file.

use std::collections::BTreeMap;
use std::fmt;
use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::path::{Path, PathBuf};

use kasmina::host::HostConfig;
use serde::de;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tamiyo::{PolicyKind, TamiyoConfig};
use tolaria::batch::GpuDataset;
use tolaria::task::TaskConfig;
use tolaria::trainer::{TrainConfig, TrainPrecision};

use super::load::{gather, peek};
use super::network::{self, SeedsConfig};
use super::{Alternative, ConfigError, Diagnostic, Issue, Layer, Loaded, load};
use crate::data::{self, DataConfig, DataName};

/// The whole configuration of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EsperConfig {
    /// How long, from which seed, on which device.
    pub run: RunConfig,
    /// Which samples.
    pub data: DataConfig,
    /// What the network is trained for; without it what the targets ask for.
    #[serde(default, skip_serializing_if = "TaskConfig::is_auto")]
    pub task: TaskConfig,
    /// Which checkpoints are kept.
    pub checkpoint: CheckpointConfig,
    /// What is recorded.
    pub telemetry: TelemetryConfig,
    /// Host network: one table named after its kind, without the sizes that follow from the data.
    pub host: HostConfig,
    /// Seed manager.
    pub seeds: SeedsConfig,
    /// Policy.
    #[serde(default)]
    pub policy: TamiyoConfig,
    /// Trainer.
    pub train: TrainConfig,
}

/// The `[run]` section.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunConfig {
    /// Passes over the training part.
    pub epochs: NonZeroU64,
    /// Optimizer steps after which the run ends, if that is before the end of its epochs; absent trains all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_steps: Option<NonZeroU64>,
    /// Seed of everything random in training; the division of the data has its own.
    pub seed: u64,
    /// `cpu` or `cuda:N`.
    pub device: DeviceName,
    /// Whether data are kept on the GPU: `on`, `off`, or `auto`, where they fit into `gpu_dataset_mib`.
    #[serde(default)]
    pub gpu_dataset: GpuDataset,
    /// What `auto` may put on the GPU, MiB.
    #[serde(default = "default_gpu_dataset_mib")]
    pub gpu_dataset_mib: u32,
    /// Run folder; chosen by the command when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out: Option<PathBuf>,
}

fn default_gpu_dataset_mib() -> u32 {
    4096
}

/// The `[checkpoint]` section.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckpointConfig {
    /// Epochs between two checkpoints; the end of the run always has one.
    pub every_epochs: NonZeroU64,
    /// Optimizer steps between two checkpoints, beside those at the end of epochs; absent writes none between.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every_steps: Option<NonZeroU64>,
    /// Checkpoints that are kept; the newest one that verifies is never deleted.
    pub keep_last: NonZeroUsize,
    /// Whether the checkpoint with the lowest validation loss is kept beside them; then its network is what the run comes to.
    pub keep_best: bool,
    /// Whether training goes on while a checkpoint is written; absent in what earlier versions wrote, which waited.
    #[serde(default = "yes")]
    pub in_background: bool,
}

fn yes() -> bool {
    true
}

/// The `[telemetry]` section.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TelemetryConfig {
    /// Writes one JSON object per packet to `packets.jsonl` of the run folder.
    pub jsonl: bool,
    /// Writes packets in the wire format to `packets.bin` of the run folder.
    pub frames: bool,
    /// Packets that may wait for the writer; more are dropped and counted.
    pub queue_packets: NonZeroUsize,
    /// Most MiB of each of the two files. A full one is kept as `packets.1.bin` and `packets.1.jsonl`, in the place of the one before.
    pub max_mib: NonZeroU32,
}

const BASE: &str = include_str!("defaults/base.toml");

/// Sections in which one choice excludes the settings of another.
pub(super) const ALTERNATIVES: &[Alternative] = &[
    Alternative { path: "host", tag: None, filled_in: &HostConfig::OPEN_SIZES },
    Alternative { path: "task", tag: Some("kind"), filled_in: &[] },
    Alternative { path: "train.optimizer", tag: Some("kind"), filled_in: &[] },
    Alternative { path: "train.schedule.decay", tag: Some("kind"), filled_in: &[] },
    Alternative { path: "train.sampler", tag: Some("kind"), filled_in: &[] },
];

impl EsperConfig {
    /// Merges the defaults, those of the data set, the file and the flags, and validates the result.
    ///
    /// # Errors
    /// [`ConfigError`], naming the place, the key and what is accepted.
    pub fn load(file: Option<&Path>, flags: Vec<Layer>) -> Result<Loaded<Self>, ConfigError> {
        Self::from_layers(Self::given(file, flags)?)
    }

    /// As [`EsperConfig::load`], with the file as a layer.
    ///
    /// # Errors
    /// As [`EsperConfig::load`].
    pub fn from_layers(given: Vec<Layer>) -> Result<Loaded<Self>, ConfigError> {
        load(Self::with_defaults(given), ALTERNATIVES, Self::issues)
    }

    /// As [`EsperConfig::load`], but returns the mistakes beside which others can be looked for.
    /// `more` are defaults that follow from the data.
    pub(crate) fn gather(
        file: Option<&Path>,
        flags: Vec<Layer>,
        more: Vec<Layer>,
    ) -> Result<(Loaded<Self>, Vec<Diagnostic>), ConfigError> {
        let given = Self::given(file, flags)?;
        let num_given = given.len();
        let mut layers = Self::with_defaults(given);
        let at = layers.len() - num_given;
        layers.splice(at..at, more);
        gather(layers, ALTERNATIVES, Self::issues)
    }

    fn given(file: Option<&Path>, flags: Vec<Layer>) -> Result<Vec<Layer>, ConfigError> {
        let mut given: Vec<Layer> = file.map(Layer::file).transpose()?.into_iter().collect();
        given.extend(flags);
        Ok(given)
    }

    fn with_defaults(given: Vec<Layer>) -> Vec<Layer> {
        let base = Layer::defaults("every data set", BASE);
        let mut layers = vec![base];
        // A name that nobody knows gets no layer of its own; it is refused below, at its place.
        let [name, format] = peek(&given, ["data.name", "data.format"]);
        let name = name.or_else(|| peek(&layers, ["data.name"])[0].take());
        let data = name.and_then(|name| DataName::parse(&name)).map(DataConfig::new);
        layers.extend(data.into_iter().flat_map(|data| defaults_of(DataConfig { format: format.clone(), ..data })));
        layers.extend(given);
        layers
    }

    /// The configuration when nothing but the data set is said.
    pub fn defaults_for(name: &DataName) -> Self {
        let flag = Layer::text_flag("--data", "data.name", &name.to_string()).expect("a dotted key");
        Self::from_layers(vec![flag]).expect("the defaults are valid, see the tests").config
    }

    fn issues(&self) -> Vec<Issue> {
        let mut issues = Vec::new();
        for error in self.data.validate() {
            let issue = match error {
                data::Error::Config { key, problem } => Issue::new(key, problem),
                other => Issue::new("data", other.to_string()),
            };
            issues.push(issue);
        }
        issues.extend(network::issues(&self.host, &self.seeds));
        if self.seeds.isolation.check_every_epochs == 0 && self.policy.policy != PolicyKind::Off {
            let problem = "expected at least 1, or `policy.policy` to be `off`: isolation that is never checked is not measured, and no gate lets a seed train";
            issues.push(Issue::new("seeds.isolation.check_every_epochs", problem));
        }
        issues.extend(self.gates_that_never_open());
        if self.run.gpu_dataset == GpuDataset::On && !self.train.execution.data_on_device {
            let problem = "expected `auto` or `off` beside `train.execution.data_on_device = false`, its older name";
            issues.push(Issue::new("run.gpu_dataset", problem));
        }
        let of_policy = self.policy.validate().err().unwrap_or_default();
        issues.extend(of_policy.into_iter().map(|issue| Issue::new(format!("policy.{}", issue.key), issue.message)));
        let of_trainer = self.train.validate().into_iter();
        let expected = |(key, accepted)| Issue::new(format!("train.{key}"), format!("expected {accepted}"));
        issues.extend(of_trainer.map(expected));
        issues
    }

    /// What runs that train at the same time in one process cannot each have for themselves.
    pub(crate) fn shared_by(&self, jobs: NonZeroUsize) -> Option<Issue> {
        let is_shared = jobs.get() > 1 && self.train.precision == TrainPrecision::Tf32;
        let problem = "is `tf32`, a switch of the process, by which what runs at the same time evaluate in `f32` would be rounded too: expected \
                       another precision, or `--jobs 1`";
        is_shared.then(|| Issue::new("train.precision", problem))
    }

    /// Gates that open later than the policy culls what they do not let pass.
    fn gates_that_never_open(&self) -> impl Iterator<Item = Issue> {
        let (rules, gates) = (&self.policy.heuristic, self.seeds.gate_epochs());
        let stages = [
            ("training", gates.training, rules.training.max_epochs),
            ("holding", gates.holding, rules.holding.max_epochs),
        ];
        let is_asked = self.policy.policy == PolicyKind::Heuristic;
        stages.into_iter().filter(move |(_, least, most)| is_asked && least > most).map(|(stage, least, most)| {
            let problem = format!(
                "is {least}: expected at most {most}, `policy.heuristic.{stage}.max_epochs`, after which the policy culls a seed whose gate is shut"
            );
            Issue::new(format!("seeds.gates.{stage}_min_epochs"), problem)
        })
    }
}

/// What holds for a data set: of its own section, and of the others.
fn defaults_of(data: DataConfig) -> [Layer; 2] {
    let (shown, others) = match &data.name {
        DataName::File(_) if data.holds_tokens() => ("text and tokens", include_str!("defaults/tokens.toml")),
        DataName::Digits => ("digits", include_str!("defaults/digits.toml")),
        DataName::Mnist1d => ("mnist1d", include_str!("defaults/mnist1d.toml")),
        DataName::Mnist => ("mnist", include_str!("defaults/mnist.toml")),
        DataName::FashionMnist => ("fashion-mnist", include_str!("defaults/fashion-mnist.toml")),
        DataName::File(_) => ("files of one's own", include_str!("defaults/file.toml")),
    };
    let data = toml::to_string(&BTreeMap::from([("data", DataConfig { format: None, ..data })]))
        .expect("settings that TOML can hold");
    [Layer::defaults(shown, &data), Layer::defaults(shown, others)]
}

/// A device by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceName {
    /// `cpu`.
    Cpu,
    /// `cuda:N`.
    Cuda(usize),
}

impl DeviceName {
    /// What may be written for a device.
    pub const ACCEPTED: &'static [&'static str] = &["cpu", "cuda:N"];

    /// The device of this name.
    pub fn parse(name: &str) -> Option<Self> {
        match name.strip_prefix("cuda:") {
            None => (name == "cpu").then_some(Self::Cpu),
            Some(index) if index.bytes().all(|byte| byte.is_ascii_digit()) => index.parse().ok().map(Self::Cuda),
            Some(_) => None,
        }
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(index) => write!(f, "cuda:{index}"),
        }
    }
}

impl Serialize for DeviceName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for DeviceName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        Self::parse(&name).ok_or_else(|| de::Error::unknown_variant(&name, Self::ACCEPTED))
    }
}
