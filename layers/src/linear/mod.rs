//! Affine maps with an activation, `activation(x·W + b)`.
//!
//! ```text
//!   linear ─┬─ cpu:     one operation, with the bits of the composition but for gelu; contiguous f32   (CPU)
//!           ├─ fused:   one product forward; backward a pointwise kernel and a product per gradient   (GPU)
//!           └─ compose: candle's operations, which define the result; for all that the others do not take
//! ```

mod affine;
mod compose;
mod cpu;
#[cfg(feature = "cuda")]
mod fused;
#[cfg(feature = "cuda")]
#[allow(unsafe_code)]
mod kernels;
mod options;
#[cfg(feature = "cuda")]
#[allow(unsafe_code)]
mod thin;

pub use affine::linear;
pub use options::{Activation, LinearOptions, Precision, WeightOrder};
