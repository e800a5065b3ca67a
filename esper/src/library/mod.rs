//! Libraries of seed weights: opened for a run, and filled from the checkpoints of others.
//!
//! ```text
//!   run folder ─► newest checkpoint ─► weights of one seed ─► LIBRARY/mlp.safetensors + manifest.json ─► [seeds.library]
//! ```
//!
//! *Not here*: how weights are fetched, kept and put into seeds; that is the seed manager's.

mod open;
mod saved;
mod export;

pub use export::{SeedsExportArgs, export};
pub use open::open;

#[cfg(test)]
mod tests;
