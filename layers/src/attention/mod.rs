//! Attention over a packed projection.
//!
//! ```text
//!   attention ─┬─ f64, or more than 128 coordinates a head on a GPU ──► candle's operations
//!              ├─ CPU ──► one operation, some rows of scores at a time;  backward: the same
//!              └─ GPU ──► one kernel;  backward: one kernel
//! ```

mod cpu;
mod options;
mod packed;
#[cfg(feature = "cuda")]
#[allow(unsafe_code)]
mod cuda;

pub use options::AttentionOptions;
pub use packed::attention;
