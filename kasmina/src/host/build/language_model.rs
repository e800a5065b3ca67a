//! Tokens to the logits of those that follow, by blocks in which no position sees what comes after it.

use std::sync::Arc;

use candle_core::{Result as TensorResult, Tensor};
use esper_layers::{Activation, LinearOptions, WeightOrder, embedding, layer_norm};

use crate::error::Error;
use crate::host::build::Builder;
use crate::host::build::transformer::{Attention, EPSILON, Mlp, attention_weights, mlp_weights, norm_weights};
use crate::host::network::HostLayer;
use crate::host::{Past, SlotShape};
use crate::weight::{Init, View, WeightSet, WeightSpec};

/// Sizes that do not follow from the data.
#[derive(Debug, Clone, Copy)]
pub(in crate::host) struct Decoder {
    pub(in crate::host) width: usize,
    pub(in crate::host) heads: usize,
    pub(in crate::host) layers: usize,
    pub(in crate::host) mlp_ratio: usize,
    pub(in crate::host) tied: bool,
}

pub(in crate::host) fn language_model(
    builder: &mut Builder<'_, '_>,
    (context, vocabulary): (usize, usize),
    decoder: Decoder,
) -> Result<(), Error> {
    let Decoder { width, heads, layers, mlp_ratio, tied } = decoder;
    // As the matrix of a linear output would start: with a normalized position its logits are about 0.6 apart.
    let init = Init::kaiming(width);
    let specs =
        [WeightSpec::new("tokens", [vocabulary, width], init), WeightSpec::new("positions", [context, width], init)];
    let table = builder.weights("host.embedding", &specs)?;
    builder.stem(Arc::new(Embedding { weights: table.clone() }));
    let shape = SlotShape::Causal { length: context, features: width };
    builder.slot("embedded", shape)?;
    for index in 0..layers {
        let weights = builder.weights(&format!("host.block{index}.attention"), &attention_weights(width))?;
        builder.segment(vec![Arc::new(Attention { weights, heads, causal: true })]);
        builder.slot(format!("attention{index}"), shape)?;
        let weights = builder.weights(&format!("host.block{index}.mlp"), &mlp_weights(width, mlp_ratio * width))?;
        builder.segment(vec![Arc::new(Mlp { weights })]);
        builder.slot(format!("block{index}"), shape)?;
    }
    let norm = Arc::new(Norm { weights: builder.weights("host.last", &norm_weights(width))? });
    let output: Arc<dyn HostLayer> = if tied {
        Arc::new(Tied { table })
    } else {
        builder.linear("host.head", width, vocabulary, Activation::None)?
    };
    builder.segment(vec![norm, output]);
    Ok(())
}

/// Tokens (B, L) → (B, L, C): the row of each, plus its position.
#[derive(Debug)]
struct Embedding {
    weights: WeightSet,
}

impl Embedding {
    fn rows(&self, tokens: &Tensor, view: View) -> TensorResult<Tensor> {
        let table = &self.weights.view(view)[0];
        let (samples, length) = tokens.dims2()?;
        embedding(table, &tokens.flatten_all()?)?.reshape((samples, length, table.dim(1)?))
    }
}

impl HostLayer for Embedding {
    fn forward(&self, tokens: &Tensor, view: View) -> TensorResult<Tensor> {
        self.rows(tokens, view)?.broadcast_add(&self.weights.view(view)[1])
    }

    fn next(&self, tokens: &Tensor, past: &mut Past) -> TensorResult<Tensor> {
        let positions = embedding(&self.weights.view(View::Frozen)[1], &past.places(tokens.dim(1)?)?)?;
        self.rows(tokens, View::Frozen)?.broadcast_add(&positions)
    }

    fn weights(&self) -> Option<&WeightSet> {
        Some(&self.weights)
    }
}

/// normalize(h)·scale + shift, over the features of each position.
#[derive(Debug)]
struct Norm {
    weights: WeightSet,
}

impl HostLayer for Norm {
    fn forward(&self, h: &Tensor, view: View) -> TensorResult<Tensor> {
        let weights = self.weights.view(view);
        layer_norm(h, &weights[0], &weights[1], EPSILON)
    }

    fn weights(&self) -> Option<&WeightSet> {
        Some(&self.weights)
    }
}

/// (B, L, C) → (B, L, V): the inner products with the rows of the table, which belongs to the embedding.
#[derive(Debug)]
struct Tied {
    table: WeightSet,
}

impl HostLayer for Tied {
    fn forward(&self, h: &Tensor, view: View) -> TensorResult<Tensor> {
        let options = LinearOptions { order: WeightOrder::OutIn, ..LinearOptions::default() };
        esper_layers::linear(h, &self.table.view(view)[0], None, &options)
    }
}

#[cfg(test)]
mod tests;
