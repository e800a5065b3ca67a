//! Cross-entropy for training, losses and hits per sample for evaluation.
//!
//! Shapes throughout: `logits` (B, C) of floats, `targets` (B,) of `u32` below C, or [`IGNORED`]. Units: nats.
//!
//! Each function is a kernel over rows of `f32`, on the CPU and on a GPU; shorter logits are turned into `f32` first, and longer
//! ones, which that would round, are refused.
//! Both subtract the largest logit of a row first, so that no finite logit overflows.
//!
//! *Entry points*: [`cross_entropy`], [`per_sample`], [`hits`], [`correct`]. *Not here*: reading any result.

mod rows;
mod cross_entropy;
mod score;

pub use cross_entropy::cross_entropy;
pub use rows::IGNORED;
pub use score::{correct, hits, per_sample};

#[cfg(test)]
mod tests;
