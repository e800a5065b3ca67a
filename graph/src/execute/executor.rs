//! Decides how each step of a region runs, and keeps what can be replayed.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::num::NonZeroU32;
use std::time::Duration;

use leyline::region::Eager;

use super::backend::Backend;
use super::compiling::{CompileSchedule, Compiling, Notice, Taken};
use super::config::ExecutorConfig;
use super::gpu::Gpu;
use super::region::{Failure, Ran, Region, Unconfirmed, Watch, record};
use super::replayable::Replayable;
use super::shape::{Shape, Tested};
use crate::cache::GraphCache;
use crate::compile_report::CompileReport;
use crate::key::GraphKey;
use crate::manager::GraphManager;
use crate::reason::Refusal;
use crate::retest::{GraphTests, Hypothesis, Judgment};
use crate::stats::{GraphStats, KeyStats};

/// Runs the steps of one owner, on one thread: eagerly, or as what it keeps of their shape.
///
/// `K` tells the shapes of the owner apart, `I` are the static inputs of a shape, and `B` is what records.
///
/// # Contract
/// 1. [`step`](Self::step) takes the step exactly once, however it ends; where it fails, not at all, or as far as the region
///    came.
/// 2. A step that is replayed gives the bits of an eager one, unless a number of the host moved since the capture: then a
///    later test finds it. Steps of a shape in [`open_shapes`](Self::open_shapes) are not tested yet.
/// 3. A compiled graph is replayed only after it left what the captured one did, in as many steps as the schedule says.
/// 4. A shape that was refused is not captured again, before it is forgotten.
#[derive(Debug)]
pub struct Executor<K, I, B: Backend = Gpu> {
    config: ExecutorConfig,
    manager: GraphManager,
    /// Dropped before the inputs that its graphs point at.
    cache: GraphCache<Replayable<B>, Refusal>,
    shapes: BTreeMap<K, Shape<I, B::Recorded>>,
    num_steps: u64,
    num_failures: u32,
    /// Whether no further shape is captured.
    has_given_up: bool,
    tests: GraphTests,
    last_refusal: Option<Refusal>,
    compile_report: Option<CompileReport>,
    compile_refusal: Option<Refusal>,
}

impl<K: Ord + Clone + Debug, I, B: Backend> Executor<K, I, B> {
    /// Nothing is known yet.
    #[must_use]
    pub fn new(config: ExecutorConfig, manager: &GraphManager) -> Self {
        Self {
            cache: GraphCache::new(config.limit, manager),
            config,
            manager: manager.clone(),
            shapes: BTreeMap::new(),
            num_steps: 0,
            num_failures: 0,
            has_given_up: false,
            tests: GraphTests::default(),
            last_refusal: None,
            compile_report: None,
            compile_refusal: None,
        }
    }

    /// Whether this shape has static inputs.
    #[must_use]
    pub fn knows(&self, shape: &K) -> bool {
        self.shapes.contains_key(shape)
    }

    /// The key of a shape that is known.
    #[must_use]
    pub fn key(&self, shape: &K) -> Option<&GraphKey> {
        self.shapes.get(shape).map(|known| &known.key)
    }

    /// The static inputs of a shape, which `make` makes where it is new, for the values of the next step to be copied to.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn inputs<E>(&mut self, shape: &K, make: impl FnOnce() -> Result<(GraphKey, I), E>) -> Result<&mut I, E> {
        let is_lost = |known: &Shape<_, _>| known.is_captured && self.cache.peek(&known.key).is_none();
        if !self.config.keeps_shapes && self.shapes.get(shape).is_some_and(is_lost) {
            self.shapes.remove(shape);
        }
        if !self.shapes.contains_key(shape) {
            let (key, inputs) = make()?;
            self.make_room();
            let new = Shape {
                key,
                inputs,
                num_warm: 0,
                is_captured: false,
                is_compile_refused: false,
                tested: None,
                used: 0,
            };
            self.shapes.insert(shape.clone(), new);
        }
        self.num_steps += 1;
        let known = self.shapes.get_mut(shape).expect("inserted above");
        known.used = self.num_steps;
        Ok(&mut known.inputs)
    }

    /// The static inputs of a shape, if it is known, to be changed.
    #[must_use]
    pub fn inputs_of_mut(&mut self, shape: &K) -> Option<&mut I> {
        self.shapes.get_mut(shape).map(|known| &mut known.inputs)
    }

    /// The static inputs of a shape, if it is known.
    #[must_use]
    pub fn inputs_of(&self, shape: &K) -> Option<&I> {
        self.shapes.get(shape).map(|known| &known.inputs)
    }

    /// Takes one step of a shape whose inputs are [in place](Self::inputs), or are copied there by `feed`. `step` is its number, for messages.
    ///
    /// # Errors
    /// [`Failure`].
    /// # Sync
    /// none, but in steps that verify a compiled graph; a capture waits for the device when another graph goes
    pub fn step<R: Region<I>>(
        &mut self,
        backend: &mut B,
        eager: &mut Eager,
        (shape, step): (&K, u64),
        (region, mut feed): (&mut R, Option<B::Feed<'_>>),
        watch: &mut impl Watch,
    ) -> Result<Ran, Failure<R::Error>> {
        if self.needs_draft(shape) {
            let began = watch.now();
            let outcome = self.draft(backend, eager, shape, region);
            self.drafted(backend, (shape, step), began, outcome, watch)?;
        }
        if let Some(taken) = self.replay(backend, shape, (region, feed.as_mut()), watch) {
            return Ok(Ran::Replayed(taken));
        }
        feed.as_mut().map_or(Ok(()), |feed| backend.feed(feed)).map_err(Failure::Feed)?;
        self.run_eagerly(backend, eager, (shape, step), region, watch)?;
        Ok(Ran::Eagerly)
    }

    /// Records what a shape does once more, and compares that with what was captured, as of step `step`: before somebody
    /// builds on what was replayed.
    ///
    /// # Errors
    /// [`Unconfirmed`] where they differ and something was replayed since the last recording that agreed.
    pub fn test<R: Region<I>>(
        &mut self,
        backend: &B,
        eager: &mut Eager,
        (shape, step): (&K, u64),
        region: &mut R,
        watch: &mut impl Watch,
    ) -> Result<(), Unconfirmed> {
        let began = watch.now();
        let outcome = self.draft(backend, eager, shape, region);
        self.judge_draft((shape, step), began, outcome, watch).map(drop)
    }

    /// Shapes with replays that a test has to confirm before anybody builds on them.
    #[must_use]
    pub fn open_shapes(&self) -> Vec<K> {
        let is_open = |known: &Shape<_, _>| known.tested.as_ref().is_some_and(|tested| tested.hypothesis.is_open());
        self.shapes.iter().filter(|(_, known)| is_open(known)).map(|(shape, _)| shape.clone()).collect()
    }

    /// Whether steps are recorded and replayed from now on; what was captured is kept. Replays so far are to be tested before.
    pub fn set_on(&mut self, is_on: bool) {
        self.config.is_on = is_on;
    }

    /// Others have their turn: what promises nothing is tested before it is replayed again.
    pub fn doubt(&mut self) {
        for tested in self.shapes.values_mut().filter_map(|known| known.tested.as_mut()) {
            tested.hypothesis.doubt();
        }
    }

    /// Lets go of the compiles of shapes that are over. They start anew should these shapes come back.
    pub fn abandon(&mut self, is_over: impl Fn(&K) -> bool) {
        for (_, known) in self.shapes.iter().filter(|(shape, _)| is_over(shape)) {
            if let Some(kept) = self.cache.peek(&known.key) {
                kept.compiling.abandon();
            }
        }
    }

    /// Forgets a shape: its inputs, its graph and its refusal. Returns whether there was a graph.
    ///
    /// # Sync
    /// waits for the device when there was one
    pub fn forget(&mut self, shape: &K, key: &GraphKey) -> bool {
        let had_graph = self.cache.invalidate(key).is_some();
        self.shapes.remove(shape);
        had_graph
    }

    /// Forgets all shapes, graphs and refusals. Returns the number of graphs.
    ///
    /// # Sync
    /// waits for the device when there were any
    pub fn clear(&mut self) -> usize {
        let num_graphs = self.cache.clear();
        self.shapes.clear();
        num_graphs
    }

    /// Lets go of the inputs of a shape that runs eagerly from now on, and says why that is.
    pub fn release(&mut self, shape: &K, key: &GraphKey, refusal: Option<Refusal>) {
        if let Some(refusal) = refusal {
            self.cache.refuse(key.clone(), refusal);
        }
        self.shapes.remove(shape);
    }

    /// Why a key is not captured, if it was refused.
    #[must_use]
    pub fn refused(&self, key: &GraphKey) -> Option<&Refusal> {
        self.cache.refused(key)
    }

    /// Counts a run of a refused key that its owner made by itself.
    pub fn count_fallback(&mut self, key: &GraphKey) {
        self.cache.record_fallback(key);
    }

    /// What happened so far.
    #[must_use]
    pub fn stats(&self) -> GraphStats {
        self.cache.stats()
    }

    /// Device memory of the compiled graphs that are replayed now, bytes; that of the captured graphs beside them is in the
    /// [statistics](Self::stats). Absent where there is no compiled one.
    #[must_use]
    pub fn compiled_bytes(&self) -> Option<u64> {
        let compiled = self.cache.held().filter_map(|kept| kept.compiling.compiled());
        compiled.map(|compiled| B::compile_report(compiled).arena_bytes as u64).reduce(|sum, bytes| sum + bytes)
    }

    /// What happened to one key.
    pub(crate) fn stats_of(&self, key: &GraphKey) -> KeyStats {
        self.cache.stats_of(key)
    }

    /// Tests of captured steps so far.
    #[must_use]
    pub fn tests(&self) -> GraphTests {
        self.tests
    }

    /// The last refusal of a shape.
    #[must_use]
    pub fn last_refusal(&self) -> Option<&Refusal> {
        self.last_refusal.as_ref()
    }

    /// What the compiler did to the last shape that it compiled.
    #[must_use]
    pub fn compile_report(&self) -> Option<&CompileReport> {
        self.compile_report.as_ref()
    }

    /// Why the last shape that could not be compiled could not.
    #[must_use]
    pub fn compile_refusal(&self) -> Option<&Refusal> {
        self.compile_refusal.as_ref()
    }

    /// Whether steps may be captured and replayed now.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.config.is_on && self.manager.enabled()
    }

    /// Shapes in warm-up.
    #[cfg(test)]
    pub(crate) fn num_warming(&self) -> usize {
        self.shapes.values().filter(|known| !known.is_captured).count()
    }

    /// When captured shapes are compiled, now.
    fn schedule(&self) -> Option<CompileSchedule> {
        self.config.compile.filter(|_| self.is_enabled())
    }

    /// The shape in warm-up that was used longest ago goes where there are too many.
    fn make_room(&mut self) {
        if !self.config.keeps_shapes {
            // Graphs that somebody else dropped leave shapes that nobody may ever call again.
            let cache = &mut self.cache;
            self.shapes.retain(|_, known| !known.is_captured || cache.peek(&known.key).is_some());
        }
        while !self.config.keeps_shapes {
            let warming = self.shapes.iter().filter(|(_, known)| !known.is_captured);
            if warming.clone().count() < self.config.limit.get() {
                return;
            }
            let Some(oldest) = warming.min_by_key(|(_, known)| known.used).map(|(shape, _)| shape.clone()) else {
                return;
            };
            self.shapes.remove(&oldest);
        }
    }

    /// Whether this step is to be recorded once more before it is taken: to be tested, or to be compiled.
    fn needs_draft(&mut self, shape: &K) -> bool {
        if !self.is_enabled() {
            return false;
        }
        let Some(known) = self.shapes.get(shape) else { return false };
        let Some(kept) = self.cache.peek(&known.key).filter(|kept| B::is_of_this_thread(&kept.captured)) else {
            return false;
        };
        kept.compiling.needs_draft() || known.is_due()
    }

    fn draft<R: Region<I>>(
        &self,
        backend: &B,
        eager: &mut Eager,
        shape: &K,
        region: &mut R,
    ) -> Result<B::Draft, Refusal> {
        let known = self.shapes.get(shape).expect("a shape that is known");
        record(region, &known.inputs, |run| backend.draft(eager, run))
    }

    /// Tests what was captured with a draft, and hands that to the compiler where it waits for one.
    fn drafted(
        &mut self,
        backend: &mut B,
        (shape, step): (&K, u64),
        began: Duration,
        outcome: Result<B::Draft, Refusal>,
        watch: &mut impl Watch,
    ) -> Result<(), Unconfirmed> {
        // The compiler's recordings are made anyway: only comparing them is a matter of the test.
        let began = if self.shapes.get(shape).is_some_and(Shape::is_due) { began } else { watch.now() };
        let Some(draft) = self.judge_draft((shape, step), began, outcome, watch)? else { return Ok(()) };
        if let Some(kept) = self.shapes.get(shape).and_then(|known| self.cache.peek(&known.key)) {
            kept.compiling.drafted(backend, draft, self.manager.fuel());
        }
        Ok(())
    }

    /// Compares a recording with what was captured; returns it where they agree.
    fn judge_draft(
        &mut self,
        (shape, step): (&K, u64),
        began: Duration,
        outcome: Result<B::Draft, Refusal>,
        watch: &mut impl Watch,
    ) -> Result<Option<B::Draft>, Unconfirmed> {
        let drafted = outcome.map_err(Refusal::or_frozen);
        let Some(tested) = self.shapes.get_mut(shape).and_then(|known| known.tested.as_mut()) else { return Ok(None) };
        let drafted = drafted.and_then(|draft| B::agrees(&tested.recorded, &draft).map(|()| draft));
        let judged = tested.hypothesis.judge(drafted.as_ref().map(drop).map_err(Clone::clone));
        let first = std::mem::replace(&mut tested.since, step);
        self.tests.num_tests += 1;
        self.tests.time += watch.now() - began;
        watch.tested();
        self.judged((shape, step), first, judged, watch)?;
        Ok(drafted.ok())
    }

    fn judged(
        &mut self,
        (shape, step): (&K, u64),
        first: u64,
        judged: Result<(), Judgment>,
        watch: &mut impl Watch,
    ) -> Result<(), Unconfirmed> {
        let (refusal, stale) = match judged {
            Ok(()) => return Ok(()),
            Err(Judgment::InTime(refusal)) => (refusal, None),
            Err(Judgment::TooLate(stale)) => (stale.refusal.clone(), Some(stale)),
        };
        if let Some(known) = self.shapes.get_mut(shape) {
            known.tested = None;
        }
        self.refuse(shape, refusal, watch);
        stale.map_or(Ok(()), |stale| Err(Unconfirmed { first, found: step, stale }))
    }

    /// Enqueues the graph of this shape, where there is one that takes the step.
    fn replay<R: Region<I>>(
        &mut self,
        backend: &mut B,
        shape: &K,
        (region, feed): (&R, Option<&mut B::Feed<'_>>),
        watch: &mut impl Watch,
    ) -> Option<Taken> {
        let schedule = self.schedule();
        let kept = match self.shapes.get_mut(shape) {
            Some(known) if self.config.is_on && self.manager.enabled() => {
                self.cache.get(&known.key).map(|kept| (known, kept))
            }
            _ => None,
        };
        let Some((known, kept)) = kept else {
            self.not_replayed(shape, watch);
            return None;
        };
        match kept.step(backend, region.parameters(), feed) {
            Ok((taken, notice)) => {
                let remaining = schedule.map(|_| kept.compiling.warmup_remaining());
                let report = kept.compiling.compiled().filter(|_| notice.is_some()).map(B::compile_report).cloned();
                self.cache.record_replay(&known.key, None);
                if taken == Taken::Compiled {
                    self.cache.record_compiled(&known.key);
                }
                if let Some(tested) = &mut known.tested {
                    tested.hypothesis.replayed();
                }
                if let Some(notice) = notice {
                    known.is_compile_refused |= notice != Notice::Enabled;
                    self.notice(&notice, report, watch);
                }
                watch.replayed(taken, remaining);
                Some(taken)
            }
            // The steps go on elsewhere: they are warmed up and captured there.
            Err(Refusal::OtherThread) => {
                self.cache.invalidate(&known.key);
                (known.num_warm, known.is_captured, known.is_compile_refused) = (0, false, false);
                known.tested = known.tested.take().filter(|_| self.config.keeps_shapes);
                self.not_replayed(shape, watch);
                None
            }
            Err(refusal) => {
                self.refuse(shape, refusal, watch);
                self.not_replayed(shape, watch);
                None
            }
        }
    }

    fn notice(&mut self, notice: &Notice, report: Option<CompileReport>, watch: &mut impl Watch) {
        watch.noticed(notice, report.as_ref());
        match notice {
            Notice::Enabled => self.compile_report = report,
            Notice::FellBack(refusal) | Notice::FellBackAtReplay(refusal) | Notice::Searched(refusal) => {
                self.compile_refusal = Some(refusal.clone());
            }
        }
    }

    fn not_replayed(&mut self, shape: &K, watch: &mut impl Watch) {
        let fell_back = self.shapes.get(shape).filter(|known| self.cache.refused(&known.key).is_some());
        if let Some(known) = fell_back {
            self.cache.record_fallback(&known.key);
        }
        let remaining = self.schedule().map(|schedule| schedule.warmup_steps);
        watch.not_replayed(fell_back.is_some(), remaining);
    }

    /// Runs the step, and captures it where that was the last one of its warm-up.
    fn run_eagerly<R: Region<I>>(
        &mut self,
        backend: &mut B,
        eager: &mut Eager,
        (shape, step): (&K, u64),
        region: &mut R,
        watch: &mut impl Watch,
    ) -> Result<(), Failure<R::Error>> {
        // Where an eager step is no warm-up, constants that it uploads are not kept: what changes from step to step would
        // stay on the device for good.
        let is_on = self.is_enabled() && !self.has_given_up;
        let known = self.shapes.get_mut(shape).expect("a shape that is known");
        let warms_up = is_on && self.cache.refused(&known.key).is_none();
        watch.eager_begins();
        let warm_up = warms_up.then_some(&*backend);
        let refusal = region.run_eagerly(eager, warm_up, &mut known.inputs).map_err(Failure::Region)?;
        watch.eager_ended();
        if let Some(refusal) = refusal {
            self.refuse(shape, refusal, watch);
            return Ok(());
        }
        known.num_warm = known.num_warm.saturating_add(1);
        if warms_up && known.num_warm >= self.config.warm_up.get() {
            let outcome = record(region, &known.inputs, |run| backend.capture(eager, run));
            self.captured((shape, step + 1), outcome, region, watch)?;
        }
        Ok(())
    }

    /// Keeps what was captured, to be replayed from `next_step` on.
    fn captured<R: Region<I>>(
        &mut self,
        (shape, next_step): (&K, u64),
        outcome: Result<B::Captured, Refusal>,
        region: &R,
        watch: &mut impl Watch,
    ) -> Result<(), Unconfirmed> {
        let known = self.shapes.get_mut(shape).expect("a shape that is known");
        // Replays of an earlier graph of this shape are confirmed by this one, or not at all; a lack of memory says nothing of them.
        let is_recorded = !matches!(outcome, Err(Refusal::OutOfMemory { .. }));
        let earlier = known.tested.take_if(|_| is_recorded).filter(|tested| tested.hypothesis.num_untested() > 0);
        if let Some(Tested { recorded, mut hypothesis, since }) = earlier {
            let again = outcome.as_ref().map_err(|refusal| refusal.clone().or_frozen());
            let again = again.and_then(|captured| B::same(&recorded, &B::recorded(captured)));
            let judged = hypothesis.judge(again);
            self.judged((shape, next_step), since, judged, watch)?;
        }
        let known = self.shapes.get(shape).expect("a shape that is known");
        let kept = outcome.and_then(|mut captured| {
            for (name, tensor) in region.held(&known.inputs) {
                let refusal = B::hold(&mut captured, &name, &tensor).err().and_then(|e| region.not_held(&name, &e));
                refusal.map_or(Ok(()), Err)?;
            }
            Ok(captured)
        });
        let captured = match kept {
            Ok(captured) => captured,
            Err(refusal) => {
                self.refuse(shape, refusal, watch);
                return Ok(());
            }
        };
        let schedule = self.schedule();
        let known = self.shapes.get_mut(shape).expect("a shape that is known");
        let schedule = schedule.filter(|_| !known.is_compile_refused);
        let hypothesis = Hypothesis::new(region.promise(), schedule.is_some());
        known.tested = Some(Tested { recorded: B::recorded(&captured), hypothesis, since: next_step });
        known.is_captured = true;
        let (key, report) = (known.key.clone(), B::report(&captured).clone());
        let parameters = region.parameters().map(|(_, tensor)| tensor.id()).collect();
        let kept = Replayable { compiling: Compiling::new(schedule), captured, parameters };
        self.num_failures = 0;
        let evicted = self.cache.insert(key.clone(), kept, report.cost());
        watch.captured(&report, evicted.len());
        // Each graph goes before the inputs that it points at.
        let gone: Vec<GraphKey> = evicted.into_iter().map(|(gone, _)| gone).filter(|gone| *gone != key).collect();
        if !self.config.keeps_shapes {
            self.shapes.retain(|_, known| !gone.contains(&known.key));
        }
        Ok(())
    }

    fn refuse(&mut self, shape: &K, refusal: Refusal, watch: &mut impl Watch) {
        self.num_failures += 1;
        watch.refused(&refusal, self.num_failures);
        if let Some(known) = self.shapes.get_mut(shape) {
            known.is_captured = false;
            self.cache.refuse(known.key.clone(), refusal.clone());
        }
        self.last_refusal = Some(refusal);
        let most = self.config.max_failures.map_or(u32::MAX, NonZeroU32::get);
        if self.num_failures >= most && !self.has_given_up {
            self.has_given_up = true;
            watch.gave_up(self.num_failures);
        }
    }
}

impl<K, I, B: Backend> Drop for Executor<K, I, B> {
    fn drop(&mut self) {
        // A compile that is under way uses what the graphs hold.
        self.cache.clear();
        B::join_abandoned();
    }
}

#[cfg(test)]
mod tests;
