//! Blueprints: the kinds of seeds, and the registry of those on offer.
//!
//! A seed computes a *delta* f(h) from the value h at its slot; the slot's output becomes h + α·f(h). The last layer
//! starts at zero, so f = 0 at birth: a new seed changes nothing before it has learned something.
//!
//! | name | slots | f(h) |
//! |---|---|---|
//! | `mlp` | vectors, signals | bottleneck of two pointwise layers |
//! | `norm_mlp` | vectors, signals with C ≥ 2 | normalization over C, then the bottleneck |
//! | `conv` | signals | bottleneck of two convolutions over three positions |
//! | `noise` | vectors, signals | a harmful constant, for control experiments; only on request |

mod pointwise;
mod conv;
mod noise;
mod registry;
mod module;

pub use conv::Conv;
pub use module::SeedModule;
pub use noise::Noise;
pub use pointwise::{Mlp, NormMlp};
pub use registry::Registry;

use std::fmt;

use candle_core::Tensor;

use crate::host::SlotShape;
use crate::weight::WeightSpec;

/// A kind of seed.
///
/// # For implementers
/// - **BP-1** `delta` returns a tensor of the shape of `h` for every slot that `fits` accepts.
/// - **BP-2** it is built from operations that pass gradients on to `h` and to every tensor in `weights`.
/// - **BP-3** it reads nothing back from the device and draws no random numbers: it may run while a graph is captured.
pub trait Blueprint: fmt::Debug + Send + Sync {
    /// Its name: a [`BlueprintId`](leyline::id::BlueprintId) as text.
    fn name(&self) -> &'static str;

    /// Whether it is made for this slot.
    fn fits(&self, slot: SlotShape) -> bool;

    /// Its tensors at this slot, for a bottleneck of `width`; each name once.
    fn weights(&self, slot: SlotShape, width: usize) -> Vec<WeightSpec>;

    /// f(h): `h` and the result (B, C) or (B, C, L); `weights` in the order of [`Self::weights`].
    ///
    /// # Errors
    /// When the device fails.
    fn delta(&self, weights: &[Tensor], h: &Tensor) -> candle_core::Result<Tensor>;
}
