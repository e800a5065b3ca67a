//! A decoder-only transformer of basic operations (pre-norm blocks, learned positions, untied output).
//!
//! Shapes: ids (B, T); activations (B·T, D) outside attention and (B·H, T, D/H) within. Token ids arrive as `f32`,
//! because data sets hold that.

use candle_core::{D, DType, Tensor, Var};
use tolaria::plain::PlainModel;

use super::layer_norm::LayerNorm;
use super::{Draw, Linear, Variables};

/// Half width of uniform embeddings with the usual deviation of 0.02.
const EMBEDDING_BOUND: f32 = 0.034_641;

/// Sizes of the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransformerConfig {
    /// Blocks of attention and perceptron.
    pub num_blocks: usize,
    /// Features per token (D), a multiple of `num_heads`.
    pub width: usize,
    /// Heads (H).
    pub num_heads: usize,
    /// Tokens there are.
    pub vocab_size: usize,
    /// Tokens per sequence (T).
    pub context_len: usize,
}

impl TransformerConfig {
    /// About 5 million parameters.
    pub const TFM5M: Self = Self { num_blocks: 6, width: 256, num_heads: 4, vocab_size: 256, context_len: 64 };
}

/// The network with its variables; a clone shares them.
#[derive(Debug, Clone)]
pub struct Transformer {
    config: TransformerConfig,
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
    /// # Sync
    /// none
    pub fn new(config: TransformerConfig, draw: &mut Draw) -> candle_core::Result<Self> {
        let TransformerConfig { num_blocks, width, num_heads, vocab_size, context_len } = config;
        if num_heads == 0 || !width.is_multiple_of(num_heads) {
            candle_core::bail!("expected a width that {num_heads} heads divide, found {width}")
        }
        let mut variables = Variables::new();
        let tokens = Var::from_tensor(&draw.uniform((vocab_size, width), EMBEDDING_BOUND)?)?;
        let positions = Var::from_tensor(&draw.uniform((context_len, width), EMBEDDING_BOUND)?)?;
        variables.push(("tokens".to_owned(), tokens.clone()));
        variables.push(("positions".to_owned(), positions.clone()));
        let blocks = (0..num_blocks)
            .map(|index| Block::new(&format!("blocks.{index}"), config, draw, &mut variables))
            .collect::<candle_core::Result<_>>()?;
        let norm = LayerNorm::new("norm", width, draw, &mut variables)?;
        let head = Linear::without_bias("head", [width, vocab_size], draw, &mut variables)?;
        let mask = causal_mask(context_len, draw)?;
        Ok(Self { config, tokens, positions, blocks, norm, head, mask, variables })
    }

    /// Logits of the next token at each position, shape (B·T, vocabulary), of ids (B, T) as `f32`.
    ///
    /// # Errors
    /// For another length than the context; when the device fails. An id outside the vocabulary is undefined off
    /// the CPU.
    /// # Sync
    /// none
    pub fn forward(&self, ids: &Tensor) -> candle_core::Result<Tensor> {
        let TransformerConfig { width, context_len, .. } = self.config;
        let (batch, len) = ids.dims2()?;
        if len != context_len {
            candle_core::bail!("expected sequences of {context_len} tokens, found {len}")
        }
        // Detached: candle would look for a gradient of the ids when they are kept in a variable.
        let ids = ids.detach().to_dtype(DType::U32)?.flatten_all()?;
        let embedded = self.tokens.index_select(&ids, 0)?.reshape((batch, len, width))?;
        let mut x = embedded.broadcast_add(&self.positions)?.reshape((batch * len, width))?;
        for block in &self.blocks {
            x = block.forward(&x, batch, &self.mask)?;
        }
        self.head.forward(&self.norm.forward(&x)?)
    }

    /// Variables by name.
    #[must_use]
    pub fn variables(&self) -> &[(String, Var)] {
        &self.variables
    }

    /// Elements of all variables.
    #[must_use]
    pub fn num_parameters(&self) -> usize {
        self.variables.iter().map(|(_, var)| var.elem_count()).sum()
    }

    /// The network as a model; it gives B·T rows of logits for B samples, so targets are (B·T,).
    ///
    /// # Errors
    /// Never in practice: the names are unique.
    pub fn into_model(self) -> Result<PlainModel, tolaria::Error> {
        PlainModel::new(self.variables.clone(), move |ids: &Tensor| self.forward(ids))
    }
}

#[derive(Debug, Clone)]
struct Block {
    num_heads: usize,
    attention_norm: LayerNorm,
    query: Linear,
    key: Linear,
    value: Linear,
    projection: Linear,
    perceptron_norm: LayerNorm,
    expand: Linear,
    contract: Linear,
}

impl Block {
    fn new(
        name: &str,
        config: TransformerConfig,
        draw: &mut Draw,
        variables: &mut Variables,
    ) -> candle_core::Result<Self> {
        let d = config.width;
        let attention_norm = LayerNorm::new(&format!("{name}.attention_norm"), d, draw, variables)?;
        let perceptron_norm = LayerNorm::new(&format!("{name}.perceptron_norm"), d, draw, variables)?;
        // Three products: the gradient of a narrowed view of one is padded with zeros to the full width, three times.
        let mut linear = |part: &str, sizes| Linear::new(&format!("{name}.{part}"), sizes, draw, variables);
        Ok(Self {
            num_heads: config.num_heads,
            attention_norm,
            query: linear("query", [d, d])?,
            key: linear("key", [d, d])?,
            value: linear("value", [d, d])?,
            projection: linear("projection", [d, d])?,
            perceptron_norm,
            expand: linear("expand", [d, 4 * d])?,
            contract: linear("contract", [4 * d, d])?,
        })
    }

    fn forward(&self, x: &Tensor, batch: usize, mask: &Tensor) -> candle_core::Result<Tensor> {
        let attended = self.attend(&self.attention_norm.forward(x)?, batch, mask)?;
        let x = (x + self.projection.forward(&attended)?)?;
        let hidden = self.expand.forward(&self.perceptron_norm.forward(&x)?)?.gelu_erf()?;
        x + self.contract.forward(&hidden)?
    }

    fn attend(&self, x: &Tensor, batch: usize, mask: &Tensor) -> candle_core::Result<Tensor> {
        let (rows, width) = x.dims2()?;
        let (len, heads) = (rows / batch, self.num_heads);
        let head_width = width / heads;
        let split = |x: Tensor| {
            let by_head = x.reshape((batch, len, heads, head_width))?.transpose(1, 2)?.contiguous()?;
            by_head.reshape((batch * heads, len, head_width))
        };
        let query = split((self.query.forward(x)? * (1.0 / (head_width as f64).sqrt()))?)?;
        let (key, value) = (split(self.key.forward(x)?)?, split(self.value.forward(x)?)?);
        let weights = softmax(&query.matmul(&key.t()?)?.broadcast_add(mask)?)?;
        let mixed = weights.matmul(&value)?.reshape((batch, heads, len, head_width))?;
        mixed.transpose(1, 2)?.contiguous()?.reshape((rows, width))
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
