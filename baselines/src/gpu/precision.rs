//! The precision of products, which is a setting of the process.

use candle_core::cuda::{gemm_reduced_precision_f32, set_gemm_reduced_precision_f32};

use crate::models::Precision;

/// The setting until it is dropped.
#[derive(Debug)]
pub(crate) struct PrecisionGuard {
    before: bool,
}

impl PrecisionGuard {
    /// Switches products of `f32` to TF32, or back.
    pub(crate) fn set(precision: Precision) -> Self {
        let before = gemm_reduced_precision_f32();
        set_gemm_reduced_precision_f32(precision == Precision::Tf32);
        Self { before }
    }
}

impl Drop for PrecisionGuard {
    fn drop(&mut self) {
        set_gemm_reduced_precision_f32(self.before);
    }
}
