//! What seeds cost a training step: slots without seeds, seeds that do nothing yet, that train in the shadow, that act.
//!
//! A step here is one forward pass, the losses and their backward passes; the optimizer is left out, since it costs the
//! same per parameter whoever owns it.

mod cpu;
mod network;

pub(super) use cpu::run as on_cpu;
pub(super) use network::{Grown, Phase, Widths, forward_backward, plain};

/// How many seeds are measured together.
pub(super) const COUNTS: [usize; 3] = [1, 2, 4];
