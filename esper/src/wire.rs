//! The composition root: builds the parts of a run and puts them together.

use std::sync::Arc;

use anyhow::Context as _;
use candle_core::Device;
use esper_signing::{CommandKey, Journal, KeyRing, Signed, Verified};
use kasmina::weight::ElementType;
use kasmina::{Kasmina, KasminaConfig};
use leyline::clock::Clock;
use leyline::command::KeyId;
use leyline::id::RunId;
use leyline::model::TrainableModel as _;
use leyline::seed::SeedManager as _;
use leyline::source::{Field, SampleSpec};
use leyline::telemetry::{EventDesc, MetricDesc, Recorder};
use tamiyo::policy::PolicyKind;
use tamiyo::policy::learned::Networks;
use tamiyo::{Tamiyo, TamiyoConfig};
use tolaria::batch::transform::AugmentConfig;
use tolaria::batch::{Dataset, GpuDataset, Placement, SamplerConfig, WeighedBy};
use tolaria::task::{TargetFacts, Task};
use tolaria::trainer::{Checkpoints, Outcome, Parts, Splits, TrainConfig, Trainer};

use crate::config::{DeviceName, EsperConfig, Issue};
use crate::data::{self, Prepared, Table, TargetKind, TargetPlan, Targets};
use crate::exit::UsageError;
use crate::kernel_cache;
use crate::{library, telemetry};

/// The trainer of a run, with the real seed manager and the real policy; orders between them are signed.
pub type EsperTrainer = Trainer<Verified<Kasmina>, Signed<Tamiyo>>;

/// The descriptors of every subsystem, for the catalogue.
pub const DESCRIPTORS: &[(&[&MetricDesc], &[&EventDesc])] = &[
    (tolaria::telemetry::METRICS, tolaria::telemetry::EVENTS),
    (kasmina::telemetry::METRICS, kasmina::telemetry::EVENTS),
    (tamiyo::telemetry::METRICS, tamiyo::telemetry::EVENTS),
    (esper_signing::telemetry::METRICS, esper_signing::telemetry::EVENTS),
    (telemetry::METRICS, &[]),
];

/// What a run has besides its configuration and its data.
#[derive(Debug)]
pub struct Surroundings {
    /// Name of the run.
    pub run_id: RunId,
    /// Durable checkpoints; none are written without it.
    pub checkpoints: Option<Checkpoints>,
    /// Where accepted commands are written down, opened; they are remembered in memory only without it.
    pub command_journal: Option<Journal>,
    /// Where the policy `learned` takes its networks from; no other one asks, see [`crate::policy::networks`].
    pub networks: Option<Box<dyn Networks>>,
    /// Telemetry.
    pub recorder: Arc<dyn Recorder>,
    /// Time.
    pub clock: Arc<dyn Clock>,
}

/// The settings of the policy of a run. The dice are those of the run: two runs do not throw the same; its stages are not shorter than
/// gates allow.
#[must_use]
pub fn policy_config(config: &EsperConfig) -> TamiyoConfig {
    let mut policy = config.policy.clone();
    for seed in [&mut policy.random.seed, &mut policy.learned.seed] {
        *seed = seed.wrapping_add(config.run.seed);
    }
    policy.heuristic.gates = config.seeds.gate_epochs();
    policy
}

/// The policy of a run, with nothing observed yet.
///
/// # Errors
/// When its configuration is refused.
pub fn policy(
    config: &EsperConfig,
    networks: Option<Box<dyn Networks>>,
    clock: Arc<dyn Clock>,
    recorder: Arc<dyn Recorder>,
) -> anyhow::Result<Tamiyo> {
    let policy = Tamiyo::new(policy_config(config), clock, recorder).context("building the policy")?;
    Ok(match networks {
        Some(networks) => policy.with_networks(networks),
        None => policy,
    })
}

/// Builds the trainer of a run.
///
/// # Errors
/// What a part refuses; nothing that [`crate::check::check`] lets pass.
pub fn assemble(config: &EsperConfig, prepared: &Prepared, around: Surroundings) -> anyhow::Result<EsperTrainer> {
    let Surroundings { run_id, checkpoints, command_journal, networks, recorder, clock } = around;
    let data = &prepared.splits;
    let device = device(config.run.device).map_err(UsageError)?;
    let kasmina = kasmina_config(config, &data.train).map_err(unusable)?;
    let store = config.seeds.library.as_ref().map(library::open).transpose().map_err(unusable)?;
    let journal = command_journal;
    if let Some(torn) = journal.as_ref().and_then(Journal::torn_tail) {
        tracing::warn!("command journal: {torn}");
    }
    let (key_id, key) = draw_key(journal.as_ref())?;
    let mut seeds =
        Kasmina::new(kasmina, &device, Arc::clone(&clock), Arc::clone(&recorder)).context("building the network")?;
    if let (Some(config), Some(store)) = (&config.seeds.library, store) {
        let library = seeds.with_library(Arc::new(store), config.for_seeds());
        seeds = library.context("starting the library of weights")?;
    }
    let keys = KeyRing::single(key_id, key.clone());
    let mut seeds = Verified::new(seeds, run_id.clone(), keys, Arc::clone(&clock), Arc::clone(&recorder));
    if let Some(journal) = journal {
        seeds = seeds.with_journal(journal);
    }
    let policy = policy(config, networks, Arc::clone(&clock), Arc::clone(&recorder))?;
    let policy = Signed::new(policy, run_id.clone(), key_id, key, Arc::clone(&clock));
    let augment = augment(config, &data.train).map_err(|issue| unusable(vec![issue]))?;
    let placed = placement(config, data)?;
    let beside = if placed.is_some_and(|placed| placed.is_on_gpu) { &device } else { &Device::Cpu };
    let train = dataset(&data.train, beside)?;
    let task = task(config, prepared, &device).map_err(|issue| unusable(vec![issue]))?;
    let parts = Parts {
        run_id,
        seed: config.run.seed,
        num_epochs: config.run.epochs.get(),
        max_steps: config.run.max_steps,
        data: Splits { train, validation: dataset(&data.validation, beside)?, test: dataset(&data.test, beside)? },
        device,
        task,
        seeds,
        policy,
        checkpoints,
        recorder,
        clock,
    };
    let execution = kernel_cache::settle(config.train.execution.clone());
    // Where nothing grows there is nothing to confirm.
    let kept_back = if config.policy.policy == PolicyKind::Off { 0.0 } else { config.train.confirmation_fraction };
    let train = TrainConfig { execution, augment, confirmation_fraction: kept_back, ..config.train.clone() };
    Trainer::new(train, parts).context("building the trainer")
}

/// Parameters of the network that answers (count): those of seeds that only train in the shadow answer nothing.
pub(crate) fn answering_parameters(trainer: &EsperTrainer) -> usize {
    let segments = trainer.seeds().model().layout().segments().iter();
    segments.filter(|segment| !segment.spec.isolated).map(|segment| segment.len).sum()
}

/// Whether a run that others are compared with went to its end; not where the user ended it.
///
/// # Errors
/// Where it was halted.
pub(crate) fn is_whole(outcome: Outcome) -> anyhow::Result<bool> {
    match outcome {
        Outcome::Completed | Outcome::MaxSteps | Outcome::EarlyStopped => Ok(true),
        Outcome::Interrupted => Ok(false),
        Outcome::Halted => anyhow::bail!("the run was halted, and is not a whole one: see `train.safety`"),
    }
}

/// Where the data of a run on a GPU are; there is nothing to decide on the CPU.
///
/// # Errors
/// When they are to be on the GPU and cannot be.
pub fn placement(config: &EsperConfig, data: &data::Splits) -> anyhow::Result<Option<Placement>> {
    if config.run.device == DeviceName::Cpu {
        return Ok(None);
    }
    let of_targets = |targets: &Targets| match targets {
        Targets::Classes { .. } => 1,
        Targets::Values { names, .. } | Targets::Flags { names, .. } => names.len(),
        Targets::Tokens { window, .. } => *window,
    };
    let words = |table: &Table| table.num_samples() * (table.num_features() + of_targets(table.targets()));
    let num_words: usize = [&data.train, &data.validation, &data.test].into_iter().map(words).sum();
    let on_host = (!config.train.augment.is_off()).then_some("`train.augment`");
    // The older name of `run.gpu_dataset = "off"`.
    let setting = if config.train.execution.data_on_device { config.run.gpu_dataset } else { GpuDataset::Off };
    let placed = setting.place(4 * num_words as u64, u64::from(config.run.gpu_dataset_mib) << 20, on_host);
    let refused = |accepted| UsageError(format!("configuration: `run.gpu_dataset` expected {accepted}"));
    Ok(Some(placed.map_err(refused)?))
}

/// A key for the commands of this process, under an id that the journal does not know.
///
/// Commands live as long as the process, so their key does too: those of an earlier process of the run verify under
/// no key any more. Numbers belong to a key id. A process that resumes from a checkpoint gives out some numbers again
/// that the journal holds for the key of the process before it, so its key must not have the same id.
fn draw_key(journal: Option<&Journal>) -> anyhow::Result<(KeyId, CommandKey)> {
    let mut key = [0_u8; 32];
    getrandom::fill(&mut key).map_err(|error| anyhow::anyhow!("drawing a command key: {error}"))?;
    loop {
        let id = getrandom::u32().map_err(|error| anyhow::anyhow!("drawing the id of a command key: {error}"))?;
        if !journal.is_some_and(|journal| journal.knows(KeyId(id))) {
            return Ok((KeyId(id), CommandKey::new(key)));
        }
    }
}

/// The seed manager's settings: sizes that follow from the data, and the type of parameters that follows from the precision, are filled in.
///
/// # Errors
/// What does not fit the data.
pub(crate) fn kasmina_config(config: &EsperConfig, train: &Table) -> Result<KasminaConfig, Vec<Issue>> {
    let host = config.host.sized(train.num_features(), train.num_outputs());
    let host = host.map_err(|issue| vec![Issue::of_network(issue)])?;
    let dtype = ElementType::of(config.train.precision.of_parameters()).unwrap_or_default();
    let offered_blend = config.policy.blend.clone();
    let kasmina = KasminaConfig { dtype, offered_blend, ..config.seeds.for_host(host, config.run.seed) };
    let issues: Vec<Issue> = kasmina.validate().into_iter().map(Issue::of_network).collect();
    if issues.is_empty() { Ok(kasmina) } else { Err(issues) }
}

/// What the network is trained for, on `device`.
///
/// # Errors
/// Settings that do not fit the targets, or measures that the task does not have.
pub(crate) fn task(config: &EsperConfig, data: &Prepared, device: &Device) -> Result<Arc<dyn Task>, Issue> {
    let task = config.task.task(&facts(&data.preparation.target), device);
    let task = task.map_err(|issue| Issue::new(format!("task.{}", issue.key), issue.message))?;
    config.train.measured(&*task).map_err(|error| match error {
        tolaria::Error::InvalidConfig { key, message } => Issue::new(format!("train.{key}"), message),
        other => Issue::new("train.measures", other.to_string()),
    })?;
    Ok(task)
}

/// What the targets are.
pub(crate) fn facts(plan: &TargetPlan) -> TargetFacts {
    match plan.kind {
        // Earlier versions wrote no counts, which weights of classes alone follow from.
        TargetKind::Classes if plan.class_counts.is_empty() => {
            TargetFacts::Classes { counts: vec![1; plan.names.len()] }
        }
        TargetKind::Classes => {
            TargetFacts::Classes { counts: plan.class_counts.iter().map(|count| *count as u64).collect() }
        }
        // Those that are not scaled are in units of the data as they are.
        TargetKind::Values if plan.scales.is_empty() => TargetFacts::Values { scales: vec![1.0; plan.names.len()] },
        TargetKind::Values => TargetFacts::Values { scales: plan.scales.clone() },
        TargetKind::Flags => TargetFacts::Flags { count: plan.names.len() },
        TargetKind::Tokens => TargetFacts::Tokens {
            vocabulary: plan.vocabulary.unwrap_or(0),
            bytes_per_token: if plan.is_text { Some(1.0) } else { plan.bytes_per_token },
        },
    }
}

fn unusable(issues: Vec<Issue>) -> UsageError {
    let lines = issues.iter().map(|issue| format!("configuration: `{}` {}", issue.key, issue.problem));
    UsageError(lines.collect::<Vec<_>>().join("\n"))
}

/// What is done to samples in every epoch; they are pictures where the data say so.
///
/// # Errors
/// What does not fit the data.
pub(crate) fn augment(config: &EsperConfig, train: &Table) -> Result<AugmentConfig, Issue> {
    let given = config.train.augment.clone();
    let augment = AugmentConfig { picture: given.picture.or_else(|| train.sample_shape().try_into().ok()), ..given };
    let spec = SampleSpec { inputs: Field::f32([train.num_features()]), targets: Field::u32([]) };
    match augment.transforms().iter().find_map(|transform| transform.fits(&spec).err()) {
        None => Ok(augment),
        Some(expected) => Err(Issue::new("train.augment", format!("expected samples of {expected}"))),
    }
}

/// A sampler that asks for what no file says, or for other classes than there are.
pub(crate) fn misfit_of_sampler(config: &EsperConfig, train: &Table) -> Option<Issue> {
    let problem = match &config.train.sampler {
        SamplerConfig::Permutation => return None,
        SamplerConfig::Weighted { by: WeighedBy::Class, class_weights } => match train.targets().kind() {
            TargetKind::Classes => {
                let (found, expected) = (class_weights.as_ref()?.len(), train.num_outputs());
                let problem = || format!("has {found} numbers, expected {expected}, one per class");
                return (found != expected).then(|| Issue::new("train.sampler.class_weights", problem()));
            }
            kind => format!("draws by class, but the targets are {kind}; expected `permutation`"),
        },
        SamplerConfig::Weighted { by: WeighedBy::Source, .. } => {
            "expected `by` to be `class`: no data of the command say the weights of samples".to_owned()
        }
        SamplerConfig::Bucketed { .. } => {
            "expected `permutation` or `weighted`: no data of the command say the lengths of samples".to_owned()
        }
    };
    Some(Issue::new("train.sampler.kind", problem))
}

/// Samples as vectors (N, F): what a host makes of them is its own.
pub(crate) fn dataset(table: &Table, device: &Device) -> anyhow::Result<Dataset> {
    let (inputs, targets) = table.to_tensors(device)?;
    let inputs = inputs.reshape((table.num_samples(), table.num_features()))?;
    Ok(Dataset::new(inputs, targets)?)
}

/// A host that does not take what the data hold, by name; told before a file is read, which may be large.
pub(crate) fn misfit_of_host(config: &EsperConfig) -> Option<Issue> {
    let (data, host) = (&config.data, &config.host);
    let problem = match (data.holds_tokens(), host.context().is_some()) {
        (true, false) => format!("is `{}`, and the data are tokens; expected `language_model`", host.kind()),
        (false, true) => format!(
            "is `{}`, and the data are no tokens; expected `mlp`, or another host that takes numbers",
            host.kind()
        ),
        (true, true) | (false, false) => return None,
    };
    Some(Issue::new("host", problem))
}

/// The device of a name.
///
/// # Errors
/// Why this build or machine does not have it, and what is accepted.
pub fn device(name: DeviceName) -> Result<Device, String> {
    match name {
        DeviceName::Cpu => Ok(Device::Cpu),
        DeviceName::Cuda(_) if !cfg!(feature = "cuda") => {
            Err(format!("{name}: this build has no GPU support; expected cpu, or a build with `--features cuda`"))
        }
        // An own stream, not the per-thread default one: the latter cannot be captured.
        DeviceName::Cuda(index) => Device::new_cuda_with_stream(index)
            .map_err(|error| format!("{name}: {error}; expected cpu or a GPU of this machine")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Layer;

    #[test]
    fn the_policy_of_a_run_knows_how_long_gates_make_it_wait() {
        let gates = |set: &[&str]| {
            let set: Vec<String> = set.iter().map(|one| format!("seeds.gates.{one}")).collect();
            let flags = Layer::flags(Layer::data("digits").into_iter().collect(), &set).unwrap();
            let policy = policy_config(&EsperConfig::from_layers(flags).unwrap().config);
            let of = policy.heuristic.gates;
            [of.training, of.blending, of.holding]
        };
        assert_eq!(gates(&[]), [4, 0, 2]);
        assert_eq!(gates(&["training_min_epochs=5", "blending_min_epochs=1", "holding_min_epochs=3"]), [5, 1, 3]);
        assert_eq!(gates(&["blending_min_epochs=1", "off=[\"system_impact\"]"]), [4, 1, 0]);
    }
}
