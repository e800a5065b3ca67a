//! A run that goes through the whole life of seeds in a few epochs.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use esper::config::{EsperConfig, Layer};
use esper::data;
use esper::wire::{EsperTrainer, Surroundings, assemble};
use esper_signing::Journal;
use leyline::clock::SystemClock;
use leyline::error::BoxError;
use leyline::id::{RunId, StepIndex};
use leyline::telemetry::NullRecorder;
use tolaria::checkpoint::{CheckpointStore, StdFs};
use tolaria::trainer::report::EpochReport;
use tolaria::trainer::{Checkpoints, Flow, Observer};

/// Stage lengths cut down so that seeds germinate, blend, are kept and are removed within 14 epochs.
pub const SETTINGS: &[&str] = &[
    "run.epochs=14",
    "data.validation_fraction=0.2",
    "data.test_fraction=0.6",
    "train.batch.batch_size=8",
    "train.batch.microbatches_per_step=4",
    "train.conflict=pcgrad",
    "seeds.seed_width=8",
    "seeds.embargo_epochs=1",
    "seeds.gates.training_min_epochs=1",
    "seeds.gates.holding_min_epochs=1",
    "seeds.gates.confidence_z=0.0",
    // Of so few epochs a fifth is no time in which a seed could show anything.
    "policy.heuristic.looking.max_share=1.0",
    "policy.heuristic.germination.min_epoch=1",
    "policy.heuristic.germination.max_live_seeds=2",
    "policy.heuristic.germination.max_parameter_ratio=1000.0",
    "policy.heuristic.plateau.patience_epochs=1",
    "policy.heuristic.plateau.min_relative_gain=1.0",
    "policy.heuristic.evidence.confidence_z=0.0",
    "policy.heuristic.training.min_epochs=1",
    "policy.heuristic.training.max_epochs=2",
    "policy.heuristic.blending.ramp_epochs=1",
    "policy.heuristic.holding.min_epochs=1",
    "policy.heuristic.holding.max_epochs=2",
    "policy.heuristic.holding.min_gain=0.0",
];

/// The configuration of the run, without a checkpoint of the best evaluation, and with further settings on top.
///
/// # Panics
/// When a setting is refused.
#[must_use]
pub fn config(more: &[&str]) -> EsperConfig {
    let layers = SETTINGS
        .iter()
        .chain(&["checkpoint.keep_best=false"])
        .chain(more)
        .map(|setting| Layer::set(setting).expect("a well-formed setting"));
    EsperConfig::load(None, layers.collect()).expect("settings that are accepted").config
}

/// A trainer for the run, with checkpoints in `dir`.
///
/// # Panics
/// When a part cannot be built.
#[must_use]
pub fn trainer(config: &EsperConfig, dir: Option<&Path>) -> EsperTrainer {
    let prepared = data::load(&config.data).expect("the shipped data");
    let checkpoints = dir.map(|dir| Checkpoints {
        store: CheckpointStore::open(dir, NonZeroUsize::MIN, Arc::new(StdFs)).expect("a fresh folder"),
        every_epochs: config.checkpoint.every_epochs,
        every_steps: None,
        keep_best: config.checkpoint.keep_best,
        in_background: true,
        config_digest: String::new(),
    });
    let around = Surroundings {
        run_id: RunId::new("short-run").expect("a literal of allowed characters"),
        checkpoints,
        networks: None,
        command_journal: dir.map(|dir| Journal::open(&dir.join("commands.journal")).expect("a fresh folder")),
        recorder: Arc::new(NullRecorder),
        clock: Arc::new(SystemClock::new()),
    };
    assemble(config, &prepared, around).expect("parts that fit")
}

/// Keeps the reports, and stops after a given step.
#[derive(Debug, Default)]
pub struct Recorded {
    /// Optimizer step after which to stop.
    pub stop_after: Option<StepIndex>,
    /// Steps after which it was told so.
    pub told: Vec<StepIndex>,
    /// Epochs so far.
    pub epochs: Vec<EpochReport>,
}

impl Observer for Recorded {
    fn step_finished(&mut self, step: StepIndex) -> Flow {
        self.told.push(step);
        if Some(step) == self.stop_after { Flow::Stop } else { Flow::Continue }
    }

    fn epoch_finished(&mut self, report: &EpochReport) -> Result<(), BoxError> {
        // Times differ from run to run; everything else must not.
        self.epochs.push(EpochReport { wall_s: 0.0, samples_per_s: 0.0, ..report.clone() });
        Ok(())
    }
}
