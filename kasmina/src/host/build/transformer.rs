//! Encoder blocks over equal parts of a sample, then the mean over positions and a linear layer.

use std::sync::Arc;

use candle_core::{Result as TensorResult, Tensor};
use esper_layers::{Activation, layer_norm};

use crate::error::Error;
use crate::host::build::Builder;
use crate::host::network::HostLayer;
use crate::host::{Past, SlotShape, in_wide, linear, next_attention, self_attention};
use crate::weight::{Init, View, WeightSet, WeightSpec};

/// Keeps the division finite where all features of a position agree.
pub(super) const EPSILON: f64 = 1e-5;

/// Sizes of an encoder that do not follow from the data.
#[derive(Debug, Clone, Copy)]
pub(in crate::host) struct Encoder {
    pub(in crate::host) patch: usize,
    pub(in crate::host) width: usize,
    pub(in crate::host) heads: usize,
    pub(in crate::host) layers: usize,
    pub(in crate::host) mlp_ratio: usize,
}

pub(in crate::host) fn transformer(
    builder: &mut Builder<'_, '_>,
    inputs: usize,
    encoder: Encoder,
    classes: usize,
) -> Result<(), Error> {
    let Encoder { patch, width, heads, layers, mlp_ratio } = encoder;
    let length = inputs / patch;
    builder.slot("input", SlotShape::Vector { features: inputs })?;
    let init = Init::kaiming(patch);
    // A position is a bias of its own, so it starts as one.
    let specs = [
        WeightSpec::new("weight", [patch, width], init),
        WeightSpec::new("bias", [width], init),
        WeightSpec::new("positions", [length, width], init),
    ];
    let weights = builder.weights("host.embedding", &specs)?;
    builder.segment(vec![Arc::new(Embedding { weights })]);
    let shape = SlotShape::Sequence { length, features: width };
    builder.slot("embedded", shape)?;
    for index in 0..layers {
        let weights = builder.weights(&format!("host.block{index}.attention"), &attention_weights(width))?;
        let attention = Attention { weights, heads, causal: false };
        let weights = builder.weights(&format!("host.block{index}.mlp"), &mlp_weights(width, mlp_ratio * width))?;
        builder.segment(vec![Arc::new(attention), Arc::new(Mlp { weights })]);
        builder.slot(format!("block{index}"), shape)?;
    }
    let [scale, shift] = norm_weights(width);
    let weights = builder.weights("host.pool", &[scale, shift])?;
    let head = builder.linear("host.head", width, classes, Activation::None)?;
    builder.segment(vec![Arc::new(MeanOfNorm { weights }), head]);
    Ok(())
}

pub(super) fn norm_weights(width: usize) -> [WeightSpec; 2] {
    [WeightSpec::new("norm.scale", [width], Init::Ones), WeightSpec::new("norm.shift", [width], Init::Zeros)]
}

pub(super) fn attention_weights(width: usize) -> Vec<WeightSpec> {
    let [scale, shift] = norm_weights(width);
    let init = Init::kaiming(width);
    vec![
        scale,
        shift,
        WeightSpec::new("qkv.weight", [width, 3 * width], init),
        WeightSpec::new("qkv.bias", [3 * width], Init::Zeros),
        WeightSpec::new("out.weight", [width, width], init),
        WeightSpec::new("out.bias", [width], Init::Zeros),
    ]
}

pub(super) fn mlp_weights(width: usize, hidden: usize) -> Vec<WeightSpec> {
    let [scale, shift] = norm_weights(width);
    let (up, down) = (Init::kaiming(width), Init::kaiming(hidden));
    vec![
        scale,
        shift,
        WeightSpec::new("up.weight", [width, hidden], up),
        WeightSpec::new("up.bias", [hidden], up),
        WeightSpec::new("down.weight", [hidden, width], down),
        WeightSpec::new("down.bias", [width], down),
    ]
}

/// (B, L·patch) → (B, L, width): a linear embedding of each part plus its position.
#[derive(Debug)]
struct Embedding {
    weights: WeightSet,
}

impl HostLayer for Embedding {
    fn forward(&self, h: &Tensor, view: View) -> TensorResult<Tensor> {
        let weights = self.weights.view(view);
        let (patch, length) = (weights[0].dim(0)?, weights[2].dim(0)?);
        let tokens = h.reshape((h.dim(0)?, length, patch))?;
        linear(&tokens, &weights[0], &weights[1], Activation::None)?.broadcast_add(&weights[2])
    }

    fn weights(&self) -> Option<&WeightSet> {
        Some(&self.weights)
    }
}

/// h + `self_attention`(norm(h)), for sequences (B, L, C).
#[derive(Debug)]
pub(super) struct Attention {
    pub(super) weights: WeightSet,
    pub(super) heads: usize,
    /// Whether a position sees only itself and the positions before it.
    pub(super) causal: bool,
}

impl HostLayer for Attention {
    fn forward(&self, h: &Tensor, view: View) -> TensorResult<Tensor> {
        let weights = self.weights.view(view);
        let x = layer_norm(h, &weights[0], &weights[1], EPSILON)?;
        h + self_attention(&x, &weights[2..], self.heads, self.causal)?
    }

    fn next(&self, h: &Tensor, past: &mut Past) -> TensorResult<Tensor> {
        let weights = self.weights.view(View::Frozen);
        let x = layer_norm(h, &weights[0], &weights[1], EPSILON)?;
        h + next_attention(&x, &weights[2..], self.heads, past)?
    }

    fn weights(&self) -> Option<&WeightSet> {
        Some(&self.weights)
    }
}

/// h + W₂·gelu(W₁·norm(h) + b₁) + b₂, for sequences (B, L, C), at each position by itself.
#[derive(Debug)]
pub(super) struct Mlp {
    pub(super) weights: WeightSet,
}

impl HostLayer for Mlp {
    fn forward(&self, h: &Tensor, view: View) -> TensorResult<Tensor> {
        let weights = self.weights.view(view);
        let x = layer_norm(h, &weights[0], &weights[1], EPSILON)?;
        let hidden = linear(&x, &weights[2], &weights[3], Activation::Gelu)?;
        h + linear(&hidden, &weights[4], &weights[5], Activation::None)?
    }

    fn weights(&self) -> Option<&WeightSet> {
        Some(&self.weights)
    }
}

/// Mean over positions of norm(h): (B, L, C) → (B, C).
#[derive(Debug)]
struct MeanOfNorm {
    weights: WeightSet,
}

impl HostLayer for MeanOfNorm {
    fn forward(&self, h: &Tensor, view: View) -> TensorResult<Tensor> {
        let weights = self.weights.view(view);
        in_wide(&layer_norm(h, &weights[0], &weights[1], EPSILON)?, |x| x.mean(1))
    }

    fn weights(&self) -> Option<&WeightSet> {
        Some(&self.weights)
    }
}

#[cfg(test)]
mod tests;
