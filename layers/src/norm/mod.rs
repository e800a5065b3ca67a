//! Normalization of rows.
//!
//! ```text
//!   layer_norm ─┬─ CPU, or f64 ──► candle's operations
//!               └─ GPU ──► one kernel, with the sum of add_layer_norm;  backward: one kernel and one for the sums over rows
//! ```

mod layer_norm;
#[cfg(any(test, feature = "cuda"))]
mod plan;
#[cfg(feature = "cuda")]
#[allow(unsafe_code)]
mod cuda;

pub use layer_norm::{add_layer_norm, layer_norm, layer_norm_to};
