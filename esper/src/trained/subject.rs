//! A trained network, wherever it comes from.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context as _;
use candle_core::{Device, Tensor};
use esper_export::{DOCUMENT_FILE, Export, Network, Preparation, Task};
use esper_signing::state_of_manager;
use kasmina::GraftedModel;
use kasmina::blueprint::Registry;
use kasmina::graft::NetworkSpec;
use leyline::id::EpochIndex;

use super::checkpoint::{SEEDS, newest_checkpoint};
use crate::config::EsperConfig;
use crate::data::{DataName, Scale};
use crate::exit::UsageError;
use crate::report::{self, CONFIG_FILE, RunRecord};

/// What a run ended with: the network of its newest checkpoint.
#[derive(Debug)]
pub(crate) struct Trained {
    pub(crate) record: RunRecord,
    pub(crate) config: EsperConfig,
    /// Number of the checkpoint.
    pub(crate) generation: String,
    /// Epochs before it.
    pub(crate) epoch: EpochIndex,
    pub(crate) export: Export,
}

impl Trained {
    /// Opens the folder of a run; nothing in it is changed.
    ///
    /// # Errors
    /// When it is none, has no checkpoint, or was written by a version that this one cannot read.
    pub(crate) fn open(run_dir: &Path) -> anyhow::Result<Self> {
        let record = report::read_record(run_dir)?;
        let config = EsperConfig::load(Some(&run_dir.join(CONFIG_FILE)), Vec::new())?.config;
        let loaded = newest_checkpoint(run_dir)?;
        let state = loaded.snapshot.components.get(SEEDS).context("the checkpoint has no seed manager in it")?;
        let state = state_of_manager(state).context("reading the seed manager of the checkpoint")?;
        let (network, tensors) = NetworkSpec::of_saved(&state).context("reading the network of the checkpoint")?;
        let (generation, epoch) = (loaded.generation.to_string(), loaded.snapshot.meta.epoch);
        let export = export(&config, network, tensors);
        Ok(Self { record, config, generation, epoch, export })
    }
}

/// With names of classes and the preparation of the data that the run was configured with.
fn export(config: &EsperConfig, network: NetworkSpec, tensors: BTreeMap<String, Tensor>) -> Export {
    let classes = (0..network.host.num_outputs()).map(|class| class.to_string()).collect();
    let divisor = match config.data.name {
        DataName::Digits => 16.0,
        DataName::Mnist1d => 1.0,
        DataName::Mnist | DataName::FashionMnist => 255.0,
        // What else was done to the inputs is in the folder of the run, and `esper export` refuses to leave it out.
        DataName::File(_) => config.data.csv_scale.map_or(1.0, Scale::get),
    };
    Export { network, tensors, task: Task::Classification { classes }, preparation: Preparation { divisor } }
}

/// Where a network comes from.
#[derive(Debug)]
pub(crate) enum Origin {
    Run(Box<Trained>),
    Export,
}

/// A trained network that is ready to run.
#[derive(Debug)]
pub(crate) struct Subject {
    pub(crate) origin: Origin,
    pub(crate) model: GraftedModel,
    pub(crate) task: Task,
}

impl Subject {
    /// Opens the folder of a run or of an export.
    ///
    /// # Errors
    /// As [`Trained::open`] and [`Network::load`]; [`UsageError`] when it is neither.
    pub(crate) fn open(
        dir: &Path,
        device: &dyn Fn(Option<&Trained>) -> anyhow::Result<Device>,
    ) -> anyhow::Result<Self> {
        let registry = Registry::all();
        if dir.join(DOCUMENT_FILE).is_file() {
            let network = Network::load_with(dir, &registry, &device(None)?)?;
            let (model, task) = (network.model().clone(), network.task().clone());
            return Ok(Self { origin: Origin::Export, model, task });
        }
        if !dir.join(CONFIG_FILE).is_file() {
            let shown = dir.display();
            return Err(UsageError(format!(
                "{shown} holds no trained network; expected a folder that `esper train` wrote (with a {CONFIG_FILE}), or one \
                 that `esper export` wrote (with a {DOCUMENT_FILE})"
            ))
            .into());
        }
        let trained = Trained::open(dir)?;
        let device = device(Some(&trained))?;
        let Export { network, tensors, task, .. } = &trained.export;
        let tensors = tensors.iter().map(|(name, tensor)| Ok((name.clone(), tensor.to_device(&device)?)));
        let tensors = tensors.collect::<candle_core::Result<_>>()?;
        let model = network.build(tensors, &registry, &device).context("building the network")?;
        let task = task.clone();
        Ok(Self { origin: Origin::Run(Box::new(trained)), model, task })
    }
}
