//! Devices that record, in a build without the feature `cuda`: types without values.

use std::ffi::CStr;
use std::fmt::Display;
use std::num::NonZeroUsize;
use std::sync::Arc;

use candle_core::{Device, Tensor};
use leyline::region::{Eager, Recording};

use super::compile::Recorded;
use super::compile_report::{CompileOptions, CompileReport, Searched};
use super::facts::DeviceFacts;
use super::kernel_time::KernelTime;
use super::reason::Refusal;
use super::report::CaptureReport;
use super::staging::{HostSlice, StagingLane};

/// One device that records and replays; this build has none.
#[derive(Debug, Clone)]
pub enum Session {}

/// A recorded region; this build has none.
#[derive(Debug)]
pub enum Captured {}

/// A recorded region that was not made executable; this build has none.
#[derive(Debug)]
pub enum Draft {}

/// A recorded region that is being rewritten in the background; this build has none.
#[derive(Debug)]
pub enum Compilation {}

/// A rewritten region; this build has none.
#[derive(Debug)]
pub enum CompiledGraph {}

/// A search for a wrong rewrite; this build has none.
#[derive(Debug)]
pub enum Search {}

/// A ring of pinned buffers; this build has none.
#[derive(Debug)]
pub enum StagingRing {}

/// Copies that a step begins with; this build has none.
#[derive(Debug)]
pub enum Feed<'r> {
    #[doc(hidden)]
    Of(&'r mut StagingRing),
}

/// A stream on which tensors are copied to the host; this build has none.
#[derive(Debug)]
pub enum ReadLane {}

/// Tensors that are to be read; this build has none.
#[derive(Debug)]
pub enum PendingRead {}

/// Measures on the device; this build has none.
#[derive(Debug)]
pub enum DeviceTimer {}

/// The library for NVIDIA's profilers; this build does not load it.
#[derive(Debug)]
pub enum Nvtx {}

impl Nvtx {
    /// Loads nothing.
    ///
    /// # Errors
    /// Always.
    pub fn load() -> Result<Self, String> {
        Err("this build has no GPU support (feature `cuda`)".to_owned())
    }

    /// Begins a range of this thread.
    pub fn push(&self, _name: &CStr) {
        match *self {}
    }

    /// Ends the range of this thread that began last.
    pub fn pop(&self) {
        match *self {}
    }
}

/// The modules of the tensor library that training uses on a GPU; this build has none.
pub const LIBRARY_MODULES: [&str; 0] = [];

/// State of the device's memory for graphs, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GraphMemory {
    /// In use by graphs that run or hold memory.
    pub used: u64,
    /// Taken from the device.
    pub reserved: u64,
}

/// The most bytes that were in use at once since [`Session::restart_peak_memory`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeakMemory {
    /// By captured graphs, for what their regions allocate.
    pub graphs: u64,
    /// By tensors, static buffers, and the arenas of compiled graphs.
    pub tensors: u64,
}

/// A thread's hold of a GPU; this build has none.
#[derive(Debug)]
pub enum DeviceClaim {}

impl DeviceClaim {
    /// Nothing is claimed.
    ///
    /// # Errors
    /// Never.
    pub fn of(_device: &Device) -> Result<Option<Self>, Refusal> {
        Ok(None)
    }
}

/// Runs `work`: nothing records.
pub fn between_recordings<R>(_device: &Device, work: impl FnOnce() -> R) -> R {
    work()
}

impl Session {
    /// The session of a device.
    ///
    /// # Errors
    /// Always [`Refusal::Unsupported`].
    pub fn open(_device: &Device) -> Result<Self, Refusal> {
        Err(Refusal::Unsupported { why: "this build has no GPU support (feature `cuda`)" })
    }

    /// The session of a device that is claimed.
    ///
    /// # Errors
    /// Always [`Refusal::Unsupported`].
    pub fn claimed(device: &Device, _claim: Option<Arc<DeviceClaim>>) -> Result<Self, Refusal> {
        Self::open(device)
    }

    pub(crate) fn enter(&self) -> Result<(), Refusal> {
        match *self {}
    }

    /// Which device it is.
    #[must_use]
    pub fn facts(&self) -> DeviceFacts {
        match *self {}
    }

    /// Runs `work` eagerly in the way a region runs.
    pub fn warm<R>(&self, _work: impl FnOnce() -> R) -> R {
        match *self {}
    }

    /// Records `region` and makes it executable.
    ///
    /// # Errors
    /// Never called.
    pub fn capture<E: Display>(
        &self,
        _eager: &mut Eager,
        _region: impl FnOnce(&Recording) -> Result<(), E>,
    ) -> Result<Captured, Refusal> {
        match *self {}
    }

    /// Records `region`, inside a region that is open already, and makes it executable.
    ///
    /// # Errors
    /// As for [`Self::capture`].
    pub(crate) fn record<E: Display>(
        &self,
        _recording: &Recording,
        _region: impl FnOnce(&Recording) -> Result<(), E>,
    ) -> Result<Captured, Refusal> {
        match *self {}
    }

    /// Records `region`, inside a region that is open already, without making it executable.
    ///
    /// # Errors
    /// Never called.
    pub fn draft<E: Display>(
        &self,
        _recording: &Recording,
        _region: impl FnOnce(&Recording) -> Result<(), E>,
    ) -> Result<Draft, Refusal> {
        match *self {}
    }

    /// Loads a module of [`LIBRARY_MODULES`] and lets go of it.
    ///
    /// # Errors
    /// Never called.
    pub fn compile_library_module(&self, _name: &str) -> Result<(), Refusal> {
        match *self {}
    }

    /// Waits until the device has done all it was asked to do.
    ///
    /// # Errors
    /// Never called.
    pub fn synchronize(&self) -> Result<(), Refusal> {
        match *self {}
    }

    /// Copies tensors to others, (from, to), in one launch.
    ///
    /// # Errors
    /// Never called.
    pub fn copy_all(&self, _copies: &[(&Tensor, &Tensor)]) -> candle_core::Result<()> {
        match *self {}
    }

    /// A stopwatch on the device.
    ///
    /// # Errors
    /// Never called.
    pub fn timer(&self) -> Result<DeviceTimer, Refusal> {
        match *self {}
    }

    /// The device's memory for graphs.
    ///
    /// # Errors
    /// Never called.
    pub fn graph_memory(&self) -> Result<GraphMemory, Refusal> {
        match *self {}
    }

    /// Bytes that tensors of this GPU hold.
    ///
    /// # Errors
    /// Never called.
    pub fn tensor_memory(&self) -> Result<u64, Refusal> {
        match *self {}
    }

    /// [`Self::peak_memory`] begins anew.
    ///
    /// # Errors
    /// Never called.
    pub fn restart_peak_memory(&self) -> Result<(), Refusal> {
        match *self {}
    }

    /// The most bytes in use at once.
    ///
    /// # Errors
    /// Never called.
    pub fn peak_memory(&self) -> Result<PeakMemory, Refusal> {
        match *self {}
    }

    /// Launches a kernel that a program brings itself.
    #[doc(hidden)]
    pub fn launch_planted(&self, _name: &str, _tensors: [&Tensor; 3]) -> candle_core::Result<()> {
        match *self {}
    }

    /// Gives memory that no graph uses back to the device.
    ///
    /// # Errors
    /// Never called.
    pub fn trim_graph_memory(&self) -> Result<(), Refusal> {
        match *self {}
    }

    /// Runs `work` with the timer around it.
    pub fn time<R>(&self, _timer: &mut DeviceTimer, _work: impl FnOnce() -> R) -> R {
        match *self {}
    }

    /// Runs `work`, and tells which kernels ran meanwhile.
    ///
    /// # Errors
    /// Never called.
    pub fn traced<R>(&self, _work: impl FnOnce() -> R) -> Result<(R, Vec<KernelTime>), Refusal> {
        match *self {}
    }
}

impl Captured {
    /// Keeps `tensor` alive for as long as the graph.
    ///
    /// # Errors
    /// Never called.
    pub fn hold(&mut self, _name: impl Into<String>, _tensor: &Tensor) -> candle_core::Result<()> {
        match *self {}
    }

    /// Lets the graph be replayed though not all is held that it points at.
    ///
    /// # Safety
    /// Never called.
    #[must_use]
    pub unsafe fn assume_held(self) -> Self {
        match self {}
    }

    /// Enqueues the recorded work.
    ///
    /// # Errors
    /// Never called.
    pub fn replay(&self) -> Result<(), Refusal> {
        match *self {}
    }

    /// Confirms that every held tensor is where it was at capture.
    ///
    /// # Errors
    /// Never called.
    pub fn check_addresses(&self) -> Result<(), Refusal> {
        match *self {}
    }

    /// Confirms that `tensor` is where the tensor held under this name was at capture.
    ///
    /// # Errors
    /// [`Refusal::Moved`].
    pub fn confirm(&self, _name: &str, _tensor: &Tensor) -> Result<(), Refusal> {
        match *self {}
    }

    /// Confirms that `region` is still what was captured.
    ///
    /// # Errors
    /// Never called.
    pub fn test<E: Display>(
        &self,
        _eager: &mut Eager,
        _region: impl FnOnce(&Recording) -> Result<(), E>,
    ) -> Result<(), Refusal> {
        match *self {}
    }

    /// What was recorded, as plain data.
    #[must_use]
    pub(crate) fn recorded(&self) -> Arc<Recorded> {
        match *self {}
    }

    /// Whether this thread may replay it.
    #[must_use]
    pub fn is_of_this_thread(&self) -> bool {
        match *self {}
    }

    /// What the capture found and cost.
    #[must_use]
    pub fn report(&self) -> &CaptureReport {
        match *self {}
    }
}

impl Draft {
    /// Confirms that this is what was recorded before.
    ///
    /// # Errors
    /// [`Refusal::FrozenValue`].
    pub(crate) fn agrees_with(&self, _recorded: &Recorded) -> Result<(), Refusal> {
        match *self {}
    }
}

impl StagingRing {
    /// A ring of `num_slots` buffers.
    ///
    /// # Errors
    /// Never called.
    pub fn new(session: &Session, _num_slots: NonZeroUsize, _lane: StagingLane) -> candle_core::Result<Self> {
        match *session {}
    }

    /// Copies each part into its tensor.
    ///
    /// # Errors
    /// Never called.
    pub fn stage(&mut self, _parts: &[(HostSlice<'_>, &Tensor)]) -> candle_core::Result<()> {
        match *self {}
    }

    /// Copies parts into their tensors, and tensors to others.
    ///
    /// # Errors
    /// Never called.
    pub fn stage_beside(
        &mut self,
        _parts: &[(HostSlice<'_>, &Tensor)],
        _copies: &[(&Tensor, &Tensor)],
    ) -> candle_core::Result<()> {
        match *self {}
    }

    /// Brings parts to where who takes a step copies them from.
    ///
    /// # Errors
    /// Never called.
    pub fn feed(
        &mut self,
        _parts: &[(HostSlice<'_>, &Tensor)],
        _copies: &[(&Tensor, &Tensor)],
    ) -> candle_core::Result<Feed<'_>> {
        match *self {}
    }

    /// Time of the last copy that was measured, ms.
    pub fn copy_ms(&mut self) -> Option<f64> {
        match *self {}
    }
}

impl Feed<'_> {
    /// Copies of tensors to others.
    pub(crate) fn of(session: &Session, _copies: &[(&Tensor, &Tensor)]) -> Option<Self> {
        match *session {}
    }

    /// Enqueues the copies.
    ///
    /// # Errors
    /// Never called.
    pub fn run(&mut self) -> Result<(), Refusal> {
        let Self::Of(ring) = self;
        match **ring {}
    }
}

impl ReadLane {
    /// A lane beside the stream of a session.
    ///
    /// # Errors
    /// Never called.
    pub fn new(session: &Session) -> Result<Self, Refusal> {
        match *session {}
    }

    /// Begins to read tensors.
    ///
    /// # Errors
    /// Never called.
    pub fn begin<'a>(
        &self,
        _session: &Session,
        _tensors: impl IntoIterator<Item = &'a Tensor>,
    ) -> candle_core::Result<PendingRead> {
        match *self {}
    }
}

impl PendingRead {
    /// The tensors on the CPU.
    ///
    /// # Errors
    /// Never called.
    pub fn finish(&self) -> candle_core::Result<Vec<Tensor>> {
        match *self {}
    }
}

impl DeviceTimer {
    /// The last time that is known, ms.
    pub fn last_ms(&mut self) -> Option<f64> {
        match *self {}
    }

    pub(crate) fn take_ms(&mut self) -> (Option<f64>, bool) {
        match *self {}
    }
}

impl Compilation {
    /// Rewrites a region in a thread of its own.
    #[must_use]
    pub fn start(_session: &Session, drafts: [Draft; 2], _options: CompileOptions) -> Self {
        let [draft, _] = drafts;
        match draft {}
    }

    /// Waits for the threads of compilations that were dropped before they were over.
    pub fn join_abandoned() {}

    /// The rewritten region, or why there is none, once it is there.
    pub fn poll(&mut self) -> Option<Result<CompiledGraph, Refusal>> {
        match *self {}
    }

    /// Waits for it.
    ///
    /// # Errors
    /// Never called.
    pub fn wait(self) -> Result<CompiledGraph, Refusal> {
        match self {}
    }
}

impl Search {
    /// Takes a step, and goes on with the search.
    ///
    /// # Errors
    /// Never called.
    pub fn step(&mut self, _captured: &Captured) -> Result<Searched, Refusal> {
        match *self {}
    }
}

impl CompiledGraph {
    /// Runs one step through both graphs and compares what they leave.
    ///
    /// # Errors
    /// Never called.
    pub fn verify(&mut self, _captured: &Captured, _poison: u8) -> Result<(), Refusal> {
        match *self {}
    }

    /// Starts to look for the rewrite that makes it another one.
    #[must_use]
    pub fn search(self, _refusal: &Refusal, _interprets: bool) -> Option<Search> {
        match self {}
    }

    /// Gives back the memory that comparing needs.
    pub fn end_verification(&mut self) {
        match *self {}
    }

    /// Enqueues copies and the rewritten work.
    ///
    /// # Errors
    /// Never called.
    pub fn replay_fed(&self, _feed: &mut Feed<'_>) -> Result<(), Refusal> {
        match *self {}
    }

    /// Enqueues the rewritten work.
    ///
    /// # Errors
    /// Never called.
    pub fn replay(&self) -> Result<(), Refusal> {
        match *self {}
    }

    /// Confirms that every held tensor is where it was when it was held.
    ///
    /// # Errors
    /// Never called.
    pub fn check_addresses(&self) -> Result<(), Refusal> {
        match *self {}
    }

    /// Confirms that `tensor` is where the tensor held under this name was.
    ///
    /// # Errors
    /// Never called.
    pub fn confirm(&self, _name: &str, _tensor: &Tensor) -> Result<(), Refusal> {
        match *self {}
    }

    /// What the compiler did.
    #[must_use]
    pub fn report(&self) -> &CompileReport {
        match *self {}
    }
}
