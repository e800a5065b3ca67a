//! What records, tests, compiles and replays for an executor: a session of the device, or a stand-in in tests.

use std::fmt::Debug;

use candle_core::{Device, Tensor};
use leyline::region::{Eager, Recording};

use super::compiling::Compiler;
use crate::compile_report::{CompileOptions, CompileReport};
use crate::reason::Refusal;
use crate::report::CaptureReport;

/// What an executor asks of a device. Tests put one in its place that records and replays on the CPU.
pub trait Backend: Compiler + Debug + Sized {
    /// What was recorded, to be compared with later recordings.
    type Recorded: Debug;

    /// The device, made fit for graphs.
    ///
    /// # Errors
    /// Why nothing can be recorded there.
    fn open(device: &Device, options: CompileOptions) -> Result<Self, Refusal>;

    /// Confirms that this thread may use the device.
    ///
    /// # Errors
    /// [`Refusal::SharedDevice`].
    fn enter(&self) -> Result<(), Refusal>;

    /// Copies of tensors to others for a step to begin with; absent where it cannot make them.
    fn copies(&self, copies: &[(&Tensor, &Tensor)]) -> Option<Self::Feed<'static>>;

    /// Runs `work` eagerly so that constants that it uploads are kept for a capture.
    fn warm<R>(&self, work: impl FnOnce() -> R) -> R;

    /// Records `region`, and makes it executable; the caller holds what it points at.
    ///
    /// # Errors
    /// The rule that was broken.
    fn capture(
        &self,
        eager: &mut Eager,
        region: impl FnOnce(&Recording) -> Result<(), String>,
    ) -> Result<Self::Captured, Refusal>;

    /// Records `region` once more, to be compared and compiled.
    ///
    /// # Errors
    /// The rule that was broken.
    fn draft(
        &self,
        eager: &mut Eager,
        region: impl FnOnce(&Recording) -> Result<(), String>,
    ) -> Result<Self::Draft, Refusal>;

    /// What was recorded.
    fn recorded(captured: &Self::Captured) -> Self::Recorded;

    /// Confirms that a later recording is the same work.
    ///
    /// # Errors
    /// [`Refusal::FrozenValue`].
    fn agrees(recorded: &Self::Recorded, draft: &Self::Draft) -> Result<(), Refusal>;

    /// Confirms that two captures recorded the same work.
    ///
    /// # Errors
    /// [`Refusal::FrozenValue`].
    fn same(recorded: &Self::Recorded, again: &Self::Recorded) -> Result<(), Refusal>;

    /// Keeps `tensor` alive for as long as the graph.
    ///
    /// # Errors
    /// When it has no address to check.
    fn hold(captured: &mut Self::Captured, name: &str, tensor: &Tensor) -> candle_core::Result<()>;

    /// Whether this thread may replay it.
    fn is_of_this_thread(captured: &Self::Captured) -> bool;

    /// What the capture found and cost.
    fn report(captured: &Self::Captured) -> &CaptureReport;

    /// What the compiler did.
    fn compile_report(compiled: &Self::Compiled) -> &CompileReport;

    /// Waits for compiles that were dropped before they were over.
    fn join_abandoned() {}
}
