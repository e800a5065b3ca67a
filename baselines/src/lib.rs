//! Benchmark harness: named works, environment metadata, percentiles, and a comparison of committed results.
//!
//! ```text
//!   work ─► Sampler (warm-up, n repetitions) ─► Measurement ─► BenchResult + Environment ─► JSON ─► compare
//! ```
//!
//! Performance is judged by ratios within one run, never by a timed unit test. *Entry points*: [`works::ALL`],
//! [`compare::compare`], [`figures::render`]. *Not here*: what is measured; that is the subsystems'.
#![deny(unsafe_code)]

pub mod environment;
pub mod measure;
pub mod result;
pub mod table;
pub mod work;
pub mod works;
mod gpu;
mod gradient;
mod models;
mod samples;
mod blocks;
mod candle_in_place;
mod torch;
mod trainer;
mod led;
pub mod compare;
pub mod figures;
pub mod peer;
pub mod hostile;
mod pattern;
mod plot;
mod error;

pub use error::Error;
pub use models::Draw;
pub use torch::PeerError;
