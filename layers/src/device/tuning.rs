//! Measures algorithms instead of taking the one that the library expects to be the fastest.

use std::sync::atomic::{AtomicBool, Ordering};

use candle_core::{CudaDevice, Result};
use cudarc::driver::{CudaStream, DevicePtr as _, sys};
use esper_graph::launch::tensor_error;

use super::library::Choice;
use super::product::workspace;

/// How many algorithms are measured.
pub(super) const MAX_CANDIDATES: usize = 8;

/// Runs before those that are measured, and those.
const NUM_WARM_UPS: usize = 2;
const NUM_RUNS: usize = 5;

static IS_ON: AtomicBool = AtomicBool::new(false);

/// Whether a product that is seen for the first time outside of a recording measures up to 8 algorithms and keeps the
/// fastest for as long as the process lives; off until this is called. Algorithms add in different orders: with this, two
/// processes may differ in the last bits of their results, while one process always gives the same.
pub fn set_tuning(is_on: bool) {
    IS_ON.store(is_on, Ordering::Relaxed);
}

/// Whether something can be measured on a stream now.
pub(super) fn is_tuning(stream: &CudaStream) -> Result<bool> {
    if !IS_ON.load(Ordering::Relaxed) {
        return Ok(false);
    }
    let status = tensor_error(stream.capture_status())?;
    Ok(status == sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
}

/// The candidate that `run` takes the least time with. It may be run any number of times, with the address of the memory
/// that the candidate wants. One that fails is passed over.
///
/// # Sync
/// waits for the stream once per candidate
pub(super) fn fastest(
    device: &CudaDevice,
    candidates: &[Choice],
    run: impl Fn(&Choice, u64) -> Result<()>,
) -> Result<Option<Choice>> {
    let stream = device.cuda_stream();
    let most = candidates.iter().map(|choice| choice.workspace).max().unwrap_or(0);
    let memory = workspace(device, most)?;
    let place = memory.as_ref().map_or(0, |slice| slice.device_ptr(&stream).0);
    let timed = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
    let mut best: Option<(f32, Choice)> = None;
    for choice in candidates {
        if (0..NUM_WARM_UPS).any(|_| run(choice, place).is_err()) {
            continue;
        }
        let start = tensor_error(stream.record_event(timed))?;
        for _ in 0..NUM_RUNS {
            run(choice, place)?;
        }
        let end = tensor_error(stream.record_event(timed))?;
        let elapsed = tensor_error(start.elapsed_ms(&end))?;
        if best.is_none_or(|(least, _)| elapsed < least) {
            best = Some((elapsed, *choice));
        }
    }
    Ok(best.map(|(_, choice)| choice))
}
