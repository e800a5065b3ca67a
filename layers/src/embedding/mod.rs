//! Rows of a table by their numbers.
//!
//! ```text
//!   embedding ─┬─ CPU, or f64 ──► candle's operations
//!              └─ GPU ──► one kernel;  backward: one kernel, without atomic operations
//! ```

mod rows;
#[cfg(feature = "cuda")]
#[allow(unsafe_code)]
mod cuda;

pub use rows::embedding;
