//! Blueprints: the kinds of seeds, and the registry of those on offer.
//!
//! A seed computes a *delta* f(h) from the value h at its slot; its blend mixes the two
//! ([`graft::blend`](crate::graft::blend)): h + α·f(h) by default. The last layer starts at zero, so f = 0 at birth: through
//! the blends `residual`, `multiply` and `gate` a new seed changes nothing before it has learned something, while
//! `convex`, `channel` and `confidence` take a part of h away from the first α above 0 on.
//!
//! | name | slots, all being those but around a layer | f(h) |
//! |---|---|---|
//! | `mlp` | all | bottleneck of two pointwise layers |
//! | `norm_mlp` | all with C ≥ 2 | normalization over C, then the bottleneck |
//! | `conv` | signals, images | bottleneck of two convolutions over three positions along each side |
//! | `depthwise` | signals, images; only in the extended registry | depthwise convolution over as many, then a pointwise layer |
//! | `attention` | sequences with L, C ≥ 2 | normalization over C, then self-attention |
//! | `causal_attention` | causal sequences with L, C ≥ 2 | the same, over the positions so far |
//! | `low_rank` | all; only in the extended registry | a pointwise linear map of low rank |
//! | `widen` | around a layer; only in the extended registry | as many more of its units, whose way up starts at zero |
//! | `norm` | all with C ≥ 2; only in the extended registry | normalization over C with gain and offset |
//! | `noise` | all | a harmful constant, for control experiments; only on request |
//!
//! Whatever the slot, a blueprint sees the channels second: (B, C), (B, C, L) or (B, C, H, W).
//! [`SeedModule`] turns sequences (B, L, C) there and back, which copies nothing.

mod position;
mod pointwise;
mod norm;
mod low_rank;
mod conv;
mod attention;
mod causal_attention;
mod depthwise;
mod noise;
mod widen;
mod registry;
mod module;
mod artifact;
#[cfg(test)]
mod testing;

pub use attention::Attention;
pub use causal_attention::CausalAttention;
pub use conv::Conv;
pub use depthwise::Depthwise;
pub use low_rank::LowRank;
pub use module::SeedModule;
pub use noise::Noise;
pub use norm::Norm;
pub use pointwise::{Mlp, NormMlp};
pub use registry::Registry;
pub use widen::Widen;

use std::fmt;
use std::sync::Arc;

use candle_core::Tensor;

use crate::host::{Past, SlotShape};
use crate::weight::WeightSpec;

/// When a blueprint of this crate is on offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Offered {
    Always,
    /// Where the configuration names it.
    ByName,
    /// As `ByName`, or in control experiments.
    AsControl,
}

/// Every blueprint of this crate.
fn built_in() -> [(Offered, Arc<dyn Blueprint>); 10] {
    [
        (Offered::Always, Arc::new(Mlp)),
        (Offered::Always, Arc::new(NormMlp)),
        (Offered::Always, Arc::new(Conv)),
        (Offered::Always, Arc::new(Attention)),
        (Offered::Always, Arc::new(CausalAttention)),
        (Offered::ByName, Arc::new(Depthwise)),
        (Offered::ByName, Arc::new(LowRank)),
        (Offered::ByName, Arc::new(Norm)),
        (Offered::ByName, Arc::new(Widen)),
        (Offered::AsControl, Arc::new(Noise)),
    ]
}

/// The layer of a module that leads from C features into its bottleneck: relu(x·W + b).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DownLayer {
    /// Which of [`Blueprint::weights`] is W, of shape (taps·C, width) with the taps outside.
    pub weight: usize,
    /// Which of them is b, of shape (width).
    pub bias: Option<usize>,
    /// Positions the layer sees (count); odd, the middle one being the position itself.
    pub num_taps: usize,
}

/// A kind of seed.
///
/// # For implementers
/// - **BP-1** `delta` returns a tensor of the shape of the slot's value for every slot that `fits` accepts. It is that of `h`, but around
///   a layer, where `h` is what the layer sees.
/// - **BP-2** it is built from operations that pass gradients on to `h` and to every tensor in `weights`.
/// - **BP-3** it reads nothing back from the device and draws no random numbers: it may run while a graph is captured.
/// - **BP-4** at a causal slot, f(h) at a position depends on no position after it.
pub trait Blueprint: fmt::Debug + Send + Sync {
    /// Its name: a [`BlueprintId`](leyline::id::BlueprintId) as text.
    fn name(&self) -> &'static str;

    /// Whether it is made for this slot; unless it says otherwise for every one but those that are causal, where not every
    /// function may stand (BP-4), and those around a layer, where f(h) has another shape than h.
    fn fits(&self, slot: SlotShape) -> bool {
        !matches!(slot, SlotShape::Causal { .. } | SlotShape::Around { .. })
    }

    /// Its tensors at this slot, for a bottleneck of `width`; each name once, and none that starts with `gate.`,
    /// which names the tensors of a blend.
    fn weights(&self, slot: SlotShape, width: usize) -> Vec<WeightSpec>;

    /// The first layer of the module at this slot, for initializations that choose it from data; none where it has no such layer.
    fn down_layer(&self, _slot: SlotShape) -> Option<DownLayer> {
        None
    }

    /// What that layer sees of the positions `rows` (N, C): (N, C).
    ///
    /// # Errors
    /// When the device fails.
    fn down_inputs(&self, rows: &Tensor) -> candle_core::Result<Tensor> {
        Ok(rows.clone())
    }

    /// f(h); `weights` in the order of [`Self::weights`].
    ///
    /// # Shapes
    /// `h` and the result (B, C) for a vector, (B, C, L) for a signal or a sequence, (B, C, H, W) for an image; around a layer
    /// `h` (B, inputs), the result (B, C)
    ///
    /// # Errors
    /// When the device fails.
    fn delta(&self, weights: &[Tensor], h: &Tensor) -> candle_core::Result<Tensor>;

    /// f(h) at tokens that follow those of `past`, of a causal slot: what [`Self::delta`] gives for them at the end of the whole
    /// sequence. A blueprint that looks at no other position has it already.
    ///
    /// # Shapes
    /// `h` and the result (1, C, n) for n tokens
    ///
    /// # Errors
    /// When the device fails.
    fn delta_next(&self, weights: &[Tensor], h: &Tensor, _past: &mut Past) -> candle_core::Result<Tensor> {
        self.delta(weights, h)
    }
}
