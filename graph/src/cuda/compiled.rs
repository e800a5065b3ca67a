//! A rewritten region that can be replayed.

use std::fmt;
use std::ops::Range;
use std::thread::{self, ThreadId};

use candle_core::Tensor;
use cudarc::driver::result;

use super::compilation::{Rewritten, Source};
use super::driver::refused;
use super::executable::Exec;
use super::feed::{Feed, FeedNode};
use super::generated::Modules;
use super::held::HeldTensors;
use super::session::Session;
use super::side::Arena;
use crate::compile_report::CompileReport;
use crate::kernels::WordCopy;
use crate::launch::Span;
use crate::reason::{Refusal, Stage};

/// A rewritten region. It takes the place of the captured one once [`CompiledGraph::verify`] has found no difference.
pub struct CompiledGraph {
    exec: Exec,
    feed: Option<FeedNode>,
    /// What is the same in every replay, and runs before the first.
    once: Option<Exec>,
    /// Dropped after the graphs that use it, as what follows: the order of fields is the order of drops.
    arena: Arena,
    /// What of the arena nothing writes once and for all.
    changing: Vec<Range<usize>>,
    /// For copies of what both graphs write, until they are compared no more.
    pub(super) copies: Option<Arena>,
    _modules: Modules,
    /// What the captured graph held when they were compared.
    pub(super) held: HeldTensors,
    pub(super) outside: Vec<(u64, usize)>,
    /// What both graphs must agree in.
    pub(super) written: Vec<Span>,
    /// Whether zeros may differ in their sign.
    pub(super) allows_signs: bool,
    pub(super) session: Session,
    pub(super) report: CompileReport,
    /// The constants that the region uploads live as long as this thread: candle keeps them per thread.
    thread: ThreadId,
    is_uploaded: bool,
    pub(super) is_verified: bool,
    /// What it was made from, until it is compared no more.
    pub(super) source: Option<Box<Source>>,
}

impl CompiledGraph {
    pub(super) fn new(rewritten: Rewritten, session: Session, thread: ThreadId) -> Self {
        let Rewritten { exec, feed, once, arena, changing, .. } = rewritten;
        let Rewritten { copies, modules, outside, written, allows_signs, report, source, .. } = rewritten;
        let adopt = |exec: super::raw::RawExec| Exec::adopt(exec.into_raw(), session.clone());
        Self {
            exec: adopt(exec),
            feed,
            once: once.map(adopt),
            arena,
            changing,
            copies: Some(copies),
            _modules: modules,
            held: HeldTensors::default(),
            outside,
            written,
            allows_signs,
            session,
            report,
            thread,
            is_uploaded: false,
            is_verified: false,
            source: Some(source),
        }
    }

    /// Enqueues the rewritten work.
    ///
    /// # Errors
    /// [`Refusal::OtherThread`] on another thread than that of the recordings; [`Refusal::NotCompiled`] before the graph
    /// was verified; [`Refusal::Driver`]; in debug builds [`Refusal::Moved`] when a held tensor is not where it was.
    /// Nothing has run then.
    /// # Sync
    /// none
    pub fn replay(&self) -> Result<(), Refusal> {
        self.check()?;
        self.launch(&[])
    }

    /// Enqueues `feed` and the rewritten work, in one launch where it [was compiled for that](crate::CompileOptions::is_fed) and `feed` is
    /// on the same stream and needs no second launch.
    ///
    /// # Errors
    /// Those of [`Self::replay`]. Nothing but copies has run then.
    /// # Sync
    /// none
    pub fn replay_fed(&self, feed: &mut Feed<'_>) -> Result<(), Refusal> {
        self.check()?;
        match feed.for_a_graph(&self.session).filter(|_| self.feed.is_some()) {
            Some(copies) => self.launch(copies).map(|()| feed.mark_enqueued()),
            None => {
                feed.run()?;
                self.launch(&[])
            }
        }
    }

    /// Whether it may be replayed now.
    fn check(&self) -> Result<(), Refusal> {
        self.check_thread()?;
        if !self.is_verified {
            let message = "it was not compared with the captured graph, or differs from it".to_owned();
            return Err(Refusal::NotCompiled { why: "not_verified", message });
        }
        if cfg!(debug_assertions) {
            self.check_addresses()?;
        }
        Ok(())
    }

    /// Enqueues the graph, with these copies before everything else.
    fn launch(&self, copies: &[WordCopy]) -> Result<(), Refusal> {
        self.feed.as_ref().map_or(Ok(()), |feed| feed.set(&self.exec, copies))?;
        // SAFETY: the graph owns its memory and holds what the captured one held, which points at all that it does; who copies keeps
        // sources and targets until the launch is enqueued, and they are freed in the order of the stream.
        unsafe { self.exec.launch() }
    }

    /// Confirms that every held tensor is where it was when it was held.
    ///
    /// # Errors
    /// [`Refusal::Moved`].
    pub fn check_addresses(&self) -> Result<(), Refusal> {
        self.held.check_addresses()
    }

    /// Confirms that `tensor` is where the tensor held under this name was.
    ///
    /// # Errors
    /// [`Refusal::Moved`].
    pub fn confirm(&self, name: &str, tensor: &Tensor) -> Result<(), Refusal> {
        self.held.confirm(name, tensor)
    }

    /// What the compiler did.
    #[must_use]
    pub fn report(&self) -> &CompileReport {
        &self.report
    }

    pub(super) fn check_thread(&self) -> Result<(), Refusal> {
        if thread::current().id() == self.thread { Ok(()) } else { Err(Refusal::OtherThread) }
    }

    /// Enqueues the rewritten work with `poison` in every byte of its own memory that it has not written yet; what runs
    /// once has run, in memory full of it, before the first time.
    pub(super) fn run_poisoned(&mut self, poison: u8) -> Result<(), Refusal> {
        self.session.context().bind_to_thread().map_err(refused("cuCtxSetCurrent", Stage::Launch))?;
        if !self.is_uploaded {
            self.exec.upload()?;
            self.once.as_ref().map_or(Ok(()), Exec::upload)?;
            self.poison(0..self.arena.bytes(), poison)?;
            // SAFETY: the graph owns its memory; what else it points at is held by the captured graph.
            self.once.as_ref().map_or(Ok(()), |once| unsafe { once.launch() })?;
            self.is_uploaded = true;
        }
        for gap in &self.changing {
            self.poison(gap.clone(), poison)?;
        }
        self.launch(&[])
    }

    /// Fills a range of the graph's own memory.
    fn poison(&self, range: Range<usize>, value: u8) -> Result<(), Refusal> {
        if range.is_empty() {
            return Ok(());
        }
        let stream = self.session.stream().cu_stream();
        // SAFETY: the memory is the graph's own, and its launches are on the same stream.
        unsafe { result::memset_d8_async(self.arena.base() + range.start as u64, value, range.len(), stream) }
            .map_err(refused("cuMemsetD8Async", Stage::Compile))
    }
}

impl fmt::Debug for CompiledGraph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompiledGraph")
            .field("nodes", &self.report.nodes_after)
            .field("is_verified", &self.is_verified)
            .finish_non_exhaustive()
    }
}
