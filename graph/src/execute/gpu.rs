//! A device that records, compiles, replays and measures.

use std::sync::Arc;

use candle_core::{Device, Tensor};
use leyline::region::{Eager, Recording};

use super::backend::Backend;
use super::compiling::Compiler;
use crate::compile::{Recorded, compare_recordings};
use crate::compile_report::{CompileOptions, CompileReport};
use crate::reason::Refusal;
use crate::report::CaptureReport;
use crate::{Captured, Compilation, CompiledGraph, DeviceTimer, Draft, Feed, Search, Searched, Session};

/// Replays from one that is measured to the next: events are not free.
const SAMPLE_EVERY: u64 = 64;

/// A session of a GPU, with what it takes to compile, and stopwatches.
#[derive(Debug)]
pub struct Gpu {
    session: Session,
    options: CompileOptions,
    captured: Stopwatch,
    compiled: Stopwatch,
    num_steps: u32,
}

/// Times of some of the replays of one kind.
#[derive(Debug)]
struct Stopwatch {
    timer: DeviceTimer,
    num_replays: u64,
    /// Steps of the replay that is measured.
    num_steps: u32,
    /// Of a step of the last replay that was.
    last_ms: Option<f64>,
}

impl Gpu {
    /// Over a session that is open.
    ///
    /// # Errors
    /// [`Refusal::Driver`].
    pub fn new(session: Session, options: CompileOptions) -> Result<Self, Refusal> {
        let stopwatch = || {
            let timer = session.timer()?;
            Ok::<_, Refusal>(Stopwatch { timer, num_replays: 0, num_steps: 1, last_ms: None })
        };
        let (captured, compiled) = (stopwatch()?, stopwatch()?);
        Ok(Self { session, options, captured, compiled, num_steps: 1 })
    }

    /// The session.
    #[must_use]
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Says how many steps the next replays are, of which a time is told of each: one until then.
    pub fn set_steps_per_replay(&mut self, num_steps: u32) {
        self.num_steps = num_steps;
    }

    /// Time on the device of a step of the last replay of a captured graph that was measured, ms.
    pub fn captured_ms(&mut self) -> Option<f64> {
        self.captured.poll();
        self.captured.last_ms
    }

    /// The same of a compiled graph.
    pub fn compiled_ms(&mut self) -> Option<f64> {
        self.compiled.poll();
        self.compiled.last_ms
    }
}

impl Stopwatch {
    fn around(
        &mut self,
        session: &Session,
        num_steps: u32,
        replay: impl FnOnce() -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let sampled = self.num_replays.is_multiple_of(SAMPLE_EVERY);
        self.num_replays += 1;
        // One that is under way is left to itself: its steps are known.
        if !(sampled && self.poll()) {
            return replay();
        }
        self.num_steps = num_steps;
        session.time(&mut self.timer, replay)
    }

    /// Takes in what is known by now; whether nothing is under way.
    fn poll(&mut self) -> bool {
        let (measured, is_idle) = self.timer.take_ms();
        if let Some(ms) = measured {
            self.last_ms = Some(ms / f64::from(self.num_steps));
        }
        is_idle
    }
}

impl Compiler for Gpu {
    type Captured = Captured;
    type Draft = Draft;
    type Job = Compilation;
    type Compiled = CompiledGraph;
    type Search = Search;
    type Feed<'a> = Feed<'a>;

    fn feed(&mut self, feed: &mut Feed<'_>) -> Result<(), Refusal> {
        feed.run()
    }

    fn start(&mut self, drafts: [Draft; 2], fuel: Option<usize>) -> Compilation {
        let mut options = self.options.clone();
        if let Some(fuel) = fuel {
            options.passes = options.passes.with_fuel(fuel);
        }
        Compilation::start(&self.session, drafts, options)
    }

    fn poll(&mut self, job: &mut Compilation) -> Option<Result<CompiledGraph, Refusal>> {
        job.poll()
    }

    fn verify(&mut self, compiled: &mut CompiledGraph, captured: &Captured, poison: u8) -> Result<(), Refusal> {
        compiled.verify(captured, poison)
    }

    fn search(&mut self, compiled: CompiledGraph, refusal: &Refusal) -> Option<Search> {
        compiled.search(refusal, true)
    }

    fn search_step(&mut self, search: &mut Search, captured: &Captured) -> Result<Searched, Refusal> {
        search.step(captured)
    }

    fn accept(&mut self, compiled: &mut CompiledGraph) {
        compiled.end_verification();
    }

    fn replay_captured(&mut self, captured: &Captured) -> Result<(), Refusal> {
        self.captured.around(&self.session, self.num_steps, || captured.replay())
    }

    fn replay(&mut self, compiled: &CompiledGraph, feed: Option<&mut Feed<'_>>) -> Result<(), Refusal> {
        self.compiled.around(&self.session, self.num_steps, || match feed {
            Some(feed) => compiled.replay_fed(feed),
            None => compiled.replay(),
        })
    }
}

impl Backend for Gpu {
    type Recorded = Arc<Recorded>;

    fn open(device: &Device, options: CompileOptions) -> Result<Self, Refusal> {
        Self::new(Session::open(device)?, options)
    }

    fn enter(&self) -> Result<(), Refusal> {
        self.session.enter()
    }

    fn copies(&self, copies: &[(&Tensor, &Tensor)]) -> Option<Feed<'static>> {
        Feed::of(&self.session, copies)
    }

    fn warm<R>(&self, work: impl FnOnce() -> R) -> R {
        self.session.warm(work)
    }

    fn capture(
        &self,
        eager: &mut Eager,
        region: impl FnOnce(&Recording) -> Result<(), String>,
    ) -> Result<Captured, Refusal> {
        eager.record(|recording| self.session.record(recording, region))
    }

    fn draft(
        &self,
        eager: &mut Eager,
        region: impl FnOnce(&Recording) -> Result<(), String>,
    ) -> Result<Draft, Refusal> {
        eager.record(|recording| self.session.draft(recording, region))
    }

    fn recorded(captured: &Captured) -> Arc<Recorded> {
        captured.recorded()
    }

    fn agrees(recorded: &Arc<Recorded>, draft: &Draft) -> Result<(), Refusal> {
        draft.agrees_with(recorded)
    }

    fn same(recorded: &Arc<Recorded>, again: &Arc<Recorded>) -> Result<(), Refusal> {
        compare_recordings(recorded, again).map_err(|error| Refusal::frozen(&error))
    }

    fn hold(captured: &mut Captured, name: &str, tensor: &Tensor) -> candle_core::Result<()> {
        captured.hold(name, tensor)
    }

    fn is_of_this_thread(captured: &Captured) -> bool {
        captured.is_of_this_thread()
    }

    fn report(captured: &Captured) -> &CaptureReport {
        captured.report()
    }

    fn compile_report(compiled: &CompiledGraph) -> &CompileReport {
        compiled.report()
    }

    fn join_abandoned() {
        Compilation::join_abandoned();
    }
}
