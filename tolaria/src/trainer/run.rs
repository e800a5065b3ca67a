//! The trainer and its main loop.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::Arc;

use candle_core::Device;
use esper_safety::{Level, Timed};
use leyline::clock::{Clock, SystemClock};
use leyline::error::BoxError;
use leyline::id::{EpochIndex, RunId, StepIndex};
use leyline::layout::Owner;
use leyline::model::TrainableModel;
use leyline::policy::Policy;
use leyline::region::Eager;
use leyline::seed::SeedManager;
use leyline::task::{Measure, Task};
use leyline::telemetry::{NullRecorder, Recorder};

use crate::aggregate::GradientEngine;
use crate::batch::transform::Transform;
use crate::batch::{Dataset, Window, num_windows};
use crate::checkpoint::CheckpointStore;
use crate::cpu::keep_freed;
use crate::error::Error;
use crate::grad::{Geometry, GradientBufferPool};
use crate::host_read::HostReads;
use crate::optim::Optimizer;
use crate::trainer::config::TrainConfig;
use crate::trainer::confirm::Divided;
use crate::trainer::divergence::Watched;
use crate::trainer::evaluate::{Evaluation, HeldOut, Probe, evaluate};
use crate::trainer::evaluations::Evaluated;
use crate::trainer::executor::{StepExecutor, StepShape};
use crate::trainer::feed::Feed;
use crate::trainer::gradient_instruments::GradientInstruments;
use crate::trainer::instruments::Instruments;
use crate::trainer::observer::{Flow, Observer, RunEvent, StepReport};
use crate::trainer::phase::phase;
use crate::trainer::recovery::Recovery;
use crate::trainer::region::StepPlan;
use crate::trainer::safety::{self, Safety};
use crate::trainer::saver::Saver;
use crate::trainer::saving::When;
use crate::trainer::stop::Track;
use crate::trainer::sums::EpochSums;
use esper_graph::{DeviceClaim, between_recordings};

/// Gradient buffers kept at least: epochs end with shorter windows, and structures of the network take turns.
const MIN_IDLE_BUFFERS: usize = 64;

/// The three parts of a data set; no sample is in two of them.
#[derive(Debug, Clone)]
pub struct Splits {
    /// Trains parameters.
    pub train: Dataset,
    /// Held out from training; decisions are made on it.
    pub validation: Dataset,
    /// Held out from everything until the end.
    pub test: Dataset,
}

/// A part of the held-out data.
#[derive(Debug, Clone, Copy)]
pub(super) enum Part {
    /// Of the validation data, by which everything is decided.
    Selecting,
    /// Of the validation data, by which gains are confirmed.
    Confirming,
    /// The test data.
    Test,
}

/// Where durable checkpoints go, and when.
#[derive(Debug)]
pub struct Checkpoints {
    /// Holds the generations.
    pub store: CheckpointStore,
    /// Epochs between two of them; the end of the run always gets one.
    pub every_epochs: NonZeroU64,
    /// Optimizer steps between two of them, beside those at the end of epochs; absent writes none in the middle of an epoch.
    pub every_steps: Option<NonZeroU64>,
    /// Whether the best evaluation on validation data has a checkpoint that stays beside the last ones. It holds the
    /// network as it was evaluated, before the decisions at the end of its epoch.
    pub keep_best: bool,
    /// Whether a thread writes those in the middle of a run, so that the loop only waits for a copy of its state: at most two
    /// copies are kept, on the device. One that is due after so many steps while another is being written is put off and
    /// counted: the first step that finds that one on the disk has it. The last one of a run, and that of a run that is stopped, are waited for.
    pub in_background: bool,
    /// Digest of the configuration: a checkpoint of another configuration is refused.
    pub config_digest: String,
}

impl Checkpoints {
    /// A checkpoint after every epoch, and that of the best evaluation, written while training goes on.
    #[must_use]
    pub fn new(store: CheckpointStore) -> Self {
        let every_epochs = NonZeroU64::MIN;
        let config_digest = String::new();
        Self { store, every_epochs, every_steps: None, keep_best: true, in_background: true, config_digest }
    }
}

/// What a trainer is made of.
#[derive(Debug)]
pub struct Parts<S, P> {
    /// The run.
    pub run_id: RunId,
    /// Seed of the order of samples and of projections.
    pub seed: u64,
    /// Epochs of the whole run.
    pub num_epochs: u64,
    /// Optimizer steps after which the run ends, if that is before the end of its epochs. It may be in the middle of an
    /// epoch: then nothing is decided any more, and a run that is to have more steps goes on from there.
    pub max_steps: Option<NonZeroU64>,
    /// Where tensors live. Data may be there already, or on the CPU: then every batch is copied.
    pub device: Device,
    /// Data.
    pub data: Splits,
    /// What the network is trained for.
    pub task: Arc<dyn Task>,
    /// The network and its seeds.
    pub seeds: S,
    /// Who decides.
    pub policy: P,
    /// Durable checkpoints; none are written without it.
    pub checkpoints: Option<Checkpoints>,
    /// Telemetry.
    pub recorder: Arc<dyn Recorder>,
    /// Time.
    pub clock: Arc<dyn Clock>,
}

impl<S: SeedManager, P: Policy> Parts<S, P> {
    /// Parts of a run of one epoch, without checkpoints and telemetry, on the device of the network: what differs is set
    /// afterwards, as in `Parts { num_epochs: 10, ..Parts::new(task, seeds, policy, data) }`.
    ///
    /// # Panics
    /// Never: the name of the run is a literal.
    pub fn new(task: Arc<dyn Task>, seeds: S, policy: P, data: Splits) -> Self {
        let first = seeds.model().parameters().first();
        let device = first.map_or(Device::Cpu, |parameter| parameter.var.device().clone());
        Self {
            run_id: RunId::new("run").expect("a literal of allowed characters"),
            seed: 0,
            num_epochs: 1,
            max_steps: None,
            device,
            data,
            task,
            seeds,
            policy,
            checkpoints: None,
            recorder: Arc::new(NullRecorder),
            clock: Arc::new(SystemClock::new()),
        }
    }
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// All epochs were trained.
    Completed,
    /// [`Parts::max_steps`] optimizer steps were taken before all epochs were trained.
    MaxSteps,
    /// Held-out data were not predicted better any more, see [`EarlyStopConfig`](crate::trainer::EarlyStopConfig).
    EarlyStopped,
    /// The observer asked to stop; a checkpoint was written when there is a store.
    Interrupted,
    /// The emergency level was raised to a halt; a checkpoint was written when there is a store and the state can be saved.
    Halted,
}

/// Where a run was taken up again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resumed {
    /// Generation of the checkpoint.
    pub generation: String,
    /// Epochs completed there.
    pub epoch: EpochIndex,
    /// Optimizer steps taken there.
    pub step: StepIndex,
    /// Newer generations that did not verify, with the reason.
    pub skipped: Vec<(String, String)>,
    /// Whether the checkpoint said which batches and data it was trained with, and they were compared with this run's. Those
    /// of earlier builds do not say it: then only the seed and the caller's digest were compared.
    pub is_compared: bool,
}

/// Where in the run the trainer is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Cursor {
    /// Epochs completed.
    pub(super) epoch: EpochIndex,
    /// Windows taken in the current epoch.
    pub(super) window: u64,
    /// Optimizer steps taken in the run.
    pub(super) step: StepIndex,
}

impl Cursor {
    /// Epochs completed, and the one that is under way.
    pub(super) fn epochs_begun(&self) -> u64 {
        self.epoch.0 + u64::from(self.window > 0)
    }
}

/// Trains the network of a seed manager and lets a policy decide about its seeds.
#[derive(Debug)]
pub struct Trainer<S: SeedManager, P: Policy> {
    pub(super) config: TrainConfig,
    pub(super) parts: Parts<S, Timed<P>>,
    pub(super) optimizer: Optimizer,
    pub(super) feed: Feed,
    pub(super) pool: GradientBufferPool,
    pub(super) engine: GradientEngine,
    pub(super) cursor: Cursor,
    pub(super) track: Track,
    pub(super) sums: EpochSums,
    /// The owners' shares of gradient norms in the last epoch.
    pub(super) shares: BTreeMap<Owner, f64>,
    pub(super) reads: HostReads,
    /// Validation data of which a part confirms; none where nothing is confirmed.
    pub(super) divided: Option<Divided>,
    /// Whether gains are confirmed: not in a run that began before there was that, and goes on.
    pub(super) confirms: bool,
    /// Before the executor: what it has copied is freed while the device is this thread's.
    pub(super) saver: Option<Saver>,
    pub(super) instruments: Instruments,
    pub(super) gradient_instruments: GradientInstruments,
    pub(super) executor: StepExecutor,
    /// The last plans of each shape of launch, to record one again.
    pub(super) plans: BTreeMap<StepShape, Vec<StepPlan>>,
    /// What held-out data are measured by, beside loss and accuracy.
    pub(super) measures: Vec<Measure>,
    pub(super) recovery: Recovery,
    pub(super) safety: Safety,
    /// The largest bytes so far of what memory is for.
    pub(super) memory: BTreeMap<&'static str, u64>,
}

impl<S: SeedManager, P: Policy> Trainer<S, P> {
    /// Puts the parts together.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for settings that cannot work, [`Error::UnsupportedParameter`] for a network of another
    /// type than the precision trains, [`Error::SharedDevice`] for a GPU on which a trainer or a session of another thread lives,
    /// [`Error::Policy`] for one with a deadline that has no thread or cannot be saved, device errors.
    pub fn new(config: TrainConfig, parts: Parts<S, P>) -> Result<Self, Error>
    where
        P: 'static,
    {
        if let Some((key, accepted)) = config.validate().into_iter().next() {
            return Err(Error::InvalidConfig { key, message: format!("expected {accepted}") });
        }
        if parts.data.train.is_empty() || parts.data.validation.is_empty() {
            return Err(Error::InvalidConfig {
                key: "data".to_owned(),
                message: "expected at least one training and one validation sample".to_owned(),
            });
        }
        for part in [&parts.data.train, &parts.data.validation, &parts.data.test] {
            let device = part.device();
            if !device.is_cpu() && !device.same_device(&parts.device) {
                return Err(Error::InvalidConfig {
                    key: "data".to_owned(),
                    message: "expected it on the CPU or on the very device of the trainer".to_owned(),
                });
            }
        }
        for part in [&parts.data.train, &parts.data.validation, &parts.data.test] {
            // Those of a source are looked at when they are read.
            let checked = part.targets().map_or(Ok(()), |targets| parts.task.check_targets(targets));
            checked.map_err(|error| Error::InvalidData { what: "targets", message: error.to_string() })?;
        }
        config.precision.check(&parts.device)?;
        let measures = config.measured(&*parts.task)?;
        config.precision.check_parameters(parts.seeds.model().parameters())?;
        let claim = match DeviceClaim::of(&parts.device) {
            Ok(claim) => claim.map(Arc::new),
            Err(_) => {
                // Whoever has the device may be recording, and must not record what is given back here.
                let device = parts.device.clone();
                between_recordings(&device, move || drop(parts));
                return Err(Error::SharedDevice);
            }
        };
        if parts.device.is_cpu() {
            keep_freed();
        }
        let mut parts = safety::timed(&config.safety, parts)?;
        let engine = engine(&config, &parts)?;
        let sums = EpochSums::new(Arc::clone(engine.geometry()), config.scaling(), &parts.device)?;
        Ok(Self {
            optimizer: config.new_optimizer(&parts.device),
            feed: feed(&config, config.augment.transforms(), &parts)?,
            // As many as a window has microbatches: a recorded step must find all of its buffers idle.
            pool: GradientBufferPool::with_max_idle(config.batch.microbatches_per_step.get().max(MIN_IDLE_BUFFERS)),
            engine,
            cursor: Cursor::default(),
            track: Track::default(),
            sums,
            shares: BTreeMap::new(),
            reads: HostReads::default(),
            divided: None,
            confirms: true,
            saver: parts.checkpoints.take().map(|checkpoints| Saver::new(checkpoints, &parts.clock)),
            instruments: Instruments::new(&parts.recorder, &measures, &config),
            gradient_instruments: GradientInstruments::new(&parts.recorder),
            executor: StepExecutor::new(&config.execution, &parts.device, claim, &parts.recorder, &parts.clock)?,
            plans: BTreeMap::new(),
            measures,
            recovery: Recovery::default(),
            safety: Safety::new(&config.safety, &parts.recorder),
            memory: BTreeMap::new(),
            config,
            parts,
        })
    }

    /// The same with a transform after those of the configuration: of one's own, say.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] where it does not fit the training data, or they are on a GPU.
    pub fn with_transform(mut self, transform: Arc<dyn Transform>) -> Result<Self, Error> {
        let transforms = self.feed.transforms().iter().cloned().chain([transform]).collect();
        self.feed = feed(&self.config, transforms, &self.parts)?;
        Ok(self)
    }

    /// Trains until all epochs are done, the run is over for another reason, or the observer asks to stop.
    ///
    /// # Errors
    /// The first failure, a final checkpoint that cannot be written included; the last durable checkpoint stays valid. Among
    /// them [`Error::FrozenValue`]: after it the trainer is neither run nor evaluated nor saved before it was
    /// [restored](Self::restore).
    pub fn run(&mut self, eager: &mut Eager, observer: &mut dyn Observer) -> Result<Outcome, Error> {
        eager.check()?;
        self.executor.trusted()?;
        self.parts.seeds.train_for(eager, &self.parts.task).map_err(|error| self.seed_error(error))?;
        self.divide(eager)?;
        self.write_bound()?;
        self.tell_unshared();
        let outcome = self.epochs(eager, observer);
        self.finish_saving(observer);
        if outcome.is_err() {
            self.instruments.epochs_failed.add(1);
        }
        outcome
    }

    fn epochs(&mut self, eager: &mut Eager, observer: &mut dyn Observer) -> Result<Outcome, Error> {
        'epochs: loop {
            if let Some(outcome) = self.over() {
                self.await_writer();
                self.tell_saved(observer);
                let reason = self.end_reason();
                observer.event(&RunEvent::Ended { outcome, reason: reason.as_deref() });
                return Ok(outcome);
            }
            if self.look_at_level(eager, observer)? == Level::Halt {
                return Ok(self.halt(eager, observer));
            }
            if self.keep_if_due(eager, observer)? {
                continue;
            }
            if self.cursor.window == 0 && self.sums.host().num_steps > 0 {
                // The end of the epoch before failed once that was counted.
                self.reset_sums()?;
            }
            let started = self.parts.clock.now();
            let _epoch = phase!("epoch");
            let train = &self.parts.data.train;
            let order = self.feed.begin(&self.config, train, self.cursor.epoch, self.cursor.window);
            let num_windows = order.windows.len();
            let resumed_at = usize::try_from(self.cursor.window).unwrap_or(usize::MAX).min(num_windows);
            // An epoch that is taken up in the middle showed its first microbatches before it was interrupted; what the
            // seed manager keeps of them is in its saved state.
            if resumed_at == 0 {
                self.remove_late(eager)?;
                self.show_first_batches(eager, &order)?;
            }
            self.optimizer.doubt_copies();
            let mut taken = resumed_at;
            while taken < num_windows {
                taken += self.step(eager, &order, taken)?;
                let (index, is_last) = (taken - 1, taken == num_windows);
                self.collect_saved(observer);
                let watched = self.watch(eager, observer, (&order, index))?;
                if watched == Watched::WentBack {
                    continue 'epochs;
                }
                if is_last {
                    self.settle(eager)?;
                } else {
                    let done = self.between_steps(eager, observer);
                    if self.or_go_back(eager, observer, done)?.is_none() {
                        continue 'epochs;
                    }
                    if watched == Watched::IsGood {
                        self.keep_good_state(eager)?;
                    }
                }
                let flow = observer.step(&self.step_report(num_windows));
                if !is_last && self.over().is_some() {
                    continue 'epochs;
                }
                if self.look_at_level(eager, observer)? == Level::Halt {
                    return Ok(self.halt(eager, observer));
                }
                if flow == Flow::Stop {
                    self.settle(eager)?;
                    self.save(eager, When::Now, None)?;
                    self.tell_saved(observer);
                    observer.event(&RunEvent::Ended { outcome: Outcome::Interrupted, reason: None });
                    return Ok(Outcome::Interrupted);
                }
            }
            // Of an epoch that is taken up in the middle the samples before belong to time that nobody knows.
            let num_samples = order.windows[resumed_at..].iter().map(Window::num_samples).sum();
            let report = self.finish_epoch(eager, observer, (started, num_samples));
            let Some(report) = self.or_go_back(eager, observer, report)? else { continue };
            observer.epoch_finished(&report).map_err(Error::Observer)?;
            if self.checkpoint_due() {
                self.save_due(eager, observer, When::Soon)?;
            }
        }
    }

    /// What is due after a step that does not end its epoch: an evaluation, a checkpoint. The last step of a run has both.
    fn between_steps(&mut self, eager: &mut Eager, observer: &mut dyn Observer) -> Result<(), Error> {
        let (step, is_over) = (self.cursor.step.0, self.is_at_max_steps());
        let is_due = |every: Option<NonZeroU64>| is_over || every.is_some_and(|every| step.is_multiple_of(every.get()));
        if is_due(self.config.eval_every_steps) {
            self.settle(eager)?;
            self.evaluate_step(eager, observer)?;
        }
        if self.saver.as_ref().is_some_and(|saver| is_due(saver.every_steps) || saver.can_make_up()) {
            self.settle(eager)?;
            self.save_due(eager, observer, When::IfIdle)?;
        }
        Ok(())
    }

    fn step_report(&self, steps_per_epoch: usize) -> StepReport<'_> {
        StepReport {
            step: self.cursor.step,
            epoch: self.cursor.epoch.next(),
            step_of_epoch: self.cursor.window,
            steps_per_epoch: steps_per_epoch as u64,
            learning_rate: self.learning_rate(StepIndex(self.cursor.step.0.saturating_sub(1))),
            sums: &self.sums,
        }
    }

    pub(super) fn is_at_max_steps(&self) -> bool {
        self.parts.max_steps.is_some_and(|max_steps| self.cursor.step.0 >= max_steps.get())
    }

    /// How the run has ended, when it has.
    pub(super) fn over(&self) -> Option<Outcome> {
        if self.cursor.epoch.0 >= self.parts.num_epochs {
            return Some(Outcome::Completed);
        }
        // An epoch whose last step was taken is still to be ended.
        if self.is_at_max_steps() && self.cursor.window < self.steps_per_epoch() {
            return Some(Outcome::MaxSteps);
        }
        let stop = self.config.early_stop.as_ref()?;
        self.track.stopped(stop).map(|_| Outcome::EarlyStopped)
    }

    /// Why the run is over although not all of its epochs were trained; absent while it is not, and when all were.
    pub fn end_reason(&self) -> Option<String> {
        if let Some(reason) = self.halt_reason() {
            return Some(format!("halted by an emergency: {reason}"));
        }
        match self.over()? {
            Outcome::Completed | Outcome::Interrupted | Outcome::Halted => None,
            Outcome::MaxSteps => {
                let max_steps = self.parts.max_steps?;
                Some(format!("stopped at `max_steps`: {max_steps} optimizer steps were taken"))
            }
            Outcome::EarlyStopped => self.track.stopped(self.config.early_stop.as_ref()?),
        }
    }

    pub(super) fn steps_per_epoch(&self) -> u64 {
        num_windows(self.parts.data.train.len(), &self.config.batch) as u64
    }

    /// Evaluates the network as it is on the test data. Nothing that decides may see the result.
    ///
    /// # Errors
    /// As [`evaluate`]; [`Error::FrozenValue`] where a run ended with it; [`Error::Unconfirmed`].
    pub fn test(&mut self, eager: &Eager) -> Result<Evaluation, Error> {
        self.evaluate_on(eager, Part::Test, &[])
    }

    /// Evaluates on the samples that confirm.
    pub(super) fn evaluate_confirming(&mut self, eager: &Eager, probes: &[Probe]) -> Result<Evaluation, Error> {
        self.evaluate_on(eager, Part::Confirming, probes)
    }

    /// Evaluates the network on a part of the data, and once more per probe, where its steps are confirmed.
    pub(super) fn evaluate_on(&mut self, eager: &Eager, part: Part, probes: &[Probe]) -> Result<Evaluation, Error> {
        self.evaluate_by(part, probes, |_, evaluated, reads| {
            evaluate(eager, evaluated.model, &evaluated.held_out, evaluated.probes, reads)
        })
    }

    /// As [`Self::evaluate_on`] the samples that select, as at the end of every epoch.
    pub(super) fn evaluate_selecting(&mut self, eager: &mut Eager, probes: &[Probe]) -> Result<Evaluation, Error> {
        let step = self.cursor.step;
        self.evaluate_by(Part::Selecting, probes, |executor, evaluated, reads| {
            executor.evaluate(eager, step, evaluated, reads)
        })
    }

    fn evaluate_by(
        &mut self,
        part: Part,
        probes: &[Probe],
        evaluate: impl FnOnce(&mut StepExecutor, Evaluated<'_, S::Model>, &mut HostReads) -> Result<Evaluation, Error>,
    ) -> Result<Evaluation, Error> {
        self.executor.confirmed()?;
        let _phase = phase!("evaluate");
        let (data, divided) = (&self.parts.data, self.divided.as_ref().filter(|divided| divided.can_confirm));
        let held_out = HeldOut {
            data: match part {
                Part::Test => &data.test,
                Part::Selecting => divided.map_or(&data.validation, |divided| &divided.selecting),
                Part::Confirming => divided.map_or(&data.validation, |divided| &divided.confirming),
            },
            device: &self.parts.device,
            batch_size: self.config.eval_batch_size.get(),
            task: &*self.parts.task,
            measures: &self.measures,
        };
        let (model, statistics) = (self.parts.seeds.model(), self.parts.seeds.statistics());
        // Where averages are kept they are what is measured; parameters are back before anything else happens.
        self.optimizer.exchange_averages(model.parameters())?;
        let evaluated = Evaluated { model, statistics, held_out, probes };
        let evaluation = evaluate(&mut self.executor, evaluated, &mut self.reads);
        self.optimizer.exchange_averages(model.parameters())?;
        evaluation
    }

    pub(super) fn seed_error<E: leyline::error::Error>(&self, source: E) -> Error {
        Error::SeedManager { step: self.cursor.step, source: BoxError::new(source) }
    }

    /// An engine for the network as it is now, where it has changed.
    ///
    /// # Errors
    /// [`Error::UnsupportedParameter`] when the change brought a parameter of another type than the precision trains, device
    /// errors.
    pub(super) fn refitted_engine(&self) -> Result<Option<GradientEngine>, Error> {
        self.config.precision.check_parameters(self.parts.seeds.model().parameters())?;
        if **self.engine.geometry() == geometry(&self.config, &self.parts)? {
            return Ok(None);
        }
        engine(&self.config, &self.parts).map(Some)
    }

    /// New sums for an epoch of the network as it is now.
    pub(super) fn reset_sums(&mut self) -> Result<(), Error> {
        self.recovery.guard.begin_epoch();
        self.recovery.num_counted = 0;
        let Some(engine) = self.refitted_engine()? else { return self.sums.reset() };
        self.engine = engine;
        self.sums = self.sums.refitted(Arc::clone(self.engine.geometry()), &self.parts.device)?;
        // Graphs point at the sums and at what the engine keeps.
        self.executor.clear();
        Ok(())
    }
}

fn feed<S: SeedManager, P: Policy>(
    config: &TrainConfig,
    transforms: Vec<Arc<dyn Transform>>,
    parts: &Parts<S, P>,
) -> Result<Feed, Error> {
    Feed::new(config, transforms, (&parts.data.train, &parts.device, parts.seed), &parts.task, &parts.clock)
}

fn geometry<S: SeedManager, P: Policy>(config: &TrainConfig, parts: &Parts<S, P>) -> Result<Geometry, Error> {
    Ok(Geometry::of(parts.seeds.model().layout())?.freezing(|owner| config.groups.freezes(owner)))
}

fn engine<S: SeedManager, P: Policy>(config: &TrainConfig, parts: &Parts<S, P>) -> Result<GradientEngine, Error> {
    let geometry = geometry(config, parts)?;
    let num_rows = config.batch.microbatches_per_step.get();
    GradientEngine::new(Arc::new(geometry), config.aggregation(), num_rows, &parts.device)
}

#[cfg(test)]
mod tests;
