//! Affine maps with an activation, `activation(x·W + b)`.
//!
//! ```text
//!   linear ─┬─ compose: candle's operations, on the CPU and for types that no kernel takes
//!           └─ fused:   one product forward; backward a pointwise kernel and a product per gradient   (GPU)
//! ```

mod affine;
mod compose;
#[cfg(feature = "cuda")]
mod fused;
#[cfg(feature = "cuda")]
#[allow(unsafe_code)]
mod kernels;
mod options;

pub use affine::linear;
pub use options::{Activation, LinearOptions, Precision, WeightOrder};
