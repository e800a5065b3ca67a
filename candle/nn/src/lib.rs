//! candle-nn 0.11.1 with the backward passes that it lacks: its published sources, edited by the build script, and [`backward`].
//!
//! Layer and RMS normalization, softmax, rotary embeddings, attention on the CPU and caches of keys and values have gradients. No
//! result of a forward pass differs unless `candle_core::grouped::set_direct` says so: it is computed by candle's own code, on every device.
#![allow(warnings, clippy::all, reason = "almost all of this is candle's")]
#![allow(
    macro_expanded_macro_exports_accessed_by_absolute_paths,
    reason = "what is included counts as expanded; macros come first in it"
)]

mod backward;

include!(concat!(env!("OUT_DIR"), "/src/lib.rs"));
