//! Linear layers with `ReLU` between them, and slots around the hidden ones.
//!
//! ```text
//!  slot ─► x·W₁ + b₁ ─► relu ─► slot ─► ·W₂ + b₂ ─► slot around ─► relu ─► …
//!    └───────── what a seed around the layer sees ─────────┘
//! ```
//!
//! A seed there that computes relu(x·V₁ + c₁)·V₂ is more hidden units: W₁ and V₁ side by side, W₂ above V₂.

use std::sync::Arc;

use candle_core::Tensor;
use esper_layers::{Activation, relu};

use crate::error::Error;
use crate::host::SlotShape;
use crate::host::build::Builder;
use crate::host::network::HostLayer;
use crate::weight::View;

pub(in crate::host) fn mlp(
    builder: &mut Builder<'_, '_>,
    inputs: usize,
    hidden: &[usize],
    classes: usize,
    around: bool,
) -> Result<(), Error> {
    builder.slot("input", SlotShape::Vector { features: inputs })?;
    // The layer before, by its number: the slot it is behind, and the features there.
    let mut before: Option<(usize, usize, usize)> = None;
    let mut features = inputs;
    for (index, &width) in hidden.iter().enumerate() {
        let (name, slot) = (format!("host.layer{index}"), builder.latest_slot());
        if let Some(before) = before.filter(|_| around) {
            let layer = builder.linear(&name, features, width, Activation::None)?;
            builder.segment(vec![layer]);
            slot_around(builder, before, width)?;
            builder.segment(vec![Arc::new(Rectified)]);
        } else {
            let layer = builder.linear(&name, features, width, Activation::Relu)?;
            builder.segment(vec![layer]);
        }
        before = Some((index, slot, features));
        features = width;
        builder.slot(format!("hidden{index}"), SlotShape::Vector { features })?;
    }
    let head = builder.linear("host.head", features, classes, Activation::None)?;
    builder.segment(vec![head]);
    if let Some(before) = before.filter(|_| around) {
        slot_around(builder, before, classes)?;
        builder.segment(Vec::new());
    }
    Ok(())
}

/// The slot around a layer, where the value has so many features.
fn slot_around(
    builder: &mut Builder<'_, '_>,
    (layer, slot, inputs): (usize, usize, usize),
    features: usize,
) -> Result<(), Error> {
    builder.slot_that_sees(format!("around{layer}"), SlotShape::Around { inputs, features }, Some(slot))
}

/// relu(h).
#[derive(Debug)]
struct Rectified;

impl HostLayer for Rectified {
    fn forward(&self, h: &Tensor, _view: View) -> candle_core::Result<Tensor> {
        relu(h)
    }
}
