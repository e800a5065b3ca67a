//! Convolutions and norms on a GPU: as candle computes them, or groups by one kernel, windows side by side by a product and norms of copied rows.

use std::sync::atomic::{AtomicBool, Ordering};

static IS_DIRECT: AtomicBool = AtomicBool::new(false);

/// Whether convolutions and norms on a GPU that can be one kernel or one product are computed so from now on, in all threads. They are not at first.
///
/// candle computes convolutions group by group, each by several kernels: a depthwise convolution of 320 channels is more than a thousand
/// launches. One kernel does the same sums in another order, so that the last bits of results differ; see `docs/candle-models.md`
/// of Esper for by how much. Convolutions of one group whose windows lie side by side, those of one place among them, become one product. The kernel takes groups of up to 32 channels of `f16`, `bf16`, `f32` and `f64`; larger ones stay as they are.
/// `LayerNorm` with a bias and `RmsNorm` of candle-nn copy an input whose rows do not lie side by side, such as channels that were moved to the end, and are one kernel then, where candle takes eleven operations.
///
/// Gradients of such convolutions, of pooling and of layer norm are computed by one kernel each, or two, whatever is set here. Nothing changes on other devices.
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
