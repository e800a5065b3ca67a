//! Convolutions in groups on a GPU: as candle computes them, group by group, or by one kernel.

use std::sync::atomic::{AtomicBool, Ordering};

static IS_DIRECT: AtomicBool = AtomicBool::new(false);

/// Whether convolutions in groups on a GPU are computed by one kernel from now on, in all threads. They are not at first.
///
/// candle computes them group by group, each by several kernels: a depthwise convolution of 320 channels is more than a thousand
/// launches. One kernel does the same sums in another order, so that the last bits of results differ; see `docs/candle-models.md`
/// of Esper for by how much. It takes groups of up to 32 channels of `f16`, `bf16`, `f32` and `f64`; larger ones stay as they are.
///
/// Gradients of such convolutions are computed by one kernel each, whatever is set here. Nothing changes on other devices.
///
/// # Examples
/// ```
/// candle_core::grouped::set_direct(true);
/// assert!(candle_core::grouped::is_direct());
/// ```
pub fn set_direct(is_direct: bool) {
    IS_DIRECT.store(is_direct, Ordering::Relaxed);
}

/// What [`set_direct`] set.
pub fn is_direct() -> bool {
    IS_DIRECT.load(Ordering::Relaxed)
}
