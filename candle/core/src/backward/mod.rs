//! Backward passes of operations that candle 0.11.1 leaves without one, of plain tensor operations, on a GPU of kernels for convolutions
//! in groups, pooling and layer norm: they run on every device, read nothing back and upload nothing, so that a step with them can be captured.

mod window;
pub(crate) mod pool;
pub(crate) mod upsample;
pub(crate) mod conv;
mod product;
#[cfg(feature = "cuda")]
mod columns;
#[cfg(feature = "cuda")]
mod direct;
#[cfg(feature = "cuda")]
pub mod norm;
pub(crate) mod cut;
pub(crate) mod sum;
pub(crate) mod transposed;
