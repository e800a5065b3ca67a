//! A rewritten region that can be replayed.

use std::fmt;
use std::thread::{self, ThreadId};

use candle_core::Tensor;
use cudarc::driver::result;
use esper_layers::Span;

use super::compilation::Rewritten;
use super::driver::refused;
use super::executable::Exec;
use super::generated::Modules;
use super::held::HeldTensors;
use super::session::Session;
use super::side::Arena;
use crate::graph::compile_report::CompileReport;
use crate::graph::reason::{Refusal, Stage};

/// A rewritten region. It takes the place of the captured one once [`CompiledGraph::verify`] has found no difference.
pub struct CompiledGraph {
    exec: Exec,
    /// What is the same in every replay, and runs before the first.
    once: Option<Exec>,
    /// Dropped after the graphs that use it, as what follows: the order of fields is the order of drops.
    arena: Arena,
    _modules: Modules,
    held: HeldTensors,
    /// What both graphs must agree in.
    pub(super) written: Vec<Span>,
    pub(super) session: Session,
    pub(super) report: CompileReport,
    /// The constants that the region uploads live as long as this thread: candle keeps them per thread.
    thread: ThreadId,
    is_uploaded: bool,
    pub(super) is_verified: bool,
}

impl CompiledGraph {
    pub(super) fn new(rewritten: Rewritten, session: Session, thread: ThreadId) -> Self {
        let Rewritten { exec, once, arena, modules, written, report } = rewritten;
        let adopt = |exec: super::raw::RawExec| Exec::adopt(exec.into_raw(), session.clone());
        Self {
            exec: adopt(exec),
            once: once.map(adopt),
            arena,
            _modules: modules,
            held: HeldTensors::default(),
            written,
            session,
            report,
            thread,
            is_uploaded: false,
            is_verified: false,
        }
    }

    /// Keeps `tensor` alive for as long as the graph, and remembers where it is. Everything that the captured graph
    /// holds has to be held here, too, before the captured graph goes.
    ///
    /// # Errors
    /// When the tensor is not contiguous or not on the GPU.
    pub fn hold(&mut self, name: impl Into<String>, tensor: &Tensor) -> candle_core::Result<()> {
        self.held.hold(name, tensor)
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
        self.check_thread()?;
        if !self.is_verified {
            let message = "it was not compared with the captured graph, or differs from it".to_owned();
            return Err(Refusal::NotCompiled { why: "not_verified", message });
        }
        if cfg!(debug_assertions) {
            self.check_addresses()?;
        }
        // SAFETY: the graph owns its memory and holds what else it points at.
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

    /// Enqueues the rewritten work with `poison` in every byte of its own memory that it has not written yet.
    pub(super) fn run_poisoned(&mut self, poison: u8) -> Result<(), Refusal> {
        self.session.context().bind_to_thread().map_err(refused("cuCtxSetCurrent", Stage::Launch))?;
        if !self.is_uploaded {
            self.exec.upload()?;
            self.once.as_ref().map_or(Ok(()), Exec::upload)?;
            self.is_uploaded = true;
        }
        if self.arena.bytes() > 0 {
            let stream = self.session.stream().cu_stream();
            // SAFETY: the memory is the graph's own, and its launches are on the same stream.
            unsafe { result::memset_d8_async(self.arena.base(), poison, self.arena.bytes(), stream) }
                .map_err(refused("cuMemsetD8Async", Stage::Compile))?;
        }
        for exec in self.once.iter().chain([&self.exec]) {
            // SAFETY: the graph owns its memory; what else it points at is held by the captured graph.
            unsafe { exec.launch() }?;
        }
        Ok(())
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
