//! Tells who records a region what its launches read and write.
//!
//! ```text
//!   collect(|| … declare(stream, effect, launch) …) ──► what the region returns, and one `Declared` per call
//! ```
//! Outside of [`collect`], or while nothing is recorded, [`declare`] only launches.

use std::cell::RefCell;
use std::mem::MaybeUninit;
use std::ptr;

use cudarc::driver::{CudaStream, sys};

use super::effect::Effect;

thread_local! {
    static LOG: RefCell<Option<Vec<Declared>>> = const { RefCell::new(None) };
}

/// What was said of the nodes that one call recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Declared {
    /// The last node before them, by its handle; none at the start of the recording.
    pub before: Option<usize>,
    /// The last of them, by its handle.
    pub last: usize,
    /// What they do, taken together.
    pub effect: Effect,
}

/// Runs `launch`, which enqueues on `stream`, and notes its effect if somebody listens on this thread.
///
/// Memory that the launch needs must be taken before.
///
/// # Sync
/// none
pub fn declare<R>(stream: &CudaStream, effect: impl FnOnce() -> Effect, launch: impl FnOnce() -> R) -> R {
    if LOG.with_borrow(Option::is_none) {
        return launch();
    }
    let before = last_node(stream);
    let result = launch();
    if let (Some(before), Some(Some(last))) = (before, last_node(stream))
        && before != Some(last)
    {
        let declared = Declared { before, last, effect: effect() };
        LOG.with_borrow_mut(|log| log.get_or_insert_default().push(declared));
    }
    result
}

/// Runs `work` and returns what was declared on this thread in the meantime.
pub fn collect<R>(work: impl FnOnce() -> R) -> (R, Vec<Declared>) {
    let outer = LOG.replace(Some(Vec::new()));
    let guard = Restore(Some(outer));
    let result = work();
    let declared = guard.finish();
    (result, declared)
}

/// Puts the outer log back, also when the work panics.
struct Restore(Option<Option<Vec<Declared>>>);

impl Restore {
    fn finish(mut self) -> Vec<Declared> {
        let outer = self.0.take().flatten();
        LOG.replace(outer).unwrap_or_default()
    }
}

impl Drop for Restore {
    fn drop(&mut self) {
        if let Some(outer) = self.0.take() {
            LOG.set(outer);
        }
    }
}

/// The node that the next one will wait for: none when the stream does not record or records several chains.
fn last_node(stream: &CudaStream) -> Option<Option<usize>> {
    let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    let mut dependencies: *const sys::CUgraphNode = ptr::null();
    let mut count = 0;
    let mut id = 0;
    let mut graph = MaybeUninit::<sys::CUgraph>::zeroed();
    // SAFETY: all results are places of this frame; the list belongs to the driver and is read at once.
    let result = unsafe {
        sys::cuStreamGetCaptureInfo_v3(
            stream.cu_stream(),
            &raw mut status,
            &raw mut id,
            graph.as_mut_ptr(),
            &raw mut dependencies,
            ptr::null_mut(),
            &raw mut count,
        )
    };
    let is_active = status == sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE;
    if result != sys::CUresult::CUDA_SUCCESS || !is_active {
        return None;
    }
    match count {
        0 => Some(None),
        // SAFETY: the driver's list has one entry.
        1 => Some(Some(unsafe { *dependencies } as usize)),
        _ => None,
    }
}
