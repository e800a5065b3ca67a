//! What lies between a graph of the driver and a [`Program`](super::compile::Program), as functions of plain values.
//!
//! ```text
//!   nodes and edges ─► order ─► Recorded … Program ─► places, arguments ─► nodes of a new graph
//!   log of launches ─► declared ──┘            └────► results: what both graphs must agree in
//! ```
#![cfg_attr(not(feature = "cuda"), allow(dead_code, unused_imports, reason = "without a device only tests use it"))]

mod order;
mod declared;
mod copies;
mod places;
mod arguments;
mod results;

pub(crate) use arguments::Arguments;
pub(crate) use copies::{PlainCopy, split_copies};
pub(crate) use declared::{Launches, positions};
pub(crate) use order::{predecessors, topological_order};
pub(crate) use places::Places;
pub(crate) use results::{Difference, describe, written_spans};
