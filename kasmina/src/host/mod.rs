//! Host networks: a list of segments with a slot before each.
//!
//! ```text
//!  inputs ─► lift ─► slot 0 ─► segment 0 ─► slot 1 ─► segment 1 ─► … ─► slot n−1 ─► segment n−1 ─► logits
//! ```
//!
//! Shapes: B samples, C features or channels, L positions. Vectors are (B, C), signals (B, C, L).

mod config;
mod layer;
mod network;

pub use config::{HostConfig, Pool};
pub use network::{Host, HostSlot, SlotShape};

pub(crate) use layer::{conv1d, from_rows, linear, to_rows};
