//! From a recorded graph to a program: addresses become blocks, and every kernel gets its effect.
//!
//! ```text
//!   Recorded ─► addresses (space.rs) ─► nodes with blocks (resolve.rs) ─► effects (effects.rs) ─► Program
//!                                                ▲                          ▲ declared.rs, library.rs
//!                     table of known kernels ────┘
//! ```
//!
//! # Terms
//! *Declared* effect: what the region said of a launch when it recorded it. *Span*: a range of addresses that was
//! declared. *Library* kernel: one of a matrix product of cuBLAS, recognized by where its code came from and by its name; a
//! kernel that a program loads itself is none, whatever its name. *Number*: a word that is no address.
//!
//! # What is assumed
//! 1. A pointer is an aligned 8-byte word of an argument; [`compare_twins`](super::compare_twins) finds most of what
//!    this misses or takes for one by mistake.
//! 2. Blocks outside the graph are as large as [`Memory`] says, and dimensions in them stay what they are as long as
//!    no node writes them. A kernel whose dimensions a node may write is not known.
//! 3. A library kernel with one operand that nothing has written since its allocation writes that operand, and of the
//!    others only what is library workspace: a block outside the graph that nothing but such kernels touches.
//!
//! Addresses in device memory and state of a library cannot be seen: a rewritten graph is to be compared with the
//! captured one on real inputs before it is used.

mod error;
mod memory;
mod words;
mod space;
mod resolve;
mod declared;
mod library;
mod effects;
mod lifted;
mod outside;

pub use error::LiftError;
pub use lifted::{Lifted, lift};
pub use memory::Memory;
pub use outside::{Outside, outside};
