//! What becomes of steps, as telemetry.

use std::sync::Arc;
use std::time::Duration;

use esper_graph::execute::{Gpu, Notice, Taken, Watch};
use esper_graph::{CaptureReport, CompileReport, GraphKey, GraphStats, GraphTests, Refusal, Session, StagingRing};
use leyline::clock::Clock;
use leyline::telemetry::{Event, Recorder};

use crate::telemetry as desc;
use crate::trainer::instruments::{CompileInstruments, GraphInstruments, ms};

#[derive(Debug)]
pub(super) struct ExecutionLog {
    recorder: Arc<dyn Recorder>,
    clock: Arc<dyn Clock>,
    graphs: GraphInstruments,
    compiles: CompileInstruments,
    tally: EpochTally,
    /// The device whose first step is still to come: what the driver compiles on the way is a figure of its own.
    cold: Option<Session>,
    /// When the first step began, while it is under way.
    began: Option<Duration>,
    /// Steps of the launch that is told next.
    num_steps: usize,
}

impl ExecutionLog {
    pub(super) fn new(recorder: &Arc<dyn Recorder>, clock: &Arc<dyn Clock>) -> Self {
        Self {
            graphs: GraphInstruments::new(recorder),
            compiles: CompileInstruments::new(recorder),
            recorder: Arc::clone(recorder),
            clock: Arc::clone(clock),
            tally: EpochTally::default(),
            cold: None,
            began: None,
            num_steps: 1,
        }
    }

    /// The first eager step on this device is timed, and waited for.
    pub(super) fn first_step_on(&mut self, gpu: &Gpu) {
        self.cold = Some(gpu).map(|gpu| gpu.session().clone());
    }

    /// What is told next is of so many steps.
    pub(super) fn launch_of(&mut self, num_steps: usize) {
        self.num_steps = num_steps;
    }

    /// A shape of step is there that was not seen before.
    pub(super) fn new_shape(&self, last: Option<&GraphKey>, new: &GraphKey) {
        if let Some(last) = last {
            self.recorder.event(Event::new(&desc::GRAPH_SHAPE_CHANGED).with("expected", last).with("actual", new));
        }
    }

    /// Makes the inputs of a shape.
    pub(super) fn timed_inputs<T, E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let before = self.clock.now();
        let made = make()?;
        self.graphs.capture_ctor_ms.set(ms(self.clock.now() - before));
        Ok(made)
    }

    /// Ends the epoch.
    pub(super) fn finish_epoch(
        &mut self,
        tests: GraphTests,
        stats: &GraphStats,
        compiled_bytes: Option<u64>,
        gpu: &mut Gpu,
        ring: &mut StagingRing,
    ) {
        self.graphs.test_ms.set(ms(tests.time));
        self.graphs.replay_ms.set_or_clear(gpu.captured_ms());
        self.compiles.replay_ms.set_or_clear(gpu.compiled_ms());
        if self.tally.finish() {
            self.compiles.compiled_epochs.add(1);
        }
        self.graphs.stage_copy_ms.set_or_clear(ring.copy_ms());
        self.graphs.bytes.set_or_clear(stats.total.bytes.map(|bytes| bytes as f64));
        self.compiles.bytes.set_or_clear(compiled_bytes.map(|bytes| bytes as f64));
        self.graphs.kept.set(stats.entries as f64);
        self.graphs.hits.set(stats.total.hits as f64);
        self.graphs.misses.set(stats.total.misses as f64);
    }

    /// So many evaluations were replayed.
    pub(super) fn evaluated(&self, num_replays: u64) {
        self.graphs.evaluations_total.add(num_replays);
    }

    /// All graphs went: what tells of the present ones is at 0, what counts goes on.
    pub(super) fn graphs_went(&self) {
        for gauge in [&self.graphs.enabled, &self.graphs.kept, &self.graphs.bytes, &self.compiles.enabled] {
            gauge.set(0.0);
        }
        self.compiles.bytes.set_or_clear(None);
    }

    /// Notes a step; `None` ran eagerly.
    fn step(&mut self, taken: Option<Taken>, remaining: Option<u32>) {
        self.tally.note(taken);
        let is_compiled = taken == Some(Taken::Compiled);
        self.graphs.enabled.set(f64::from(u8::from(taken.is_some())));
        self.compiles.enabled.set(f64::from(u8::from(is_compiled)));
        self.compiles.warmup_remaining.set_or_clear(remaining.map(f64::from));
        if is_compiled {
            self.compiles.replays_total.add(self.num_steps as u64);
        }
    }
}

impl Watch for ExecutionLog {
    fn now(&self) -> Duration {
        self.clock.now()
    }

    fn eager_begins(&mut self) {
        self.began = self.cold.is_some().then(|| self.clock.now());
    }

    fn eager_ended(&mut self) {
        let (Some(session), Some(began)) = (self.cold.take(), self.began.take()) else { return };
        // A failure shows in the next call as well; here only a time would be missing.
        if session.synchronize().is_ok() {
            self.graphs.cold_start_ms.set(ms(self.clock.now() - began));
        }
    }

    fn captured(&mut self, report: &CaptureReport, num_evicted: usize) {
        let total_ms = ms(report.times.total());
        self.graphs.capture_ms.set(total_ms);
        self.graphs.capture_ctx_ms.set(ms(report.times.begin));
        self.graphs.captures_total.add(1);
        let event = Event::new(&desc::GRAPH_ENABLED_EVENT).with("capture_ms", format_args!("{total_ms:.3}"));
        self.recorder.event(event);
        self.graphs.evictions_total.add(num_evicted as u64);
    }

    fn tested(&mut self) {
        self.graphs.tests_total.add(1);
    }

    fn replayed(&mut self, taken: Taken, remaining: Option<u32>) {
        self.graphs.replays_total.add(self.num_steps as u64);
        self.step(Some(taken), remaining);
    }

    fn not_replayed(&mut self, fell_back: bool, remaining: Option<u32>) {
        self.step(None, remaining);
        if fell_back {
            self.graphs.fallbacks_total.add(self.num_steps as u64);
        }
    }

    fn refused(&mut self, refusal: &Refusal, num_failures: u32) {
        let event = Event::new(&desc::GRAPH_FALLBACK)
            .with("reason", refusal.name())
            .with("stage", refusal.stage())
            .with("error", refusal.name())
            .with("message", refusal)
            .with("failures", num_failures);
        self.recorder.event(event);
        tracing::warn!(%refusal, stage = %refusal.stage(), "steps of this shape run eagerly");
    }

    fn gave_up(&mut self, num_failures: u32) {
        self.recorder.event(Event::new(&desc::GRAPH_DISABLED).with("failures", num_failures));
    }

    fn noticed(&mut self, notice: &Notice, report: Option<&CompileReport>) {
        match notice {
            Notice::Enabled => {
                if let Some(report) = report {
                    self.compiles.compiled(report);
                }
            }
            Notice::FellBack(refusal) => self.compiles.fell_back(&desc::COMPILE_FALLBACK, refusal),
            Notice::Searched(refusal) => self.compiles.searched(refusal),
            Notice::FellBackAtReplay(refusal) => self.compiles.fell_back(&desc::COMPILE_RUNTIME_FALLBACK, refusal),
        }
    }
}

/// Whether an epoch was a compiled one: its steps, after any eager ones at its start, were all replays of compiled
/// graphs, and there was at least one.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct EpochTally {
    compiled: u64,
    other: bool,
}

impl EpochTally {
    /// Notes a step; `None` ran eagerly.
    fn note(&mut self, taken: Option<Taken>) {
        match taken {
            Some(Taken::Compiled) => self.compiled += 1,
            None if self.compiled == 0 => {}
            None | Some(Taken::Captured | Taken::Verified) => self.other = true,
        }
    }

    /// Ends the epoch; whether it was a compiled one.
    fn finish(&mut self) -> bool {
        let Self { compiled, other } = std::mem::take(self);
        compiled > 0 && !other
    }
}

#[cfg(test)]
mod tests {
    use esper_graph::{CaptureTimes, NodeCounts};
    use leyline_testkit::clock::ManualClock;
    use leyline_testkit::recording_recorder::RecordingRecorder;

    use super::*;

    #[test]
    fn across_a_rollback_counters_go_on_and_gauges_are_those_of_the_graphs_that_are_there() {
        let recorder = Arc::new(RecordingRecorder::new());
        let shared: Arc<dyn Recorder> = recorder.clone();
        let clock: Arc<dyn Clock> = Arc::new(ManualClock::default());
        let mut log = ExecutionLog::new(&shared, &clock);
        let times = CaptureTimes { record: Duration::from_millis(3), ..CaptureTimes::default() };
        let report = CaptureReport {
            nodes: NodeCounts::default(),
            allocated_bytes: 8,
            peak_bytes: 8,
            reserved_bytes: Some(8),
            times,
        };
        let counter = |name: &str| recorder.counter_value(&format!("tolaria.graph.{name}"), &[]).unwrap();
        let gauge = |name: &str| recorder.gauge_value(&format!("tolaria.{name}"), &[]);
        for round in 1..=3 {
            log.captured(&report, 0);
            (0..2).for_each(|_| log.replayed(Taken::Captured, None));
            log.launch_of(3);
            log.replayed(Taken::Captured, None);
            log.launch_of(1);
            log.replayed(Taken::Compiled, None);
            log.graphs.kept.set(1.0);
            log.graphs.bytes.set(8.0);
            log.compiles.bytes.set(16.0);
            assert_eq!((counter("captures_total"), counter("replays_total")), (round, 6 * round));
            let present = ["train.graph_enabled", "train.compile_enabled", "graph.kept", "graph.memory_bytes"];
            assert_eq!(present.map(gauge), [Some(1.0), Some(1.0), Some(1.0), Some(8.0)]);
            // The run goes back.
            log.graphs_went();
            assert_eq!((counter("captures_total"), counter("replays_total")), (round, 6 * round));
            assert_eq!(counter("evictions_total"), 0, "none went for want of a place");
            assert_eq!(present.map(gauge), [Some(0.0); 4]);
            assert_eq!(gauge("compile.memory_bytes"), None, "no compiled graph is there");
            assert_eq!(gauge("graph.capture_ms"), Some(3.0), "what was measured stays");
            log.not_replayed(false, None);
            assert_eq!(gauge("train.graph_enabled"), Some(0.0));
        }
        assert_eq!(recorder.events_named("tolaria.graph_enabled").len(), 3);
        assert_eq!(recorder.events_named("tolaria.graph_fallback").len(), 0, "going back is no failure of a graph");
    }

    #[test]
    fn an_epoch_is_compiled_when_nothing_but_first_eager_steps_ran_otherwise() {
        for (steps, expected) in [
            ("", false),
            ("e", false),
            ("X", true),
            ("eeXXX", true),
            ("XXe", false),
            ("eXcX", false),
            ("cXXX", false),
            ("vX", false),
            ("eecccvvXX", false),
        ] {
            let mut tally = EpochTally::default();
            for step in steps.chars() {
                tally.note(match step {
                    'c' => Some(Taken::Captured),
                    'v' => Some(Taken::Verified),
                    'X' => Some(Taken::Compiled),
                    _ => None,
                });
            }
            assert_eq!(tally.finish(), expected, "{steps}");
            assert_eq!(tally, EpochTally::default(), "an epoch starts anew");
        }
    }
}
