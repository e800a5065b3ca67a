//! Values of a step on their way to its inputs, as a launch of their own or as the first node of the graph that is the step.

use std::cell::Cell;
use std::fmt;
use std::ptr;

use candle_core::Tensor;
use cudarc::driver::{CudaFunction, sys};

use super::driver::check;
use super::emit::params_of;
use super::executable::Exec;
use super::raw::RawGraph;
use super::session::Session;
use super::staging::StagingRing;
use crate::kernels::{Copies, MAX_COPIES, WordCopy, copy_words, word_copy};
use crate::reason::{Refusal, Stage};

/// Copies that a step begins with. Who takes the step makes them: [`run`](Self::run), or
/// [`CompiledGraph::replay_fed`](super::CompiledGraph::replay_fed). One that is dropped before copies no more than was enqueued already.
#[must_use = "nothing is copied before somebody makes the copies"]
pub struct Feed<'r> {
    session: Session,
    /// The pinned buffer that is read; absent where none is.
    buffer: Option<(&'r mut StagingRing, usize)>,
    /// What is still to be done.
    copies: Vec<WordCopy>,
    /// What the addresses belong to.
    _held: Vec<Tensor>,
}

impl<'r> Feed<'r> {
    /// Copies on the stream of `session`.
    pub(super) fn new(
        session: Session,
        buffer: Option<(&'r mut StagingRing, usize)>,
        copies: Vec<WordCopy>,
        held: Vec<Tensor>,
    ) -> Self {
        Self { session, buffer, copies, _held: held }
    }

    /// Copies between tensors on the session's device, in no order; absent where one launch cannot make them: more than 32, such as are not
    /// from a contiguous tensor to one of the same type and size, in whole words of 4 bytes, and such as write what another one reads.
    pub(crate) fn of(session: &Session, copies: &[(&Tensor, &Tensor)]) -> Option<Self> {
        if copies.len() > MAX_COPIES {
            return None;
        }
        let held = copies.iter().flat_map(|(from, to)| [*from, *to]).cloned().collect();
        let copies: Vec<_> = copies.iter().map(|(from, to)| word_copy(from, to)).collect::<Option<_>>()?;
        let is_written = |read: &WordCopy| copies.iter().any(|copy| read.reads_what_is_written_by(copy));
        (!copies.iter().any(is_written)).then(|| Self::new(session.clone(), None, copies, held))
    }

    /// Enqueues the copies, unless that was done.
    ///
    /// # Errors
    /// [`Refusal::Driver`].
    /// # Sync
    /// none
    pub fn run(&mut self) -> Result<(), Refusal> {
        if self.copies.is_empty() {
            return Ok(());
        }
        let copied = match &mut self.buffer {
            Some((ring, buffer)) => ring.enqueue(*buffer, &self.copies),
            // SAFETY: the tensors have so many words, aligned to their types, and are freed in the order of the stream.
            None => unsafe { copy_words(self.session.device(), &self.copies) },
        };
        copied.map_err(|error| Refusal::Driver {
            call: "a copy to the inputs of a step",
            stage: Stage::Launch,
            message: error.to_string(),
        })?;
        self.copies.clear();
        Ok(())
    }

    /// The copies, where one launch on the stream of `session` can make them.
    pub(super) fn for_a_graph(&self, session: &Session) -> Option<&[WordCopy]> {
        let is_on_its_stream = self.session.stream().cu_stream() == session.stream().cu_stream();
        (is_on_its_stream && (1..=MAX_COPIES).contains(&self.copies.len())).then_some(&self.copies)
    }

    /// A graph that makes the copies was enqueued.
    pub(super) fn mark_enqueued(&mut self) {
        if let Some((ring, buffer)) = &mut self.buffer {
            ring.mark_read(*buffer);
        }
        self.copies.clear();
    }
}

impl fmt::Debug for Feed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Feed").field("copies", &self.copies.len()).finish_non_exhaustive()
    }
}

/// The first node of an executable graph: a kernel that copies, each time other words.
pub(super) struct FeedNode {
    node: sys::CUgraphNode,
    function: CudaFunction,
    /// Whether the next launch may copy anything.
    may_copy: Cell<bool>,
    /// What the node is of: an executable graph is told by it what to change.
    _graph: RawGraph,
}

// SAFETY: the node is the graph's, which goes along; the driver's graphs may be used from any thread, one at a time.
unsafe impl Send for FeedNode {}

impl FeedNode {
    /// Adds a kernel that copies nothing to a graph that is empty.
    pub(super) fn add(graph: sys::CUgraph, function: &CudaFunction) -> Result<sys::CUgraphNode, Refusal> {
        let mut node = ptr::null_mut();
        with_params(function, &[], |params| {
            // SAFETY: the graph is live, and the driver copies the arguments, which are those of the kernel.
            let result = unsafe { sys::cuGraphAddKernelNode_v2(&raw mut node, graph, ptr::null(), 0, params) };
            check(result, "cuGraphAddKernelNode", Stage::Compile)
        })?;
        Ok(node)
    }

    /// Of a graph that [`Self::add`] was the first to add to, and that was made executable since.
    pub(super) fn new(graph: RawGraph, node: sys::CUgraphNode, function: CudaFunction) -> Self {
        Self { node, function, may_copy: Cell::new(false), _graph: graph }
    }

    /// What the next launches of `exec` copy, at most [`MAX_COPIES`]; those that are enqueued keep theirs.
    pub(super) fn set(&self, exec: &Exec, copies: &[WordCopy]) -> Result<(), Refusal> {
        if copies.is_empty() && !self.may_copy.get() {
            return Ok(());
        }
        // Also where the driver fails half-way.
        self.may_copy.set(true);
        // SAFETY: the node is of the graph that `exec` was made from, and goes along; the arguments are those of its kernel.
        with_params(&self.function, copies, |params| unsafe { exec.set_kernel(self.node, params) })?;
        self.may_copy.set(!copies.is_empty());
        Ok(())
    }
}

/// Hands `then` what a node of the copying kernel is made of.
fn with_params(
    function: &CudaFunction,
    copies: &[WordCopy],
    then: impl FnOnce(*const sys::CUDA_KERNEL_NODE_PARAMS) -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    let (mut table, config) = Copies::of(copies);
    let mut arguments = [(&raw mut table).cast()];
    let mut params = params_of(function.cu_function());
    (params.gridDimX, params.gridDimY, params.gridDimZ) = config.grid_dim;
    (params.blockDimX, params.blockDimY, params.blockDimZ) = config.block_dim;
    params.kernelParams = arguments.as_mut_ptr();
    then(&raw const params)
}
