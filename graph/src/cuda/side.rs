//! A stream of the thread that compiles, and memory taken on it.

use std::sync::Arc;

use cudarc::driver::{CudaContext, DeviceRepr, result, sys};

use super::driver::{check, enter, refused};
use super::session::Session;
use crate::reason::{Refusal, Stage};

/// A stream beside that of a session. What enqueues on the session's own stream from another thread could end up in a
/// recording, and `cudarc`'s types take and park errors in a place that the training thread reads.
#[derive(Debug)]
pub(super) struct SideStream {
    stream: sys::CUstream,
    context: Arc<CudaContext>,
}

// SAFETY: streams may be used from any thread.
unsafe impl Send for SideStream {}
// SAFETY: as above, also from several at a time.
unsafe impl Sync for SideStream {}

impl SideStream {
    /// A stream whose work starts after all that the session's stream has been given by now. The session's stream must
    /// not be recording.
    pub(super) fn after(session: &Session) -> Result<Arc<Self>, Refusal> {
        let context = session.context();
        enter(context).map_err(refused("cuCtxSetCurrent", Stage::Compile))?;
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking)
            .map_err(refused("cuStreamCreate", Stage::Compile))?;
        let side = Self { stream, context: Arc::clone(context) };
        side.wait_for(session)?;
        Ok(Arc::new(side))
    }

    /// Holds back what this stream is given from now on until the session's stream has done what it was given by now.
    /// The session's stream must not be recording.
    pub(super) fn wait_for(&self, session: &Session) -> Result<(), Refusal> {
        enter(&self.context).map_err(refused("cuCtxSetCurrent", Stage::Compile))?;
        let event = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
            .map_err(refused("cuEventCreate", Stage::Compile))?;
        // SAFETY: both streams and the event are live; the event is destroyed once, and the driver keeps what it needs
        // of it until the wait is over.
        let ordered = unsafe {
            let recorded = result::event::record(event, session.stream().cu_stream());
            let waits = recorded.and_then(|()| {
                result::stream::wait_event(self.stream, event, sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT)
            });
            waits.and(result::event::destroy(event))
        };
        ordered.map_err(refused("cuStreamWaitEvent", Stage::Compile))
    }

    /// Copies numbers from the device to the host. The context is current.
    pub(super) fn read<T: DeviceRepr>(&self, address: u64, words: &mut [T]) -> Result<(), Refusal> {
        // SAFETY: the caller asks for memory of the device that is there; the host's memory outlives the copy, because
        // the stream is waited for, also when the copy could not be enqueued.
        unsafe {
            let copied = result::memcpy_dtoh_async(words, address, self.stream);
            let waited = result::stream::synchronize(self.stream);
            copied.and(waited)
        }
        .map_err(refused("cuMemcpyDtoHAsync", Stage::Compile))
    }
}

impl Drop for SideStream {
    fn drop(&mut self) {
        let entered = enter(&self.context);
        // SAFETY: the handle is not used again; the driver finishes what was enqueued.
        let destroyed = unsafe { result::stream::destroy(self.stream) };
        if entered.is_err() || destroyed.is_err() {
            tracing::debug!(?entered, ?destroyed, "a stream was not destroyed");
        }
    }
}

/// Memory that a new graph owns.
#[derive(Debug)]
pub(super) struct Arena {
    /// 0 where there is none.
    base: u64,
    bytes: usize,
    side: Arc<SideStream>,
}

impl Arena {
    /// So many bytes, which may be none. The context is current.
    pub(super) fn new(side: &Arc<SideStream>, bytes: usize) -> Result<Self, Refusal> {
        let mut arena = Self { base: 0, bytes, side: Arc::clone(side) };
        if bytes > 0 {
            let mut base = 0;
            // SAFETY: the stream is live; the call writes an address to `base`.
            let result = unsafe { sys::cuMemAllocAsync(&raw mut base, bytes, side.stream) };
            check(result, "cuMemAllocAsync", Stage::Compile)?;
            arena.base = base;
            // Other streams may use the memory only once it is there.
            // SAFETY: the stream is live.
            unsafe { result::stream::synchronize(side.stream) }
                .map_err(refused("cuStreamSynchronize", Stage::Compile))?;
        }
        Ok(arena)
    }

    pub(super) fn base(&self) -> u64 {
        self.base
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Frees the memory once the session's stream has done what it was given by now.
    pub(super) fn free_after(self, session: &Session) -> Result<(), Refusal> {
        let ordered = self.side.wait_for(session);
        if ordered.is_err() {
            // Without an order, the memory is free only when nobody can use it any more.
            session.synchronize()?;
        }
        drop(self);
        ordered
    }
}

impl Drop for Arena {
    /// The graphs that use it are gone by then, and the stream they were launched on has caught up.
    fn drop(&mut self) {
        if self.base == 0 {
            return;
        }
        let entered = enter(&self.side.context);
        // SAFETY: the memory was taken on this stream, nobody uses it any more, and it is freed once.
        let freed = unsafe { result::free_async(self.base, self.side.stream) };
        if entered.is_err() || freed.is_err() {
            tracing::warn!(?entered, ?freed, "the memory of a graph was not freed");
        }
    }
}
