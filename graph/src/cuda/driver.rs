//! The few driver calls that cudarc has no safe form of, and how their errors become refusals.

use cudarc::driver::{CudaContext, DriverError, result, sys};

use crate::reason::{Refusal, Stage};

/// Turns a driver's error into a refusal.
pub(crate) fn refused(call: &'static str, stage: Stage) -> impl Fn(DriverError) -> Refusal {
    move |error| Refusal::Driver { call, stage, message: error.to_string() }
}

/// A raw result of the driver.
pub(crate) fn check(result: sys::CUresult, call: &'static str, stage: Stage) -> Result<(), Refusal> {
    result.result().map_err(refused(call, stage))
}

/// Makes the context current on this thread.
///
/// Unlike `CudaContext::bind_to_thread` it leaves an error that is parked in the context where it is: that one is for
/// the thread that trains.
pub(super) fn enter(context: &CudaContext) -> Result<(), DriverError> {
    // SAFETY: the context is alive for as long as the reference.
    unsafe { result::ctx::set_current(context.cu_ctx()) }
}
