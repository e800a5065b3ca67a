//! Times on the device, from events; reading them never waits.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaEvent, CudaStream, DriverError, sys};

/// Measures one stretch of a stream at a time. While it is under way further stretches are not measured, so that the
/// host never waits for a time.
#[derive(Debug)]
pub struct DeviceTimer {
    start: CudaEvent,
    end: CudaEvent,
    under_way: bool,
    last_ms: Option<f64>,
}

impl DeviceTimer {
    pub(crate) fn new(context: &Arc<CudaContext>) -> Result<Self, DriverError> {
        let event = || context.new_event(Some(sys::CUevent_flags::CU_EVENT_DEFAULT));
        Ok(Self { start: event()?, end: event()?, under_way: false, last_ms: None })
    }

    /// Runs `work`, which enqueues on `stream`, with events around it when none is under way.
    pub(crate) fn around<R>(&mut self, stream: &CudaStream, work: impl FnOnce() -> R) -> R {
        self.poll();
        let begins = !self.under_way && self.start.record(stream).is_ok();
        let result = work();
        self.under_way |= begins && self.end.record(stream).is_ok();
        result
    }

    /// The last time that is known, ms; absent before the first one.
    pub fn last_ms(&mut self) -> Option<f64> {
        self.poll();
        self.last_ms
    }

    /// The time that became known since this was asked before, ms; and whether none is under way.
    pub(crate) fn take_ms(&mut self) -> (Option<f64>, bool) {
        self.poll();
        (self.last_ms.take(), !self.under_way)
    }

    /// Lets go of the last time, and of what is under way: they are of work that is no longer done so.
    pub(crate) fn forget(&mut self) {
        (self.under_way, self.last_ms) = (false, None);
    }

    fn poll(&mut self) {
        if self.under_way && self.end.is_complete() {
            self.last_ms = self.start.elapsed_ms(&self.end).ok().map(f64::from);
            self.under_way = false;
        }
    }
}
