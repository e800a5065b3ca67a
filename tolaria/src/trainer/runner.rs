//! Whether a step runs eagerly or as a graph.
//!
//! ```text
//!   shape of the step ─► graph kept? ── yes ─► replay, captured or compiled ─┬─ enqueued ─► done
//!                            │ no                                             └─ refused ─► eagerly, and never again
//!                            ▼
//!                     eagerly, under warm-up ─► often enough? ─► record (nothing runs) ─► keep, or refuse with a reason
//! ```
//!
//! What was captured is a hypothesis: it is recorded again in some later steps, right before the replay, and at the end of
//! every epoch, and compared. Where the recordings differ, its shape runs eagerly from then on, and the run ends where
//! something was replayed since the last recording that agreed (decision 15).
//!
//! A step is never lost: what cannot be replayed runs eagerly in the same step. A shape that was refused is not tried
//! again; a change of the topology makes a new shape. How the captured graph of a shape is replaced by a compiled one
//! is in `compile.rs`; a compile that fails leaves the captured one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use candle_core::{Device, Tensor};
use leyline::clock::Clock;
use leyline::id::{StepIndex, TopologyRevision};
use leyline::model::HostNumbers;
use leyline::telemetry::{Event, Recorder};

use crate::batch::{Dataset, to_device};
use crate::error::Error;
use crate::telemetry as desc;
use crate::trainer::compile::{CompileSchedule, Compiling, Notice, Taken};
use crate::trainer::compile_log::CompileLog;
use crate::trainer::config::{ExecutionConfig, StepMode};
use crate::trainer::gpu::{Gpu, Kept};
use crate::trainer::inputs::{InputSizes, StaticInputs, StepInputs, StepValues};
use crate::trainer::instruments::{GraphInstruments, ms};
use esper_graph::compile::{PassSet, Recorded, compare_recordings};
use esper_graph::{
    Captured, Compilation, CompileOptions, CompileReport, DeviceClaim, Draft, GraphCache, GraphKey, GraphManager,
    GraphStats, GraphTests, Hypothesis, Judgment, Refusal, Session, Stale,
};

/// What tells the graphs of one trainer apart; everything else about it never changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct StepShape {
    /// Structure of the network.
    pub(super) topology: TopologyRevision,
    /// Samples of the window: the rest follows from the sizes of the configuration.
    pub(super) num_samples: usize,
    /// Whether the owners of the window are told apart.
    pub(super) tells_owners_apart: bool,
}

#[derive(Debug)]
struct Shape {
    key: GraphKey,
    inputs: StaticInputs,
    /// The optimizer's constants as they are on the device.
    table: Vec<f32>,
    warm_steps: u32,
    /// Whether its graph was once not compiled: then it is not tried again.
    compile_refused: bool,
    /// What was captured, until it was found to be wrong. It outlives the graph: replays are to be confirmed after that
    /// has made room for another one, too.
    tested: Option<Tested>,
}

/// What was captured, and how far it was confirmed.
#[derive(Debug)]
struct Tested {
    recorded: Arc<Recorded>,
    hypothesis: Hypothesis,
    /// The first step after the last test.
    since: StepIndex,
}

/// Decides, and keeps the graphs.
#[derive(Debug)]
pub(super) struct StepRunner {
    config: ExecutionConfig,
    gpu: Option<Gpu>,
    /// The thread's hold of a GPU, whether steps of it can be recorded or not.
    _claim: Option<Arc<DeviceClaim>>,
    cache: GraphCache<Kept, Refusal>,
    manager: GraphManager,
    shapes: BTreeMap<StepShape, Shape>,
    last_shape: Option<StepShape>,
    last_refusal: Option<Refusal>,
    failures: u32,
    /// Whether no further shape is recorded.
    disabled: bool,
    /// Whether a step has run.
    has_run: bool,
    /// Tests of captured steps, and the time of the host that they took.
    tests: GraphTests,
    /// Why what the trainer holds cannot be trusted.
    frozen: Option<(StepIndex, StepIndex, Stale)>,
    recorder: Arc<dyn Recorder>,
    instruments: GraphInstruments,
    compiles: CompileLog,
    clock: Arc<dyn Clock>,
}

impl StepRunner {
    pub(super) fn new(
        config: &ExecutionConfig,
        device: &Device,
        claim: Option<Arc<DeviceClaim>>,
        recorder: &Arc<dyn Recorder>,
        clock: &Arc<dyn Clock>,
    ) -> Result<Self, Error> {
        let manager = GraphManager::global();
        let mut runner = Self {
            config: config.clone(),
            gpu: None,
            _claim: claim.clone(),
            cache: GraphCache::new(config.max_graphs, &manager),
            manager,
            shapes: BTreeMap::new(),
            last_shape: None,
            last_refusal: None,
            failures: 0,
            disabled: false,
            has_run: false,
            tests: GraphTests::default(),
            frozen: None,
            recorder: Arc::clone(recorder),
            instruments: GraphInstruments::new(recorder),
            compiles: CompileLog::new(recorder),
            clock: Arc::clone(clock),
        };
        if device.is_cpu() {
            return Ok(runner);
        }
        let kernel_cache = config.compile_cache.clone();
        let options =
            CompileOptions { kernel_cache, ..CompileOptions::new(GraphManager::global().fueled(PassSet::all())) };
        // Also when steps run eagerly: all ways of running a step then use the same work space, and give the same bits.
        match Gpu::open(config, options, device, claim)? {
            Ok(gpu) => runner.gpu = Some(gpu),
            Err(refusal) => {
                runner.report(&refusal);
                runner.last_refusal = Some(refusal);
            }
        }
        Ok(runner)
    }

    /// Whether there is a device that records.
    pub(super) fn can_record(&self) -> bool {
        self.gpu.is_some()
    }

    /// The device that records; none when steps can only run eagerly.
    pub(super) fn session(&self) -> Option<Session> {
        self.gpu.as_ref().map(|gpu| gpu.session.clone())
    }

    /// Brings the values of a step to the device. `key` and `sizes` describe a shape that was not seen before.
    pub(super) fn load(
        &mut self,
        shape: StepShape,
        data: &Dataset,
        device: &Device,
        values: &StepValues<'_>,
        describe: impl FnOnce() -> (GraphKey, InputSizes),
    ) -> Result<StepInputs, Error> {
        let Some(gpu) = &mut self.gpu else {
            let batch = |samples: &&[u32]| to_device(data.gather(samples)?, device);
            return Ok(StepInputs::Direct(values.samples.iter().map(batch).collect::<Result<_, _>>()?));
        };
        if !self.shapes.contains_key(&shape) {
            let (key, sizes) = describe();
            let before = self.clock.now();
            let inputs = StaticInputs::new(&sizes, data, device)?;
            self.instruments.capture_ctor_ms.set(ms(self.clock.now() - before));
            if let Some(last) = self.last_shape.and_then(|last| self.shapes.get(&last)) {
                let event = Event::new(&desc::GRAPH_SHAPE_CHANGED).with("expected", &last.key).with("actual", &key);
                self.recorder.event(event);
            }
            let new = Shape { key, inputs, table: Vec::new(), warm_steps: 0, compile_refused: false, tested: None };
            self.shapes.insert(shape, new);
        }
        if self.last_shape.is_some_and(|last| last.topology != shape.topology) {
            for (_, old) in self.shapes.iter().filter(|(other, _)| other.topology != shape.topology) {
                if let Some(kept) = self.cache.peek(&old.key) {
                    kept.compiling.abandon();
                }
            }
        }
        self.last_shape = Some(shape);
        let known = self.shapes.get_mut(&shape).expect("inserted above");
        // Constants that stay the same, as those of SGD at a constant rate, are copied once.
        let moved = known.table != values.table;
        known.inputs.load(&mut gpu.ring, data, values, moved)?;
        if moved {
            known.table.clone_from(&values.table);
        }
        Ok(StepInputs::Static(known.inputs.clone()))
    }

    /// Whether this step should be recorded once more before it is taken: to be tested, or to be compiled.
    pub(super) fn needs_draft(&mut self, shape: StepShape) -> bool {
        if !self.is_enabled() {
            return false;
        }
        let Some(known) = self.shapes.get(&shape) else { return false };
        let Some(kept) = self.cache.peek(&known.key).filter(|kept| kept.captured.is_of_this_thread()) else {
            return false;
        };
        kept.compiling.needs_draft() || known.tested.as_ref().is_some_and(|tested| tested.hypothesis.is_due())
    }

    /// Takes the outcome of a recording that [`Self::needs_draft`] asked for: tests what was captured, and hands the
    /// recording to the compiler where that waits for one.
    ///
    /// # Errors
    /// As [`Self::test`].
    pub(super) fn drafted(
        &mut self,
        shape: StepShape,
        step: StepIndex,
        began: Duration,
        outcome: Result<Draft, Refusal>,
    ) -> Result<(), Error> {
        let tested = self.shapes.get(&shape).and_then(|known| known.tested.as_ref());
        let is_due = tested.is_some_and(|tested| tested.hypothesis.is_due());
        // The compiler's recordings are made anyway: only comparing them is a matter of the test.
        let began = if is_due { began } else { self.clock.now() };
        let Some(draft) = self.test(shape, step, began, outcome)? else { return Ok(()) };
        let (Some(gpu), Some(known)) = (&mut self.gpu, self.shapes.get(&shape)) else { return Ok(()) };
        if let Some(kept) = self.cache.peek(&known.key) {
            kept.compiling.drafted(gpu, draft);
        }
        Ok(())
    }

    /// Compares the recording of a step, which began then, with what was captured; returns it where they agree. Where
    /// they do not, steps of this shape run eagerly from now on.
    ///
    /// # Errors
    /// [`Error::FrozenValue`] where something was replayed since the last recording that agreed.
    pub(super) fn test(
        &mut self,
        shape: StepShape,
        step: StepIndex,
        began: Duration,
        outcome: Result<Draft, Refusal>,
    ) -> Result<Option<Draft>, Error> {
        let drafted = outcome.map_err(Refusal::or_frozen);
        let Some(tested) = self.shapes.get_mut(&shape).and_then(|known| known.tested.as_mut()) else { return Ok(None) };
        let drafted = drafted.and_then(|draft| draft.agrees_with(&tested.recorded).map(|()| draft));
        let judged = tested.hypothesis.judge(drafted.as_ref().map(drop).map_err(Clone::clone));
        let first = std::mem::replace(&mut tested.since, step);
        self.tests.num_tests += 1;
        self.tests.time += self.clock.now() - began;
        self.instruments.tests_total.add(1);
        self.judged(shape, judged, first, step)?;
        Ok(drafted.ok())
    }

    fn judged(
        &mut self,
        shape: StepShape,
        judged: Result<(), Judgment>,
        first: StepIndex,
        step: StepIndex,
    ) -> Result<(), Error> {
        let (refusal, stale) = match judged {
            Ok(()) => return Ok(()),
            Err(Judgment::InTime(refusal)) => (refusal, None),
            Err(Judgment::TooLate(stale)) => (stale.refusal.clone(), Some(stale)),
        };
        if let Some(known) = self.shapes.get_mut(&shape) {
            known.tested = None;
        }
        self.refuse(shape, refusal);
        if let Some(stale) = stale {
            self.frozen = Some((first, StepIndex(step.0.saturating_sub(1)), stale));
        }
        self.check()
    }

    /// Shapes with replays that a test has to confirm before anybody builds on them.
    pub(super) fn open_shapes(&self) -> Vec<StepShape> {
        let is_open = |known: &Shape| known.tested.as_ref().is_some_and(|tested| tested.hypothesis.is_open());
        self.shapes.iter().filter(|(_, known)| is_open(known)).map(|(shape, _)| *shape).collect()
    }

    /// The inputs of a shape that was loaded.
    pub(super) fn inputs(&self, shape: StepShape) -> Option<StepInputs> {
        self.shapes.get(&shape).map(|known| StepInputs::Static(known.inputs.clone()))
    }

    /// Others have their turn: what promises nothing is tested before it is replayed again.
    pub(super) fn doubt(&mut self) {
        for tested in self.shapes.values_mut().filter_map(|known| known.tested.as_mut()) {
            tested.hypothesis.doubt();
        }
    }

    /// Confirms that what was trained can be built on.
    ///
    /// # Errors
    /// [`Error::FrozenValue`].
    pub(super) fn check(&self) -> Result<(), Error> {
        match &self.frozen {
            Some((first, last, stale)) => Err(Error::FrozenValue { first: *first, last: *last, stale: stale.clone() }),
            None => Ok(()),
        }
    }

    /// Confirms that the parameters may be evaluated or saved: no step so far waits for a test.
    pub(super) fn confirmed(&self) -> Result<(), Error> {
        self.check()?;
        if self.open_shapes().is_empty() { Ok(()) } else { Err(Error::Unconfirmed) }
    }

    /// Tests of captured steps so far.
    pub(super) fn tests(&self) -> GraphTests {
        self.tests
    }

    /// Enqueues the graph of this shape, when there is one, and `parameters` are those it was recorded with.
    pub(super) fn replay<'a>(
        &mut self,
        shape: StepShape,
        parameters: impl Iterator<Item = (&'a str, &'a Tensor)>,
    ) -> bool {
        if !self.is_enabled() {
            return self.ran_eagerly(shape);
        }
        let (Some(gpu), Some(known)) = (&mut self.gpu, self.shapes.get(&shape)) else { return false };
        let Some(kept) = self.cache.get(&known.key) else { return self.ran_eagerly(shape) };
        let outcome = kept.confirm(parameters).and_then(|()| kept.compiling.step(gpu, &kept.captured));
        match outcome {
            Ok((taken, notice)) => {
                let remaining = kept.compiling.warmup_remaining();
                let report =
                    if notice.is_some() { kept.compiling.compiled().map(|c| c.report().clone()) } else { None };
                self.cache.record_replay(&known.key, None);
                if let Some(tested) = self.shapes.get_mut(&shape).and_then(|known| known.tested.as_mut()) {
                    tested.hypothesis.replayed();
                }
                self.instruments.replays_total.add(1);
                self.instruments.enabled.set(1.0);
                self.notice(shape, notice, report);
                self.note_step(Some(taken), remaining);
                true
            }
            // The run goes on elsewhere: warm up and record there.
            Err(Refusal::OtherThread) => {
                self.cache.invalidate(&known.key);
                if let Some(known) = self.shapes.get_mut(&shape) {
                    known.warm_steps = 0;
                    known.compile_refused = false;
                }
                self.ran_eagerly(shape)
            }
            Err(refusal) => {
                self.refuse(shape, refusal);
                self.ran_eagerly(shape)
            }
        }
    }

    /// The time before the first step of this trainer on a GPU; absent before later ones.
    pub(super) fn begin_first_step(&mut self) -> Option<Duration> {
        let is_first = self.gpu.is_some() && !self.has_run;
        self.has_run = true;
        is_first.then(|| self.clock.now())
    }

    /// Waits for the first step: what the driver compiles on the way is a figure of its own.
    pub(super) fn end_first_step(&mut self, began: Option<Duration>) {
        let (Some(began), Some(gpu)) = (began, &self.gpu) else { return };
        // A failure shows in the next call as well; here only a time would be missing.
        if gpu.session.synchronize().is_ok() {
            self.instruments.cold_start_ms.set(ms(self.clock.now() - began));
        }
    }

    /// Whether an eager step of this shape is a warm-up. Where it is not, constants that the step uploads are not kept:
    /// what changes from step to step would stay on the device for good.
    pub(super) fn warms_up(&self, shape: StepShape) -> bool {
        let known = self.shapes.get(&shape);
        self.is_enabled() && !self.disabled && known.is_some_and(|known| self.cache.refused(&known.key).is_none())
    }

    /// Notes an eager step; whether it was the last one of the warm-up, so that the step should be recorded now.
    pub(super) fn is_warm(&mut self, shape: StepShape) -> bool {
        let warms_up = self.warms_up(shape);
        let Some(known) = self.shapes.get_mut(&shape) else { return false };
        known.warm_steps = known.warm_steps.saturating_add(1);
        warms_up && known.warm_steps >= self.config.warmup_steps.get()
    }

    /// Takes the outcome of the recording of a step before this one. `held`: what the graph points at; `promise`: what
    /// the model says of its numbers.
    ///
    /// # Errors
    /// [`Error::FrozenValue`] where replays of an earlier graph of this shape were not confirmed, and now cannot be.
    pub(super) fn recorded(
        &mut self,
        shape: StepShape,
        next_step: StepIndex,
        outcome: Result<Captured, Refusal>,
        held: &[(String, Tensor)],
        promise: HostNumbers,
    ) -> Result<(), Error> {
        let known = self.shapes.get_mut(&shape).expect("a shape that was loaded");
        if let Some(Tested { recorded, mut hypothesis, since }) =
            known.tested.take().filter(|tested| tested.hypothesis.num_untested() > 0)
        {
            let again = outcome.as_ref().map_err(|refusal| refusal.clone().or_frozen());
            let again = again.and_then(|captured| {
                compare_recordings(&recorded, &captured.recorded()).map_err(|error| Refusal::frozen(&error))
            });
            let judged = hypothesis.judge(again);
            self.judged(shape, judged, since, next_step)?;
        }
        let mut captured = match outcome {
            Ok(captured) => captured,
            Err(refusal) => {
                self.refuse(shape, refusal);
                return Ok(());
            }
        };
        let schedule = self.schedule();
        let known = self.shapes.get_mut(&shape).expect("a shape that was loaded");
        let ids = held.iter().map(|(_, tensor)| tensor.id());
        let held = held.iter().map(|(name, tensor)| (name.as_str(), tensor)).chain(known.inputs.tensors());
        for (name, tensor) in held {
            if let Err(error) = captured.hold(name, tensor) {
                self.refuse(shape, Refusal::RegionFailed { message: format!("{name} cannot be held: {error}") });
                return Ok(());
            }
        }
        let ids = ids.collect();
        let recorded = captured.recorded();
        let schedule = schedule.filter(|_| !known.compile_refused);
        let hypothesis = Hypothesis::new(promise, schedule.is_some());
        known.tested = Some(Tested { recorded, hypothesis, since: next_step });
        let (times, cost) = (captured.report().times, captured.report().cost());
        let total_ms = ms(times.total());
        self.instruments.capture_ms.set(total_ms);
        self.instruments.capture_ctx_ms.set(ms(times.begin));
        self.instruments.captures_total.add(1);
        let event = Event::new(&desc::GRAPH_ENABLED_EVENT).with("capture_ms", format_args!("{total_ms:.3}"));
        self.recorder.event(event);
        self.failures = 0;
        let compiling = Compiling::new(schedule);
        let evicted = self.cache.insert(known.key.clone(), Kept { compiling, captured, ids }, cost);
        self.instruments.evictions_total.add(evicted.len() as u64);
        Ok(())
    }

    /// Lets go of all graphs: what they point at was replaced.
    pub(super) fn clear(&mut self) {
        self.cache.clear();
        self.shapes.clear();
        self.last_shape = None;
        self.frozen = None;
    }

    /// Hands what was measured on the device in an epoch to telemetry.
    pub(super) fn publish(&mut self) {
        let Some(gpu) = &mut self.gpu else { return };
        self.instruments.test_ms.set(ms(self.tests.time));
        self.instruments.replay_ms.set_or_clear(gpu.captured_ms());
        self.compiles.finish_epoch(gpu.compiled_ms());
        self.instruments.stage_copy_ms.set_or_clear(gpu.ring.copy_ms());
        let stats = self.cache.stats();
        self.instruments.bytes.set_or_clear(stats.total.bytes.map(|bytes| bytes as f64));
        self.instruments.kept.set(stats.entries as f64);
        self.instruments.hits.set(stats.total.hits as f64);
        self.instruments.misses.set(stats.total.misses as f64);
    }

    pub(super) fn stats(&self) -> GraphStats {
        self.cache.stats()
    }

    pub(super) fn last_refusal(&self) -> Option<&Refusal> {
        self.last_refusal.as_ref()
    }

    /// What became of compiled steps.
    pub(super) fn compiles(&self) -> &CompileLog {
        &self.compiles
    }

    fn is_enabled(&self) -> bool {
        self.gpu.is_some() && self.config.mode != StepMode::Eager && self.manager.enabled()
    }

    /// When captured steps are compiled; absent when they are not.
    fn schedule(&self) -> Option<CompileSchedule> {
        let is_on = self.config.mode == StepMode::Compiled && self.is_enabled();
        is_on.then_some(CompileSchedule {
            warmup_steps: self.config.compile_warmup_steps,
            verify_steps: self.config.compile_verify_steps,
        })
    }

    fn note_step(&mut self, taken: Option<Taken>, warmup_remaining: u32) {
        let remaining = self.schedule().map(|_| warmup_remaining);
        self.compiles.step(taken, remaining);
    }

    fn notice(&mut self, shape: StepShape, notice: Option<Notice>, report: Option<CompileReport>) {
        let Some(notice) = notice else { return };
        if notice != Notice::Enabled
            && let Some(known) = self.shapes.get_mut(&shape)
        {
            known.compile_refused = true;
        }
        self.compiles.notice(notice, report);
    }

    fn ran_eagerly(&mut self, shape: StepShape) -> bool {
        self.instruments.enabled.set(0.0);
        self.note_step(None, self.config.compile_warmup_steps);
        if let Some(known) = self.shapes.get(&shape).filter(|known| self.cache.refused(&known.key).is_some()) {
            self.cache.record_fallback(&known.key);
            self.instruments.fallbacks_total.add(1);
        }
        false
    }

    fn refuse(&mut self, shape: StepShape, refusal: Refusal) {
        self.failures += 1;
        self.report(&refusal);
        if let Some(known) = self.shapes.get(&shape) {
            self.cache.refuse(known.key.clone(), refusal.clone());
        }
        self.last_refusal = Some(refusal);
        if self.failures >= self.config.max_failures.get() && !self.disabled {
            self.disabled = true;
            self.recorder.event(Event::new(&desc::GRAPH_DISABLED).with("failures", self.failures));
        }
    }

    fn report(&self, refusal: &Refusal) {
        let event = Event::new(&desc::GRAPH_FALLBACK)
            .with("reason", refusal.name())
            .with("stage", refusal.stage())
            .with("error", refusal.name())
            .with("message", refusal)
            .with("failures", self.failures);
        self.recorder.event(event);
        tracing::warn!(%refusal, stage = %refusal.stage(), "steps of this shape run eagerly");
    }
}

impl Drop for StepRunner {
    fn drop(&mut self) {
        self.clear();
        Compilation::join_abandoned();
    }
}
