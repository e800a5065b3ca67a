//! Batches: from samples in memory or in files to the microbatches of each optimizer step.
//!
//! ```text
//!   SamplerConfig ──(seed, epoch)──► order ──► windows of K microbatches of B samples
//!                                                   │
//!   Dataset, in memory or a Source ──► read ──► transforms ──► Batch      by the step itself, or ahead of it by workers
//! ```
//!
//! *Entry points*: [`Dataset`], [`source`] for files, [`transform`] for what is done to samples per epoch, [`SamplerConfig`],
//! [`LoaderConfig`], [`windows`]. The last microbatch and the last window of an epoch may be short. *Not here*: file formats.

mod dataset;
pub mod source;
pub mod transform;
mod host;
mod gather;
mod loader;
mod placement;
mod sampler;
mod windows;

pub use dataset::Dataset;
pub(crate) use dataset::to_device;
pub(crate) use gather::{EpochOrder, Gatherer, Progress};
pub(crate) use host::HostBatch;
pub(crate) use loader::Loader;
pub use loader::LoaderConfig;
pub use placement::{GpuDataset, Placement};
pub(crate) use sampler::EpochSampler;
pub use sampler::{Sampler, SamplerConfig, WeighedBy};
pub use windows::{BatchConfig, Window, num_windows, windows};
