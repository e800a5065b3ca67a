//! What works of a GPU are made of. Each checks what the measured code computed before it reports a time.
//!
//! ```text
//!   Setting ─► Gpu::open ─► work: warm-up, capture, n repetitions ─► Samples ─► check of values ─► BenchResult
//! ```

pub(crate) mod fit;
pub(crate) mod open;
pub(crate) mod step;
pub(crate) mod optimizer_step;
pub(crate) mod compiled_step;
pub(crate) mod precision;
pub(crate) mod cache;
mod parts;
pub(crate) mod report;
pub(crate) mod growing;
pub(crate) mod ran;

pub(crate) use open::Gpu;
