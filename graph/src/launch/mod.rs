//! What every launch of a kernel needs: its code, addresses, a grid, and who is told what it reads and writes.
//!
//! Crates with kernels of their own launch them through this, so that who records a region knows what each of its nodes
//! does: see [`Effect`].

#[cfg(feature = "cuda")]
mod address;
#[cfg(feature = "cuda")]
mod declare;
mod effect;
#[cfg(feature = "cuda")]
mod grid;
#[cfg(feature = "cuda")]
mod image;

#[cfg(feature = "cuda")]
pub use address::{address, address_of, expect, tensor_error};
#[cfg(feature = "cuda")]
pub use declare::{Declared, collect, declare};
pub use effect::{Effect, Span};
#[cfg(feature = "cuda")]
pub use grid::{THREADS, blocks_of, count, grid, single};
#[cfg(feature = "cuda")]
pub use image::Image;
