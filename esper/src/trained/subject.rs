//! A trained network, wherever it comes from.

use std::path::Path;

use anyhow::Context as _;
use candle_core::{Device, Tensor};
use esper_export::{DOCUMENT_FILE, Export, Network, Preparation};
use esper_signing::state_of_manager;
use kasmina::GraftedModel;
use kasmina::blueprint::Registry;
use kasmina::graft::NetworkSpec;
use leyline::id::EpochIndex;
use leyline::model::{Pass, TrainableModel as _};
use tolaria::checkpoint::Signing;
use tolaria::host_read::{HostReads, read_vec};
use tolaria::task::TaskConfig;

use super::checkpoint::{SEEDS, result_checkpoint};
use crate::config::EsperConfig;
use crate::data::{self, Prepared, TargetKind};
use crate::exit::UsageError;
use crate::report::{self, CONFIG_FILE, PREPARATION_FILE, RunRecord};
use crate::signature::SignatureArgs;

/// Samples in a forward pass.
const BATCH: usize = 512;

/// What a run came to: the network that was tested or, where none was, that of its newest checkpoint.
#[derive(Debug)]
pub(crate) struct Trained {
    pub(crate) record: RunRecord,
    pub(crate) config: EsperConfig,
    /// Number of the checkpoint.
    pub(crate) generation: String,
    /// The epoch that it ended, or in the middle of which it was, from 1.
    pub(crate) epoch: EpochIndex,
    pub(crate) export: Export,
}

impl Trained {
    /// Opens the folder of a run; nothing in it is changed.
    ///
    /// # Errors
    /// When it is none, has no checkpoint, or was written by a version that this one cannot read.
    pub(crate) fn open(run_dir: &Path, signing: Option<Signing>) -> anyhow::Result<Self> {
        let record = report::read_record(run_dir)?;
        let config = EsperConfig::load(Some(&run_dir.join(CONFIG_FILE)), Vec::new())?.config;
        let tested = report::read_summary(run_dir)?.and_then(|summary| summary.tested);
        let loaded = result_checkpoint(run_dir, tested, signing)?;
        let state = loaded.snapshot.components.get(SEEDS).context("the checkpoint has no seed manager in it")?;
        let state = state_of_manager(state).context("reading the seed manager of the checkpoint")?;
        let (network, tensors) = NetworkSpec::of_saved(&state).context("reading the network of the checkpoint")?;
        let (generation, epoch) =
            (loaded.generation.to_string(), tested.map_or(loaded.snapshot.meta.epoch, |tested| tested.epoch));
        let preparation = preparation(run_dir, &config, &record)?;
        let task = serde_json::to_value(&config.task)?.as_object().cloned();
        let export = Export { network, tensors, preparation, task };
        Ok(Self { record, config, generation, epoch, export })
    }
}

/// The data of a run, which must be what they were.
pub(crate) fn data_of_run(config: &EsperConfig, record: &RunRecord) -> anyhow::Result<Prepared> {
    let prepared = data::load(&config.data)?;
    record.data.expect_tokenizer(&prepared.preparation)?;
    let (found, expected) = (prepared.digest.to_string(), &record.data.digest);
    if found != *expected {
        return Err(UsageError(format!(
            "the data of the run are not what they were: `{}` had the digest {expected}, and has {found} now",
            record.data.name
        ))
        .into());
    }
    Ok(prepared)
}

/// What the run learned from its training part: as it was written down or, by an earlier version that did not, from the data.
fn preparation(run_dir: &Path, config: &EsperConfig, record: &RunRecord) -> anyhow::Result<Preparation> {
    let path = run_dir.join(PREPARATION_FILE);
    let Some(bytes) = report::read(run_dir, PREPARATION_FILE)? else {
        return Ok(data_of_run(config, record)?.preparation);
    };
    let wrong =
        |problem: String| UsageError(format!("{}: {problem}; expected what `esper train` wrote", path.display()));
    let mut preparation: Preparation = serde_json::from_slice(&bytes).map_err(|error| wrong(error.to_string()))?;
    if let Some((field, found, expected)) = preparation.contradiction() {
        return Err(wrong(format!("`{field}` is {found}, expected {expected}")).into());
    }
    let target = &mut preparation.target;
    if !config.task.is_auto() && target.kind == TargetKind::Classes && target.class_counts.is_empty() {
        target.class_counts = data_of_run(config, record)?.preparation.target.class_counts;
    }
    Ok(preparation)
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
    /// How a sample becomes an input, and what the outputs mean.
    pub(crate) preparation: Preparation,
    /// What it was trained for; not known of exports of earlier versions.
    pub(crate) task: Option<TaskConfig>,
}

impl Subject {
    /// Opens the folder of a run or of an export.
    ///
    /// # Errors
    /// As [`Trained::open`] and [`Network::load`]; [`UsageError`] when it is neither.
    pub(crate) fn open(
        dir: &Path,
        signature: &SignatureArgs,
        device: &dyn Fn(Option<&Trained>) -> anyhow::Result<Device>,
    ) -> anyhow::Result<Self> {
        let registry = Registry::all();
        let signing = signature.signing()?;
        if dir.join(DOCUMENT_FILE).is_file() {
            if signature.require_signed {
                let shown = dir.display();
                return Err(UsageError(format!(
                    "--require-signed: {shown} is an export, which is never signed; expected the folder of a run"
                ))
                .into());
            }
            let network = Network::load_with(dir, &registry, &device(None)?)?;
            let (model, preparation) = (network.model().clone(), network.preparation().clone());
            let task = network.document().task.clone();
            let task = task.map(|task| serde_json::from_value(task.into())).transpose().map_err(|error| {
                let shown = dir.join(DOCUMENT_FILE);
                UsageError(format!("{}: `task` {error}; expected what `[task]` accepts", shown.display()))
            })?;
            return Ok(Self { origin: Origin::Export, model, preparation, task });
        }
        if !dir.join(CONFIG_FILE).is_file() {
            let shown = dir.display();
            return Err(UsageError(format!(
                "{shown} holds no trained network; expected a folder that `esper train` wrote (with a {CONFIG_FILE}), or one \
                 that `esper export` wrote (with a {DOCUMENT_FILE})"
            ))
            .into());
        }
        let trained = Trained::open(dir, signing)?;
        let device = device(Some(&trained))?;
        let Export { network, tensors, preparation, task: _ } = &trained.export;
        let tensors = tensors.iter().map(|(name, tensor)| Ok((name.clone(), tensor.to_device(&device)?)));
        let tensors = tensors.collect::<candle_core::Result<_>>()?;
        let model = network.build(tensors, &registry, &device).context("building the network")?;
        let (preparation, task) = (preparation.clone(), Some(trained.config.task.clone()));
        Ok(Self { origin: Origin::Run(Box::new(trained)), model, preparation, task })
    }

    /// The outputs for each of the inputs (N, features).
    ///
    /// # Errors
    /// When a forward pass or the device fails.
    pub(crate) fn outputs(&self, inputs: &Tensor) -> anyhow::Result<Vec<Vec<f32>>> {
        let (count, device, mut reads) = (inputs.dim(0)?, self.model.device(), HostReads::default());
        let mut rows = Vec::with_capacity(count);
        for start in (0..count).step_by(BATCH) {
            let batch = inputs.narrow(0, start, BATCH.min(count - start))?.to_device(device)?;
            let outputs = self.model.forward(&batch, Pass::Evaluate { overrides: &[] })?.logits.flatten_from(1)?;
            let width = outputs.dim(1)?;
            rows.extend(read_vec(&outputs, "predictions", &mut reads)?.chunks(width).map(<[f32]>::to_vec));
        }
        Ok(rows)
    }
}
