//! The executor of a trainer: static inputs of each shape of launch, and what became of its graphs.
//!
//! Whether a step runs eagerly, is replayed or compiled is decided in [`esper_graph::execute`]. What was captured is a
//! hypothesis: where a later recording differs, the shape runs eagerly from then on, and the run ends where something was
//! replayed since the last recording that agreed (decision 15).

use std::sync::Arc;

use candle_core::Device;
use esper_graph::compile::PassSet;
use esper_graph::execute::{
    CompileSchedule, Executor, ExecutorConfig, Failure, Gpu, Region as _, Unconfirmed, Watch as _,
};
use esper_graph::{
    CompileOptions, DeviceClaim, GraphManager, Precision, ProductSwitches, Refusal, Session, StagingLane, StagingRing,
};
use leyline::clock::Clock;
use leyline::id::{StepIndex, TopologyRevision};
use leyline::model::TrainableModel;
use leyline::region::Eager;
use leyline::telemetry::Recorder;

use crate::error::{self, Error, Replayed};
use crate::host_read::HostReads;
use crate::trainer::config::{ExecutionConfig, StepMode};
use crate::trainer::evaluate::{Evaluation, evaluate};
use crate::trainer::evaluations::{Evaluated, Evaluations};
use crate::trainer::execution_log::ExecutionLog;
use crate::trainer::feed::WindowSamples;
use crate::trainer::inputs::StepInputs;
use crate::trainer::phase::phase;
use crate::trainer::region::Region;

/// What tells the graphs of one trainer apart; everything else about it never changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct StepShape {
    /// Structure of the network.
    pub(super) topology: TopologyRevision,
    /// Of products: a setting, or a switch of the process.
    pub(super) precision: Precision,
    /// What a library beside may move at any time.
    pub(super) switches: ProductSwitches,
    /// Samples of the window: the rest follows from the sizes of the configuration.
    pub(super) num_samples: usize,
    /// Whether the owners of the window are told apart.
    pub(super) tells_owners_apart: bool,
    /// Steps of a launch.
    pub(super) num_steps: usize,
}

/// A GPU whose steps can be recorded.
#[derive(Debug)]
struct RecordingDevice {
    gpu: Gpu,
    ring: StagingRing,
    evaluations: Evaluations,
}

/// Runs the steps of a trainer.
#[derive(Debug)]
pub(super) struct StepExecutor {
    graphs: Executor<StepShape, Vec<StepInputs>>,
    device: Option<RecordingDevice>,
    /// The thread's hold of a GPU, whether steps of it can be recorded or not.
    _claim: Option<Arc<DeviceClaim>>,
    /// Why there is no device that records.
    closed: Option<Refusal>,
    last_shape: Option<StepShape>,
    /// Why what the trainer holds cannot be trusted.
    pub(super) frozen: Option<(Replayed, Unconfirmed)>,
    /// Why it is neither one state nor another.
    half_restored: Option<String>,
    /// Whether steps are to reach the device as graphs.
    wants_graphs: bool,
    /// Whether graphs went before their replays were tested.
    is_untested: bool,
    log: ExecutionLog,
}

impl StepExecutor {
    pub(super) fn new(
        config: &ExecutionConfig,
        device: &Device,
        claim: Option<Arc<DeviceClaim>>,
        recorder: &Arc<dyn Recorder>,
        clock: &Arc<dyn Clock>,
    ) -> Result<Self, Error> {
        let compile =
            CompileSchedule { warmup_steps: config.compile_warmup_steps, verify_steps: config.compile_verify_steps };
        let execution = ExecutorConfig {
            is_on: config.mode != StepMode::Eager,
            warm_up: config.warmup_steps,
            compile: (config.mode == StepMode::Compiled).then_some(compile),
            limit: config.max_graphs,
            max_failures: Some(config.max_failures),
            keeps_shapes: true,
        };
        let mut executor = Self {
            wants_graphs: execution.is_on,
            graphs: Executor::new(execution, &GraphManager::global()),
            device: None,
            _claim: claim.clone(),
            closed: None,
            last_shape: None,
            frozen: None,
            half_restored: None,
            is_untested: false,
            log: ExecutionLog::new(recorder, clock),
        };
        if device.is_cpu() {
            return Ok(executor);
        }
        let kernel_cache = config.compile_cache.clone();
        // Copies on a stream of their own are no part of a graph.
        let is_fed = !config.prefetch;
        let options = CompileOptions { kernel_cache, is_fed, ..CompileOptions::new(PassSet::all()) };
        // Also when steps run eagerly: all ways of running a step then use the same work space, and give the same bits.
        let open = || Session::claimed(device, claim.clone()).and_then(|session| Gpu::new(session, options.clone()));
        match open().and_then(|gpu| Ok((gpu, open()?))) {
            Ok((gpu, of_evaluations)) => {
                let lane = if config.prefetch { StagingLane::Own } else { StagingLane::Compute };
                let ring = StagingRing::new(gpu.session(), config.staging_buffers, lane)?;
                executor.log.first_step_on(&gpu);
                let evaluations = Evaluations::new(of_evaluations, executor.wants_graphs);
                executor.device = Some(RecordingDevice { gpu, ring, evaluations });
            }
            Err(refusal) => {
                executor.log.refused(&refusal, 0);
                executor.closed = Some(refusal);
            }
        }
        Ok(executor)
    }

    /// What is known of the graphs.
    pub(super) fn graphs(&self) -> &Executor<StepShape, Vec<StepInputs>> {
        &self.graphs
    }

    /// Whether there is a device that records.
    pub(super) fn can_record(&self) -> bool {
        self.device.is_some()
    }

    /// The device that records, where there is one.
    pub(super) fn session(&self) -> Option<&Session> {
        self.device.as_ref().map(|device| device.gpu.session())
    }

    /// Takes the steps of a launch with these samples in their microbatches. After an error the region says how many were taken
    /// before it.
    ///
    /// # Errors
    /// Those of the step; [`Error::FrozenValue`].
    pub(super) fn step<M: TrainableModel>(
        &mut self,
        eager: &mut Eager,
        samples: &mut [WindowSamples<'_>],
        region: &mut Region<'_, M>,
    ) -> Result<(), Error> {
        let (shape, step) = (region.first().shape, region.first().step.0);
        self.log.launch_of(shape.num_steps);
        let Some(RecordingDevice { gpu, ring, .. }) = &mut self.device else {
            self.log.not_replayed(false, None);
            let _phase = phase!("eager");
            let direct = samples.iter_mut().map(|samples| StepInputs::direct(region.data, samples, region.device));
            let mut inputs = direct.collect::<Result<_, _>>()?;
            return region.run_eagerly(eager, None::<&Gpu>, &mut inputs).map(drop);
        };
        if !self.graphs.knows(&shape) {
            let key = region.key();
            self.log.new_shape(self.last_shape.and_then(|last| self.graphs.key(&last)), &key);
        }
        if self.last_shape.is_some_and(|last| last.topology != shape.topology) {
            self.graphs.abandon(|other| other.topology != shape.topology);
        }
        self.last_shape = Some(shape);
        let log = &mut self.log;
        let inputs =
            self.graphs.inputs(&shape, || Ok::<_, Error>((region.key(), log.timed_inputs(|| region.inputs())?)))?;
        let feed = StepInputs::load(inputs, ring, region.data, samples, region.plans)?;
        let _phase = phase!("replay");
        gpu.set_steps_per_replay(u32::try_from(shape.num_steps).unwrap_or(u32::MAX));
        let outcome = self.graphs.step(gpu, eager, (&shape, step), (region, feed), &mut self.log);
        if let (Err(_), Some(inputs)) = (&outcome, self.graphs.inputs_of_mut(&shape)) {
            inputs.iter_mut().for_each(StepInputs::load_anew);
        }
        if !matches!(outcome, Err(Failure::Region(_))) {
            // Others say nothing of steps: the region was recorded, or not run.
            region.num_taken = 0;
        }
        outcome.map(drop).map_err(|failure| self.failed(Replayed::Steps, failure))
    }

    /// Evaluates on held-out data as of step `step`, on a GPU by a graph where it can be.
    ///
    /// # Errors
    /// Those of [`evaluate`]; [`Error::FrozenValue`].
    pub(super) fn evaluate<M: TrainableModel>(
        &mut self,
        eager: &mut Eager,
        step: StepIndex,
        evaluated: Evaluated<'_, M>,
        reads: &mut HostReads,
    ) -> Result<Evaluation, Error> {
        let Some(RecordingDevice { evaluations, .. }) = &mut self.device else {
            return evaluate(eager, evaluated.model, &evaluated.held_out, evaluated.probes, reads);
        };
        let before = evaluations.num_replays();
        let outcome = evaluations.evaluate(eager, step, evaluated, reads);
        self.log.evaluated(evaluations.num_replays() - before);
        outcome.map_err(|failure| self.failed(Replayed::Evaluations, failure))
    }

    /// Tests what was captured of the shape of `region`, as of step `step`.
    ///
    /// # Errors
    /// [`Error::FrozenValue`].
    pub(super) fn test<M: TrainableModel>(
        &mut self,
        eager: &mut Eager,
        step: StepIndex,
        region: &mut Region<'_, M>,
    ) -> Result<(), Error> {
        let Some(RecordingDevice { gpu, .. }) = &self.device else { return Ok(()) };
        let shape = region.first().shape;
        let tested = self.graphs.test(gpu, eager, (&shape, step.0), region, &mut self.log);
        tested.map_err(|found| self.freeze(Replayed::Steps, found))
    }

    /// As [`Executor::doubt`].
    pub(super) fn doubt(&mut self) {
        self.graphs.doubt();
    }

    /// Confirms that training may go on: no step so far is known to be wrong.
    ///
    /// # Errors
    /// [`Error::FrozenValue`], [`Error::HalfRestored`].
    pub(super) fn trusted(&self) -> Result<(), Error> {
        if let Some(reason) = &self.half_restored {
            return Err(Error::HalfRestored { reason: reason.clone() });
        }
        self.frozen.as_ref().map_or(Ok(()), |frozen| Err(told(frozen)))
    }

    /// Confirms that the parameters may be evaluated or saved: no step so far is wrong or waits for a test.
    ///
    /// # Errors
    /// Those of [`Self::trusted`], [`Error::Unconfirmed`].
    pub(super) fn confirmed(&self) -> Result<(), Error> {
        self.trusted()?;
        if self.graphs.open_shapes().is_empty() && !self.is_untested { Ok(()) } else { Err(Error::Unconfirmed) }
    }

    /// Whether steps run eagerly from now on, whatever the settings say. What was captured is kept.
    pub(super) fn run_eagerly(&mut self, is_eager: bool) {
        let is_on = self.wants_graphs && !is_eager;
        self.graphs.set_on(is_on);
        if let Some(device) = &mut self.device {
            device.evaluations.set_on(is_on);
        }
    }

    /// Lets go of all graphs and of all doubt: what they point at was replaced, by a state that can be trusted.
    pub(super) fn clear(&mut self) {
        self.drop_graphs();
        (self.frozen, self.half_restored, self.is_untested) = (None, None, false);
    }

    /// Lets go of all graphs: what they point at was replaced.
    pub(super) fn drop_graphs(&mut self) {
        self.is_untested |= !self.graphs.open_shapes().is_empty();
        if self.graphs.clear() > 0 {
            self.log.graphs_went();
        }
        if let Some(device) = &mut self.device {
            device.evaluations.clear();
        }
        self.last_shape = None;
    }

    /// A state could not be restored, and what was there before could not be put back.
    pub(super) fn half_restored(&mut self, failed: &Error, not_back: &Error) -> Error {
        let reason = format!("{}; putting back: {}", error::chain(failed), error::chain(not_back));
        self.half_restored = Some(reason.clone());
        Error::HalfRestored { reason }
    }

    /// Hands what was measured on the device in an epoch to telemetry.
    pub(super) fn publish(&mut self) {
        let Some(RecordingDevice { gpu, ring, .. }) = &mut self.device else { return };
        self.log.finish_epoch(self.graphs.tests(), &self.graphs.stats(), self.graphs.compiled_bytes(), gpu, ring);
    }

    /// What became of evaluations, where there is a device that records.
    pub(super) fn evaluations(&self) -> Option<&Evaluations> {
        self.device.as_ref().map(|device| &device.evaluations)
    }

    pub(super) fn last_refusal(&self) -> Option<&Refusal> {
        self.graphs.last_refusal().or(self.closed.as_ref())
    }

    fn failed(&mut self, replayed: Replayed, failure: Failure<Error>) -> Error {
        match failure {
            Failure::Region(error) => error,
            Failure::Feed(refusal) => candle_core::Error::wrap(refusal).into(),
            Failure::Unconfirmed(found) => self.freeze(replayed, found),
        }
    }

    fn freeze(&mut self, replayed: Replayed, found: Unconfirmed) -> Error {
        let frozen = (replayed, found);
        let error = told(&frozen);
        self.frozen = Some(frozen);
        error
    }
}

fn told((replayed, Unconfirmed { first, found, stale }): &(Replayed, Unconfirmed)) -> Error {
    let (first, last) = (StepIndex(*first), StepIndex(found.saturating_sub(1).max(*first)));
    Error::FrozenValue { replayed: *replayed, first, last, stale: stale.clone() }
}

#[cfg(test)]
mod tests {
    use esper_graph::Stale;
    use esper_graph::execute::Taken;
    use leyline_testkit::clock::ManualClock;
    use leyline_testkit::recording_recorder::RecordingRecorder;

    use super::*;

    fn executor(mode: StepMode, recorder: &Arc<RecordingRecorder>) -> StepExecutor {
        let (recorder, clock): (Arc<dyn Recorder>, Arc<dyn Clock>) =
            (recorder.clone(), Arc::new(ManualClock::default()));
        let config = ExecutionConfig { mode, ..ExecutionConfig::default() };
        StepExecutor::new(&config, &Device::Cpu, None, &recorder, &clock).unwrap()
    }

    #[test]
    fn steps_reach_a_device_as_graphs_where_the_settings_want_it_and_nobody_asks_for_eager_ones() {
        for (mode, wants) in [(StepMode::Eager, false), (StepMode::Graph, true), (StepMode::Compiled, true)] {
            let mut executor = executor(mode, &Arc::default());
            assert_eq!(executor.graphs.is_enabled(), wants, "{mode:?}");
            executor.run_eagerly(true);
            assert!(!executor.graphs.is_enabled(), "{mode:?}");
            executor.run_eagerly(false);
            assert_eq!(executor.graphs.is_enabled(), wants, "{mode:?}");
        }
    }

    #[test]
    fn the_cpu_records_nothing_and_why_a_device_does_not_is_told() {
        let mut executor = executor(StepMode::Compiled, &Arc::default());
        assert!(!executor.can_record() && executor.session().is_none());
        assert_eq!(executor.last_refusal(), None);
        executor.closed = Some(Refusal::SharedDevice);
        assert_eq!(executor.last_refusal(), Some(&Refusal::SharedDevice));
    }

    #[test]
    fn what_cannot_be_trusted_is_named_steps_or_evaluations() {
        for (replayed, expected) in [
            (Replayed::Steps, "steps 3 to 4 cannot be trusted; resume a checkpoint from before step 3"),
            (
                Replayed::Evaluations,
                "evaluations after steps 3 to 4, and what was decided by them, cannot be trusted; resume a checkpoint from before step 3",
            ),
        ] {
            let mut executor = executor(StepMode::Graph, &Arc::default());
            let stale = Stale { num_replays: 1, refusal: Refusal::Empty };
            let found = Unconfirmed { first: 3, found: 5, stale };
            let error = executor.failed(replayed, Failure::Unconfirmed(found));
            for text in [error.to_string(), executor.trusted().unwrap_err().to_string()] {
                assert!(text.starts_with(expected), "{text}");
            }
        }
    }

    #[test]
    fn graphs_that_went_untested_are_remembered_until_a_state_that_can_be_trusted_is_there() {
        let recorder = Arc::new(RecordingRecorder::new());
        let mut executor = executor(StepMode::Compiled, &recorder);
        let shape = StepShape {
            topology: TopologyRevision(1),
            precision: Precision::F32,
            switches: ProductSwitches::default(),
            num_samples: 4,
            tells_owners_apart: false,
            num_steps: 1,
        };
        executor.log.replayed(Taken::Captured, None);
        executor.last_shape = Some(shape);
        executor.drop_graphs();
        assert_eq!(executor.last_shape, None);
        assert_eq!(recorder.gauge_value("tolaria.train.graph_enabled", &[]), Some(1.0), "there were no graphs to go");
        assert!(executor.confirmed().is_ok(), "nothing was replayed");
        executor.is_untested = true;
        executor.drop_graphs();
        assert!(matches!(executor.confirmed(), Err(Error::Unconfirmed)));
        assert!(executor.trusted().is_ok(), "training may go on");
        executor.clear();
        assert!(executor.confirmed().is_ok());
    }
}
