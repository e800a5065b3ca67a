//! Backward passes of operations that candle-nn 0.11.1 leaves without one, of plain tensor operations and candle's own kernels: they
//! run on every device, read nothing back and upload nothing, so that a step with them can be captured.

pub(crate) mod norm;
pub(crate) mod rotary;
pub(crate) mod attention;
pub(crate) mod cache;

use candle::{DType, Result, Tensor};

/// Without its history, in the type that candle computes in.
fn wide(tensor: &Tensor) -> Result<Tensor> {
    match tensor.dtype() {
        DType::F16 | DType::BF16 => tensor.detach().to_dtype(DType::F32),
        _ => Ok(tensor.detach()),
    }
}

/// The gradient of `of`, or none where nothing asks for it.
fn wanted(of: &Tensor, gradient: impl FnOnce() -> Result<Tensor>) -> Result<Option<Tensor>> {
    of.track_op().then(|| gradient()?.to_dtype(of.dtype())).transpose()
}
