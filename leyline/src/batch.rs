//! What one forward and backward pass consumes.

use candle_core::Tensor;

/// One microbatch on the device.
#[derive(Debug, Clone)]
pub struct Batch {
    /// Shape (B, …), first dimension the samples; `f32`, or `u32` for tokens.
    pub inputs: Tensor,
    /// Shape (B, …), of `u32` for classes and tokens or `f32` for values, as the [task](crate::task::Task) reads them.
    pub targets: Tensor,
}

impl Batch {
    /// Samples in the microbatch (B).
    #[must_use]
    pub fn num_samples(&self) -> usize {
        self.targets.dims().first().copied().unwrap_or(0)
    }
}
