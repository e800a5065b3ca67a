//! Initial weights of a seed beyond the random draw of its blueprint.
//!
//! The last layer of a seed starts at zero, so the first layer is free: whatever it is, a newborn seed changes nothing.
//! What it is decides in which directions the last layer can learn at its first steps.

mod mode;
mod grad_max;
mod batch;

pub use mode::InitMode;

pub(crate) use batch::{save_batch, take_batch};
pub(crate) use grad_max::grad_max;
