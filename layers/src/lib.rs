//! Layers for training with candle, forward and backward, that can be captured in a CUDA graph.
//!
//! A layer is composed of candle's operations, which define what it computes. On the CPU an affine map of `f32` is one
//! operation with the same bits, and so are `gelu` and attention, with others. On a GPU a layer is a few kernels of this
//! crate and of cuBLAS, whose reads and writes are declared (`esper_graph::launch::declare`), so that who records a step knows them.
//!
//! *Not here*: parameters and their initialization, which belong to the owner of the model.
#![deny(unsafe_code)]

mod cpu;
#[cfg(any(test, feature = "cuda"))]
mod matrix;
#[cfg(any(test, feature = "cuda"))]
mod tiles;
#[cfg(feature = "cuda")]
#[allow(unsafe_code)]
pub mod device;
mod precision;
pub mod norm;
pub mod attention;
pub mod decoding;
pub mod embedding;
#[cfg(test)]
mod testing;
pub mod linear;
mod product;
mod relu;
mod recompute;
pub mod check;
pub mod operations;

pub use attention::{AttentionOptions, attention};
pub use decoding::{KvCache, Position};
pub use embedding::embedding;
pub use linear::{Activation, LinearOptions, Precision, WeightOrder, linear};
pub use norm::{add_layer_norm, layer_norm, layer_norm_to};
pub use product::product;
pub use recompute::recompute;
pub use relu::relu;
