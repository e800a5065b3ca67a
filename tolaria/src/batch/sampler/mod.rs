//! Which samples an epoch has, and in which order: a pure function of (seed, epoch), so that a resume needs no state.
//!
//! | kind | an epoch of N samples |
//! |---|---|
//! | `permutation` | every sample once, all orders equally likely |
//! | `weighted` | N draws with replacement; sample i is drawn with probability w_i / Σ w |
//! | `bucketed` | every sample once; those of a microbatch have lengths near each other |

mod permutation;
mod weighted;
mod bucketed;
mod config;

pub(crate) use config::EpochSampler;
pub use config::{SamplerConfig, WeighedBy};
pub use permutation::Sampler;
