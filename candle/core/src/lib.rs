//! candle-core 0.11.1 with the backward passes that it lacks: its published sources, edited by the build script, and [`backward`].
//!
//! No result of a forward pass differs unless [`grouped::set_direct`] or [`provided::set`] says so, but for products that are wrong in candle
//! on the CPU, of a batch of transposed matrices with one for all of them; and no type or function is missing. What is new: gradients through pooling with any window and
//! stride, upsampling to any size, transposed and grouped convolutions; and where an operation has no backward pass, `backward`
//! names it instead of leaving out what came before.
#![allow(warnings, clippy::all, reason = "almost all of this is candle's")]
#![allow(
    macro_expanded_macro_exports_accessed_by_absolute_paths,
    reason = "what is included counts as expanded; macros come first in it"
)]

mod backward;
pub mod grouped;
pub mod provided;
#[cfg(feature = "cuda")]
mod machine_code;

/// For the candle-nn beside this package.
#[cfg(feature = "cuda")]
#[doc(hidden)]
pub mod norm {
    pub use crate::backward::norm::gradients;
}

include!(concat!(env!("OUT_DIR"), "/src/lib.rs"));
