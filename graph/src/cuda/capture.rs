//! Records a region. Whatever the region does, the stream leaves recording mode and the device stays usable.

use std::any::Any;
use std::fmt::Display;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use cudarc::driver::{result, sys};
use leyline::clock::{Clock as _, SystemClock};
use leyline::region::{Eager, Recording};

use super::driver::{check, refused};
use super::executable::Captured;
use super::inspect::{Inventory, balanced_nodes};
use super::raw::RawGraph;
use super::read::Reading;
use super::session::Session;
use crate::compile::forget_stack;
use crate::reason::{Refusal, Stage};
use crate::report::{CaptureReport, CaptureTimes};

/// Other threads may go on allocating, and an unsafe call of this one fails instead of being hidden.
const MODE: sys::CUstreamCaptureMode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;

/// How far below this module's frame those of a region may lie, and above it what was inlined with them.
/// A thread of Rust has 2 MiB, and what lies beyond its stack may be memory of the device.
const STACK_BYTES: u64 = 1 << 20;
const FRAME_BYTES: u64 = 64 << 10;

/// A recording as the driver gave it.
pub(super) struct RecordedGraph {
    pub(super) graph: RawGraph,
    pub(super) times: CaptureTimes,
    /// Where the frames of the region were on the stack.
    pub(super) stack: Range<u64>,
}

impl Session {
    /// Records `region` and makes it executable. Nothing in it runs. It must have run under [`Session::warm`] on this
    /// thread before, with tensors of the same shapes, and must leave no tensor behind.
    ///
    /// Before the first replay the graph has to [hold](Captured::hold) every tensor that the region reads or writes and did
    /// not make. Up to 4 KiB that it only copies from are taken for a constant that it uploads, which lives as long as
    /// this thread.
    ///
    /// # Errors
    /// The [`Refusal`] says which rule was broken; the device can be used as before.
    pub fn capture<E: Display>(
        &self,
        eager: &mut Eager,
        region: impl FnOnce(&Recording) -> Result<(), E>,
    ) -> Result<Captured, Refusal> {
        let mut captured = eager.record(|recording| self.record(recording, region))?;
        captured.require_held();
        Ok(captured)
    }

    /// [`Self::capture`] inside a region that is open already, for a caller that owns what the region points at and keeps it
    /// beside the graph.
    ///
    /// # Errors
    /// As for [`Self::capture`].
    pub(crate) fn record<E: Display>(
        &self,
        recording: &Recording,
        region: impl FnOnce(&Recording) -> Result<(), E>,
    ) -> Result<Captured, Refusal> {
        let clock = SystemClock::new();
        let RecordedGraph { graph, mut times, stack } = self.record_graph(recording, region)?;
        let mark = clock.now();
        let inventory = self.inspect(&graph).inspect_err(|_| self.settle(&graph))?;
        let mut recorded = Reading::of(&graph, &[]).inspect_err(|_| self.settle(&graph))?.recorded;
        forget_stack(&mut recorded, &stack);
        times.inspect = clock.now() - mark;
        let report = CaptureReport {
            nodes: inventory.nodes,
            allocated_bytes: inventory.allocated_bytes,
            peak_bytes: inventory.peak_bytes,
            reserved_bytes: None,
            times,
        };
        Captured::new(graph.into_raw(), recorded, self.clone(), report)
    }

    /// Records `region` without looking the graph through.
    ///
    /// # Errors
    /// The [`Refusal`] says which rule was broken; the device can be used as before.
    pub(super) fn record_graph<E: Display>(
        &self,
        recording: &Recording,
        region: impl FnOnce(&Recording) -> Result<(), E>,
    ) -> Result<RecordedGraph, Refusal> {
        let here = 0_u8;
        let here = (&raw const here).addr() as u64;
        let stack = here.saturating_sub(STACK_BYTES)..here + FRAME_BYTES;
        self.enter()?;
        let _recording = self.recording();
        let context = self.context();
        let parked = |inside| {
            move |error: cudarc::driver::DriverError| Refusal::ParkedError { message: error.to_string(), inside }
        };
        context.check_err().map_err(parked(false))?;
        context.bind_to_thread().map_err(refused("cuCtxSetCurrent", Stage::Open))?;
        let clock = SystemClock::new();
        let mut times = CaptureTimes::default();
        self.stream().begin_capture(MODE).map_err(refused("cuStreamBeginCapture", Stage::Open))?;
        times.begin = clock.now();

        // The region's values are dropped in here, while their frees still become part of the graph.
        let outcome = catch_unwind(AssertUnwindSafe(|| self.warm(|| region(recording)).map_err(|e| e.to_string())));
        let parked_inside = context.check_err();
        times.record = clock.now() - times.begin;
        let mark = clock.now();
        // SAFETY: the stream is recording, on this thread.
        let ended = unsafe { result::stream::end_capture(self.stream().cu_stream()) };
        times.end = clock.now() - mark;

        let graph = RawGraph::new(ended.as_ref().ok().copied());
        let last_kernel = || Inventory::of(graph.get()?).ok()?.last_kernel;
        // What the region says comes first: an invalidated recording is its consequence.
        let sound = match outcome {
            Ok(Ok(())) => parked_inside.map_err(|error| match error.0 {
                sys::CUresult::CUDA_ERROR_INVALID_VALUE => Refusal::ReleasedInside { after: last_kernel() },
                _ => parked(true)(error),
            }),
            Ok(Err(message)) => Err(Refusal::of_region(&message, last_kernel)),
            Err(payload) => Err(Refusal::Panicked { message: text_of(&*payload) }),
        };
        let sound = sound.and_then(|()| ended.map_err(refused("cuStreamEndCapture", Stage::Record)).map(drop));
        match sound {
            Ok(()) => Ok(RecordedGraph { graph, times, stack }),
            Err(refusal) => {
                self.settle(&graph);
                Err(refusal)
            }
        }
    }

    /// Confirms that a recording releases as much memory as it takes; looks it through where it does not.
    ///
    /// # Errors
    /// As [`Self::record`].
    pub(super) fn check_balance(&self, graph: &RawGraph) -> Result<usize, Refusal> {
        let handle = graph.get().ok_or(Refusal::Empty)?;
        match balanced_nodes(handle)? {
            Some(num_nodes) => Ok(num_nodes),
            None => self.inspect(graph).inspect_err(|_| self.settle(graph)).map(|inventory| inventory.nodes.total()),
        }
    }

    fn inspect(&self, graph: &RawGraph) -> Result<Inventory, Refusal> {
        let inventory = Inventory::of(graph.get().ok_or(Refusal::Empty)?)?;
        inventory.check()?;
        self.check_room(inventory.peak_bytes)?;
        Ok(inventory)
    }

    /// Leaves nothing of a refused recording behind that a later, unrelated call would stumble over: neither an error
    /// that waits on the device, nor a tensor without memory.
    fn settle(&self, graph: &RawGraph) {
        if let Err(error) = self.context().check_err() {
            tracing::debug!(%error, "taken after a refused capture");
        }
        if let Some(graph) = graph.get()
            && let Err(refusal) = self.give_memory_to_what_escaped(graph)
        {
            tracing::warn!(%refusal, "tensors that escaped from a refused capture have no memory");
        }
    }

    /// A tensor that outlives a recording holds an address that the graph would have filled. When it is dropped later,
    /// that address is freed, which fails where the graph never ran. So the graph runs once with nothing but its
    /// allocations and releases, and what it leaves is filled so that who reads it sees numbers that are not finite.
    fn give_memory_to_what_escaped(&self, graph: sys::CUgraph) -> Result<(), Refusal> {
        let inventory = Inventory::of(graph)?;
        let Some(work) = inventory.work().filter(|_| inventory.escaped().next().is_some()) else { return Ok(()) };
        self.check_room(inventory.peak_bytes)?;
        let stage = Stage::Inspect;
        // SAFETY: the graph is live; its nodes are those that were listed; the executable graph is destroyed after the
        // stream has caught up, and the memory it leaves belongs to the tensors that hold it.
        unsafe {
            let exec = result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0))
                .map_err(refused("cuGraphInstantiate", stage))?;
            let switched_off = work
                .iter()
                .try_for_each(|node| check(sys::cuGraphNodeSetEnabled(exec, *node, 0), "cuGraphNodeSetEnabled", stage));
            let launched = switched_off.and_then(|()| {
                result::graph::launch(exec, self.stream().cu_stream()).map_err(refused("cuGraphLaunch", stage))?;
                inventory.escaped().try_for_each(|(address, bytes)| {
                    let filled = result::memset_d8_async(address, u8::MAX, bytes, self.stream().cu_stream());
                    filled.map_err(refused("cuMemsetD8Async", stage))
                })?;
                self.synchronize()
            });
            let destroyed = result::graph::exec_destroy(exec).map_err(refused("cuGraphExecDestroy", stage));
            launched.and(destroyed)
        }
    }
}

/// The words of a panic.
pub(super) fn text_of(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str).or_else(|| payload.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic without a text").to_owned()
}
