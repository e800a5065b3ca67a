//! Batches: from a data set in memory to the microbatches of each optimizer step.
//!
//! ```text
//!   Sampler (seed, epoch) ──► permutation ──► windows of K microbatches of B samples ──► Dataset::gather ──► Batch
//! ```
//!
//! *Entry points*: [`Dataset`], [`Sampler::permutation`], [`windows`]. Every sample is used once per epoch; the last
//! microbatch and the last window may be short. *Not here*: reading files, changing samples.

mod dataset;
pub mod source;
mod placement;
mod sampler;
mod windows;

pub use dataset::Dataset;
pub(crate) use dataset::{HostRows, to_device};
pub use placement::{GpuDataset, Placement};
pub use sampler::Sampler;
pub use windows::{BatchConfig, Window, num_windows, windows};
