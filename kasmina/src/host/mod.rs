//! Host networks: a list of segments with a slot before each.
//!
//! ```text
//!  inputs ─► lift, stem ─► slot 0 ─► segment 0 ─► slot 1 ─► segment 1 ─► … ─► slot n−1 ─► segment n−1 ─► logits
//! ```
//!
//! Seeds see the value of their slot, or that of an earlier one ([`HostSlot::sees`]): around the hidden layers of an MLP, where that is asked for.
//!
//! Shapes: B samples, C features or channels, L positions. Vectors are (B, C), signals
//! (B, C, L), images (B, C, H, W), sequences (B, L, C). Tokens (B, L) are numbers; the stem of a host makes them a sequence.

mod slot_shape;
mod config;
mod layer;
mod past;
mod self_attention;
mod build;
mod network;

pub use config::{HostConfig, Pool};
pub use network::{Host, HostSlot};
pub use past::Past;
pub use slot_shape::SlotShape;

pub(crate) use layer::{
    Window, conv1d, conv2d, depthwise1d, depthwise2d, from_rows, image_from_rows, image_to_rows, in_wide, linear,
    to_rows, wide,
};
pub(crate) use self_attention::{next_attention, self_attention};
