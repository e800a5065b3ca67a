//! Initial weights of a seed beyond the random draw of its blueprint.
//!
//! The last layer of a seed starts at zero, so the first layer is free: whatever it is, f = 0 at birth. Through the blends
//! `residual`, `multiply` and `gate` a newborn seed then changes nothing; `convex`, `channel` and `confidence` take a part
//! of the host's value away all the same. What the first layer is decides in which directions the last one can learn at its
//! first steps.

mod mode;
mod grad_max;
mod batch;

pub use mode::InitMode;

pub(crate) use batch::{MOST_SAMPLES, save_batch, take_batch, with_batch};
pub(crate) use grad_max::grad_max;
