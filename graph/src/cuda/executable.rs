//! A graph that can be replayed, with everything it points at.

use std::fmt::{self, Display};
use std::sync::Arc;
use std::thread::{self, ThreadId};
use std::time::Duration;

use candle_core::Tensor;
use cudarc::driver::result;
use cudarc::driver::sys;
use leyline::region::{Eager, Recording};

use super::driver::{check, refused};
use super::held::HeldTensors;
use super::lookup::allocation;
use super::session::Session;
use crate::compile::{Outside, Recorded, outside};
use crate::manager::GraphManager;
use crate::reason::{Refusal, Stage};
use crate::report::CaptureReport;

/// A recorded region, ready to be replayed once it owns what the recording points at, so that nothing of it can be freed
/// before the graph is.
pub struct Captured {
    exec: Exec,
    /// Dropped after `exec`: the order of fields is the order of drops.
    pub(super) held: HeldTensors,
    /// Memory that the recording points at and that nobody is known to keep alive; absent where an owner answers for it.
    unheld: Option<Vec<Outside>>,
    /// What was recorded, for later recordings to be compared with.
    recorded: Arc<Recorded>,
    report: CaptureReport,
    /// The constants that the region uploads live as long as this thread: candle keeps them per thread.
    thread: ThreadId,
}

impl Captured {
    pub(super) fn new(
        graph: sys::CUgraph,
        recorded: Recorded,
        session: Session,
        mut report: CaptureReport,
    ) -> Result<Self, Refusal> {
        let clock = leyline::clock::SystemClock::new();
        let before = session.graph_memory().ok();
        let exec = Exec::instantiate(graph, session.clone())?;
        report.times.instantiate = clock_now(&clock);
        let mark = clock_now(&clock);
        exec.upload()?;
        report.times.upload = clock_now(&clock) - mark;
        let grown = |before: super::GraphMemory| {
            session.graph_memory().ok().map(|after| after.reserved.saturating_sub(before.reserved))
        };
        report.reserved_bytes = before.and_then(grown);
        let (held, recorded) = (HeldTensors::default(), Arc::new(recorded));
        Ok(Self { exec, held, unheld: None, recorded, report, thread: thread::current().id() })
    }

    /// Keeps `tensor` alive for as long as the graph, and remembers where it is.
    ///
    /// # Errors
    /// When the tensor is not contiguous or not on the GPU.
    pub fn hold(&mut self, name: impl Into<String>, tensor: &Tensor) -> candle_core::Result<()> {
        let address = self.held.hold(name, tensor)?;
        if let Some(unheld) = &mut self.unheld {
            unheld.retain(|outside| !(outside.address..outside.address + outside.bytes as u64).contains(&address));
        }
        Ok(())
    }

    /// Looks up what has to be held before the graph is replayed. The context is current.
    pub(super) fn require_held(&mut self) {
        let scratch = self.exec.session.workspace();
        let mut unheld = outside(&self.recorded, allocation);
        unheld.retain(|outside| !outside.is_constant && !scratch.contains(&outside.address));
        self.unheld = Some(unheld);
    }

    /// Confirms that these allocations, sorted by address, are among those that the recording points at.
    pub(super) fn contains(&self, allocations: &[(u64, usize)]) -> Result<(), Refusal> {
        if self.unheld.is_none() {
            return Ok(());
        }
        let found = outside(&self.recorded, |address| {
            let (base, bytes) = allocations[..allocations.partition_point(|(base, _)| *base <= address)].last()?;
            (address - base < *bytes as u64).then_some((*base, *bytes))
        });
        let is_missing = |(base, _): &&(u64, usize)| !found.iter().any(|outside| outside.address == *base);
        let missing = allocations.iter().find(is_missing);
        missing.map_or(Ok(()), |(_, bytes)| Err(Refusal::NotHeld { bytes: *bytes, kernel: None }))
    }

    /// Lets the graph be replayed though not all is held that it points at.
    ///
    /// # Safety
    /// Whatever the region read or wrote and did not make is alive, and the same tensor, in every replay.
    #[must_use]
    pub unsafe fn assume_held(mut self) -> Self {
        self.unheld = None;
        self
    }

    /// Enqueues the recorded work.
    ///
    /// # Errors
    /// [`Refusal::OtherThread`] on another thread than that of the capture; [`Refusal::NotHeld`] where the graph points at
    /// memory that no held tensor keeps alive; [`Refusal::Driver`]; in debug builds [`Refusal::Moved`] when a held tensor
    /// is not where it was. Nothing has run then.
    /// # Sync
    /// none
    pub fn replay(&self) -> Result<(), Refusal> {
        if !self.is_of_this_thread() {
            return Err(Refusal::OtherThread);
        }
        if let Some(Outside { bytes, kernel, .. }) = self.unheld.as_ref().and_then(|unheld| unheld.first()) {
            return Err(Refusal::NotHeld { bytes: *bytes, kernel: kernel.clone() });
        }
        if cfg!(debug_assertions) {
            self.check_addresses()?;
        }
        // SAFETY: what the graph points at is held, or kept by an owner who answers for it.
        unsafe { self.exec.launch() }
    }

    /// Confirms that every held tensor is where it was at capture.
    ///
    /// # Errors
    /// [`Refusal::Moved`].
    pub fn check_addresses(&self) -> Result<(), Refusal> {
        self.held.check_addresses()
    }

    /// Confirms that `tensor` is where the tensor held under this name was at capture.
    ///
    /// # Errors
    /// [`Refusal::Moved`].
    pub fn confirm(&self, name: &str, tensor: &Tensor) -> Result<(), Refusal> {
        self.held.confirm(name, tensor)
    }

    /// Confirms that `region` is still what was captured: it is recorded once more, and nothing runs. A number that
    /// changed on the host since, another branch or another tensor is found; where this succeeds right before a replay,
    /// that replay does what the region would.
    ///
    /// # Errors
    /// [`Refusal::FrozenValue`]; [`Refusal::OtherThread`]; what [`Session::capture`] refuses.
    /// # Sync
    /// none
    pub fn test<E: Display>(
        &self,
        eager: &mut Eager,
        region: impl FnOnce(&Recording) -> Result<(), E>,
    ) -> Result<(), Refusal> {
        if !self.is_of_this_thread() {
            return Err(Refusal::OtherThread);
        }
        let draft = eager.record(|recording| self.exec.session.draft(recording, region));
        draft.map_err(Refusal::or_frozen)?.agrees_with(&self.recorded)
    }

    /// What was recorded.
    #[must_use]
    pub(crate) fn recorded(&self) -> Arc<Recorded> {
        Arc::clone(&self.recorded)
    }

    /// Whether it may be replayed and tested on this thread.
    #[must_use]
    pub fn is_of_this_thread(&self) -> bool {
        thread::current().id() == self.thread
    }

    /// What the capture found and cost.
    #[must_use]
    pub fn report(&self) -> &CaptureReport {
        &self.report
    }
}

impl fmt::Debug for Captured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Captured").field("nodes", &self.report.nodes.total()).finish_non_exhaustive()
    }
}

/// The executable graph alone.
pub(super) struct Exec {
    exec: sys::CUgraphExec,
    session: Session,
}

// SAFETY: the driver's graph objects may be used from any thread, one at a time; `launch`, `upload` and `set_kernel` are the only uses, go through
// a shared reference to a value that is not `Sync`, and have the context current on the calling thread.
unsafe impl Send for Exec {}

impl Exec {
    /// Takes the graph; it is destroyed whatever happens, the executable form does not need it.
    fn instantiate(graph: sys::CUgraph, session: Session) -> Result<Self, Refusal> {
        // No AUTO_FREE: memory that outlives a launch is refused at inspection, and would fail loudly here.
        // SAFETY: the graph is live and not shared.
        let exec = unsafe { result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0)) };
        // SAFETY: nobody else has the handle.
        let destroyed = unsafe { result::graph::destroy(graph) };
        let exec = Self { exec: exec.map_err(refused("cuGraphInstantiate", Stage::Instantiate))?, session };
        destroyed.map_err(refused("cuGraphDestroy", Stage::Instantiate))?;
        Ok(exec)
    }

    /// Takes an executable graph that nobody else has the handle of.
    pub(super) fn adopt(exec: sys::CUgraphExec, session: Session) -> Self {
        Self { exec, session }
    }

    /// Asks for the transfer to the device. The context is current.
    pub(super) fn upload(&self) -> Result<(), Refusal> {
        // SAFETY: both handles are live.
        unsafe { result::graph::upload(self.exec, self.session.stream().cu_stream()) }
            .map_err(refused("cuGraphUpload", Stage::Instantiate))
    }

    /// Gives a kernel of the graph other arguments and another grid, from the next launch on.
    ///
    /// # Safety
    /// The node is of the graph that this was made from, which is alive, and the arguments are those of its kernel. What they point at
    /// lives until each launch with them is over.
    pub(super) unsafe fn set_kernel(
        &self,
        node: sys::CUgraphNode,
        params: *const sys::CUDA_KERNEL_NODE_PARAMS,
    ) -> Result<(), Refusal> {
        self.session.context().bind_to_thread().map_err(refused("cuCtxSetCurrent", Stage::Launch))?;
        // SAFETY: both handles are live, and the driver copies the arguments.
        let result = unsafe { sys::cuGraphExecKernelNodeSetParams_v2(self.exec, node, params) };
        check(result, "cuGraphExecKernelNodeSetParams", Stage::Launch)
    }

    /// Enqueues the graph.
    ///
    /// # Safety
    /// What the graph points at lives until the stream has caught up.
    pub(super) unsafe fn launch(&self) -> Result<(), Refusal> {
        self.session.context().bind_to_thread().map_err(refused("cuCtxSetCurrent", Stage::Launch))?;
        // SAFETY: the executable graph is live, the caller answers for its memory, and launches of it are ordered by
        // its stream.
        unsafe { result::graph::launch(self.exec, self.session.stream().cu_stream()) }
            .map_err(refused("cuGraphLaunch", Stage::Launch))
    }
}

impl Drop for Exec {
    /// Waits for a replay that is still running, then returns the memory to the device, unless that is to be kept.
    fn drop(&mut self) {
        let context = self.session.context();
        let fenced = context.bind_to_thread().and_then(|()| self.session.stream().synchronize());
        // SAFETY: no launch is under way after the fence, and the handle is not used again. A context that is lost
        // took the graph with it.
        let destroyed = unsafe { result::graph::exec_destroy(self.exec) };
        let keeps_memory = GraphManager::global().keeps_memory();
        let trimmed = if keeps_memory { Ok(()) } else { self.session.trim_graph_memory() };
        if fenced.is_err() || destroyed.is_err() || trimmed.is_err() {
            tracing::warn!(?fenced, ?destroyed, ?trimmed, "a graph was not released in order");
        }
    }
}

fn clock_now(clock: &leyline::clock::SystemClock) -> Duration {
    leyline::clock::Clock::now(clock)
}
