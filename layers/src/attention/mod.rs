//! Attention over a packed projection.
//!
//! ```text
//!   attention ─┬─ CPU, f64, or more than 128 coordinates a head ──► candle's operations
//!              └─ GPU ──► one kernel;  backward: one kernel
//! ```

mod options;
mod packed;
#[cfg(feature = "cuda")]
#[allow(unsafe_code)]
mod cuda;

pub use options::AttentionOptions;
pub use packed::attention;
