//! What one forward and backward pass consumes.

use candle_core::Tensor;

/// One microbatch on the device.
#[derive(Debug, Clone)]
pub struct Batch {
    /// Shape (B, …), first dimension the samples.
    pub inputs: Tensor,
    /// Class indices, shape (B,), dtype `u32`.
    pub targets: Tensor,
}

impl Batch {
    /// Samples in the microbatch (B).
    #[must_use]
    pub fn num_samples(&self) -> usize {
        self.targets.elem_count()
    }
}
