//! A decoder-only transformer (pre-norm blocks, learned positions), of basic operations or of layers.
//!
//! Shapes: ids (B, T); activations (B·T, D) outside attention and (B·H, T, D/H) within. Token ids arrive as `f32`,
//! because data sets hold that.

use candle_core::{D, DType, Tensor, Var};
use esper_layers::{Activation, AttentionOptions};
use leyline::model::HostNumbers;
use tolaria::plain::PlainModel;

use super::layer_norm::LayerNorm;
use super::{Draw, Form, Linear, Variables, Variant};

/// Half width of uniform embeddings with the usual deviation of 0.02.
const EMBEDDING_BOUND: f32 = 0.034_641;

/// Sizes of the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TransformerConfig {
    /// Blocks of attention and perceptron.
    pub(crate) num_blocks: usize,
    /// Features per token (D), a multiple of `num_heads`.
    pub(crate) width: usize,
    /// Heads (H).
    pub(crate) num_heads: usize,
    /// Tokens there are.
    pub(crate) vocab_size: usize,
    /// Tokens per sequence (T).
    pub(crate) context_len: usize,
    /// The output multiplies with the table of tokens; else with a weight of its own.
    pub(crate) is_tied: bool,
}

impl TransformerConfig {
    /// About 5 million parameters.
    pub(crate) const TFM5M: Self =
        Self { num_blocks: 6, width: 256, num_heads: 4, vocab_size: 256, context_len: 64, is_tied: false };

    /// About 32 million parameters.
    pub(crate) const TFM30M: Self =
        Self { num_blocks: 10, width: 512, num_heads: 8, vocab_size: 256, context_len: 128, is_tied: false };

    /// GPT-2 of 124 million parameters, its vocabulary filled up to a multiple of 64.
    pub(crate) const GPT2: Self =
        Self { num_blocks: 12, width: 768, num_heads: 12, vocab_size: 50_304, context_len: 1024, is_tied: true };

    /// Additions and multiplications of products for a token of a training step, those of attention as if each position
    /// saw all others: 6 for each parameter but positions, and 12·L·D·T.
    ///
    /// # Source
    /// Chowdhery et al. 2022, "PaLM", arXiv 2204.02311, appendix B
    pub(crate) fn flops_per_token(self, num_parameters: usize) -> f64 {
        let of_positions = self.context_len * self.width;
        6.0 * (num_parameters - of_positions) as f64 + 12.0 * (self.num_blocks * of_positions) as f64
    }
}

/// The network with its variables; a clone shares them.
#[derive(Debug, Clone)]
pub(crate) struct Transformer {
    config: TransformerConfig,
    form: Form,
    tokens: Var,
    positions: Var,
    blocks: Vec<Block>,
    norm: LayerNorm,
    head: Linear,
    /// 0 on and below the diagonal, else minus infinity, shape (T, T).
    mask: Tensor,
    variables: Variables,
}

impl Transformer {
    /// Draws the weights.
    ///
    /// # Errors
    /// When the heads do not divide the width; when the device fails.
    pub(crate) fn new(config: TransformerConfig, variant: Variant, draw: &mut Draw) -> candle_core::Result<Self> {
        let TransformerConfig { num_blocks, width, num_heads, vocab_size, context_len, is_tied } = config;
        if num_heads == 0 || !width.is_multiple_of(num_heads) {
            candle_core::bail!("expected a width that {num_heads} heads divide, found {width}")
        }
        let mut variables = Variables::new();
        let tokens = Var::from_tensor(&draw.uniform((vocab_size, width), EMBEDDING_BOUND)?)?;
        let positions = Var::from_tensor(&draw.uniform((context_len, width), EMBEDDING_BOUND)?)?;
        variables.push(("tokens".to_owned(), tokens.clone()));
        variables.push(("positions".to_owned(), positions.clone()));
        let blocks = (0..num_blocks)
            .map(|index| Block::new(&format!("blocks.{index}"), config, variant, draw, &mut variables))
            .collect::<candle_core::Result<_>>()?;
        let norm = LayerNorm::new("norm", width, variant, draw, &mut variables)?;
        let head = if is_tied {
            Linear::of(tokens.clone())
        } else {
            Linear::without_bias("head", [width, vocab_size], draw, &mut variables)?
        };
        let head = head.in_variant(variant);
        let mask = causal_mask(context_len, draw)?;
        Ok(Self { config, form: variant.form, tokens, positions, blocks, norm, head, mask, variables })
    }

    /// Logits of the next token at each position, shape (B·T, vocabulary), of ids (B, T) as `f32`.
    ///
    /// # Errors
    /// For another length than the context; when the device fails. An id outside the vocabulary is undefined off
    /// the CPU.
    pub(crate) fn forward(&self, ids: &Tensor) -> candle_core::Result<Tensor> {
        self.head.forward(&self.embed_and_mix(ids)?.normalized(&self.norm)?.1)
    }

    /// Logits of the token after each sequence, shape (B, vocabulary), of ids (B, T) as `f32`.
    pub(crate) fn forward_last(&self, ids: &Tensor) -> candle_core::Result<Tensor> {
        let (batch, len) = ids.dims2()?;
        let x = self.embed_and_mix(ids)?.sum()?.reshape((batch, len, self.config.width))?;
        let last = x.narrow(1, len - 1, 1)?.squeeze(1)?.contiguous()?;
        self.head.forward(&self.norm.forward(&last)?)
    }

    /// What the blocks make of ids (B, T).
    fn embed_and_mix(&self, ids: &Tensor) -> candle_core::Result<Stream> {
        let TransformerConfig { width, context_len, .. } = self.config;
        let (batch, len) = ids.dims2()?;
        if len != context_len {
            candle_core::bail!("expected sequences of {context_len} tokens, found {len}")
        }
        // Detached: candle would look for a gradient of the ids when they are kept in a variable.
        let ids = ids.detach().to_dtype(DType::U32)?.flatten_all()?;
        let embedded = match self.form {
            Form::Primitive => self.tokens.index_select(&ids, 0)?,
            Form::Layers => esper_layers::embedding(&self.tokens, &ids)?,
        };
        let embedded = embedded.reshape((batch, len, width))?;
        let embedded = embedded.broadcast_add(&self.positions)?.reshape((batch * len, width))?;
        let start = Stream { x: embedded, addend: None };
        self.blocks.iter().try_fold(start, |stream, block| block.forward(stream, batch, &self.mask))
    }

    /// The network as a model; it gives B·T rows of logits for B samples, so targets are (B·T,).
    pub(crate) fn into_model(self) -> Result<PlainModel, tolaria::Error> {
        Ok(PlainModel::new(self.variables.clone(), move |ids: &Tensor| self.forward(ids))?
            .with_host_numbers(HostNumbers::Fixed))
    }

    /// The network as a model that gives logits (B, T, vocabulary), as a task of tokens has them.
    pub(crate) fn into_token_model(self) -> Result<PlainModel, tolaria::Error> {
        let TransformerConfig { context_len, vocab_size, .. } = self.config;
        let variables = self.variables.clone();
        let forward = move |ids: &Tensor| self.forward(ids)?.reshape(((), context_len, vocab_size));
        Ok(PlainModel::new(variables, forward)?.with_host_numbers(HostNumbers::Fixed))
    }

    /// The network as a model that gives one row of logits per sample, those of the token after it.
    pub(crate) fn into_last_model(self) -> Result<PlainModel, tolaria::Error> {
        Ok(PlainModel::new(self.variables.clone(), move |ids: &Tensor| self.forward_last(ids))?
            .with_host_numbers(HostNumbers::Fixed))
    }
}

/// What goes from block to block: (B·T, D), and what is still to be added to it.
struct Stream {
    x: Tensor,
    addend: Option<Tensor>,
}

impl Stream {
    fn sum(self) -> candle_core::Result<Tensor> {
        match self.addend {
            Some(addend) => &self.x + addend.to_dtype(self.x.dtype())?,
            None => Ok(self.x),
        }
    }

    /// The sum, and that normalized.
    fn normalized(self, norm: &LayerNorm) -> candle_core::Result<(Tensor, Tensor)> {
        match self.addend {
            Some(addend) => norm.forward_sum(&self.x, &addend),
            None => Ok((self.x.clone(), norm.forward(&self.x)?)),
        }
    }
}

#[derive(Debug, Clone)]
struct Block {
    num_heads: usize,
    variant: Variant,
    attention_norm: LayerNorm,
    inner: Inner,
    projection: Linear,
    perceptron_norm: LayerNorm,
    expand: Linear,
    contract: Linear,
}

/// What attention compares and mixes.
#[derive(Debug, Clone)]
enum Inner {
    /// Three products: the gradient of a narrowed view of one is padded with zeros to the full width, three times.
    Apart { query: Linear, key: Linear, value: Linear },
    /// One product, whose result is read where it lies.
    Joined(Linear),
}

impl Inner {
    fn new(
        name: &str,
        width: usize,
        variant: Variant,
        draw: &mut Draw,
        variables: &mut Variables,
    ) -> candle_core::Result<Self> {
        // Drawn alike in both forms, so that they start from the same network.
        let mut drawn = Variables::new();
        let mut linear = |part: &str| {
            let linear = Linear::new(&format!("{name}.{part}"), [width, width], draw, &mut drawn)?;
            Ok::<_, candle_core::Error>(linear.in_variant(variant))
        };
        let [query, key, value] = [linear("query")?, linear("key")?, linear("value")?];
        match variant.form {
            Form::Primitive => {
                variables.append(&mut drawn);
                Ok(Self::Apart { query, key, value })
            }
            Form::Layers => {
                let joined = Linear::joined(&format!("{name}.qkv"), &[query, key, value], variables)?;
                Ok(Self::Joined(joined.in_variant(variant)))
            }
        }
    }
}

impl Block {
    fn new(
        name: &str,
        config: TransformerConfig,
        variant: Variant,
        draw: &mut Draw,
        variables: &mut Variables,
    ) -> candle_core::Result<Self> {
        let d = config.width;
        let attention_norm = LayerNorm::new(&format!("{name}.attention_norm"), d, variant, draw, variables)?;
        let perceptron_norm = LayerNorm::new(&format!("{name}.perceptron_norm"), d, variant, draw, variables)?;
        let inner = Inner::new(name, d, variant, draw, variables)?;
        let mut linear = |part: &str, sizes| {
            let linear = Linear::new(&format!("{name}.{part}"), sizes, draw, variables)?;
            Ok::<_, candle_core::Error>(linear.in_variant(variant))
        };
        Ok(Self {
            num_heads: config.num_heads,
            variant,
            attention_norm,
            inner,
            projection: linear("projection", [d, d])?,
            perceptron_norm,
            expand: linear("expand", [d, 4 * d])?,
            contract: linear("contract", [4 * d, d])?,
        })
    }

    fn forward(&self, stream: Stream, batch: usize, mask: &Tensor) -> candle_core::Result<Stream> {
        let (x, normalized) = stream.normalized(&self.attention_norm)?;
        let attended = match &self.inner {
            Inner::Apart { query, key, value } => {
                let [query, key, value] = [query, key, value].map(|linear| linear.forward(&normalized));
                self.attend([query?, key?, value?], batch, mask)?
            }
            Inner::Joined(qkv) => {
                let (rows, width) = x.dims2()?;
                let qkv = qkv.forward(&normalized)?.reshape((batch, rows / batch, 3 * width))?;
                let options = AttentionOptions { num_heads: self.num_heads, causal: true };
                esper_layers::attention(&qkv, &options)?.reshape((rows, width))?
            }
        };
        let attended = Stream { x, addend: Some(self.projection.forward(&attended)?) };
        let (x, normalized) = attended.normalized(&self.perceptron_norm)?;
        let hidden = self.expand.activated(&normalized, Activation::GeluErf)?;
        Ok(Stream { x, addend: Some(self.contract.forward(&hidden)?) })
    }

    fn attend(&self, [query, key, value]: [Tensor; 3], batch: usize, mask: &Tensor) -> candle_core::Result<Tensor> {
        let (rows, width) = query.dims2()?;
        let (len, heads) = (rows / batch, self.num_heads);
        let head_width = width / heads;
        let split = |x: Tensor| {
            let x = self.variant.factor(&x)?.reshape((batch, len, heads, head_width))?;
            let by_head = x.transpose(1, 2)?.contiguous()?;
            by_head.reshape((batch * heads, len, head_width))
        };
        let dtype = query.dtype();
        let query = split((query * (1.0 / (head_width as f64).sqrt()))?)?;
        let (key, value) = (split(key)?, split(value)?);
        let weights = softmax(&query.matmul(&key.t()?)?.to_dtype(dtype)?.broadcast_add(mask)?)?;
        let mixed = self.variant.factor(&weights)?.matmul(&value)?.reshape((batch, heads, len, head_width))?;
        mixed.transpose(1, 2)?.contiguous()?.reshape((rows, width))?.to_dtype(dtype)
    }
}

/// Over the last dimension. Not the fused operation of `candle-nn`, which has no gradient.
fn softmax(x: &Tensor) -> candle_core::Result<Tensor> {
    // A constant: the gradient does not depend on what is subtracted.
    let max = x.max_keepdim(D::Minus1)?.detach();
    let exp = x.broadcast_sub(&max)?.exp()?;
    exp.broadcast_div(&exp.sum_keepdim(D::Minus1)?)
}

fn causal_mask(len: usize, draw: &Draw) -> candle_core::Result<Tensor> {
    let entry = |index| if index % len > index / len { f32::NEG_INFINITY } else { 0.0 };
    let entries: Vec<f32> = (0..len * len).map(entry).collect();
    Tensor::from_vec(entries, (len, len), draw.device())?.to_dtype(draw.dtype())
}

#[cfg(test)]
mod tests;
