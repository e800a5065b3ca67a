//! A decoder-only language model that generates token by token, as candle-transformers has it, with keys and values that are
//! appended or written in place.
//!
//! Sources: Touvron et al. 2023, "LLaMA", arXiv 2302.13971; rotary embedding: Su et al. 2021, arXiv 2104.09864.

use candle_core::{D, DType, Result, Tensor};
use candle_nn::rotary_emb::rope;
use candle_nn::{Linear, Module as _, ops};
use esper_layers::{KvCache, LinearOptions, Position, WeightOrder, linear};

use super::draw::Draw;

const EPSILON: f32 = 1e-5;
const ROPE_BASE: f64 = 10_000.0;

/// Sizes of a model.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LlamaConfig {
    pub(crate) vocabulary: usize,
    pub(crate) width: usize,
    pub(crate) blocks: usize,
    pub(crate) heads: usize,
    /// Heads of keys and values; it divides `heads`.
    pub(crate) kv_heads: usize,
    /// Width between the two halves of a perceptron.
    pub(crate) inner: usize,
    /// Most tokens of a sequence.
    pub(crate) capacity: usize,
}

impl LlamaConfig {
    /// 124.9 million parameters.
    pub(crate) const M125: Self =
        Self { vocabulary: 26_000, width: 768, blocks: 12, heads: 12, kv_heads: 12, inner: 2048, capacity: 512 };

    fn head_width(&self) -> usize {
        self.width / self.heads
    }
}

/// Weights and tables; a batch is one sequence.
#[derive(Debug)]
pub(crate) struct Llama {
    config: LlamaConfig,
    /// (vocabulary, width).
    table: Tensor,
    blocks: Vec<Block>,
    norm: Tensor,
    head: Linear,
    /// (capacity, head width / 2) each.
    cos: Tensor,
    sin: Tensor,
}

#[derive(Debug)]
struct Block {
    before_attention: Tensor,
    qkvo: [Linear; 4],
    before_perceptron: Tensor,
    gate_up_down: [Linear; 3],
}

/// What a sequence leaves for its next token.
#[derive(Debug)]
pub(crate) enum Memory {
    /// Keys and values (1, H, n, d) per block, which are replaced by longer ones, and n.
    Growing(Vec<(Tensor, Tensor)>, usize),
    /// The same at one address.
    InPlace(Vec<KvCache>, Position),
}

impl Llama {
    /// Random weights.
    pub(crate) fn new(config: LlamaConfig, draw: &mut Draw) -> Result<Self> {
        let LlamaConfig { vocabulary, width, inner, kv_heads, .. } = config;
        let kv_width = kv_heads * config.head_width();
        let mut linear = |inputs: usize, outputs: usize| {
            let bound = (3.0 / inputs as f32).sqrt();
            Ok::<_, candle_core::Error>(Linear::new(draw.uniform((outputs, inputs), bound)?, None))
        };
        let mut blocks = Vec::with_capacity(config.blocks);
        for _ in 0..config.blocks {
            let qkvo =
                [linear(width, width)?, linear(width, kv_width)?, linear(width, kv_width)?, linear(width, width)?];
            let gate_up_down = [linear(width, inner)?, linear(width, inner)?, linear(inner, width)?];
            blocks.push((qkvo, gate_up_down));
        }
        let head = linear(width, vocabulary)?;
        let ones = || Tensor::ones(width, draw.dtype(), draw.device());
        let blocks = blocks
            .into_iter()
            .map(|(qkvo, gate_up_down)| {
                Ok(Block { before_attention: ones()?, qkvo, before_perceptron: ones()?, gate_up_down })
            })
            .collect::<Result<_>>()?;
        let norm = ones()?;
        let half = config.head_width() / 2;
        let angle = |index: usize| {
            let (place, pair) = (index / half, index % half);
            place as f64 / ROPE_BASE.powf(pair as f64 / half as f64)
        };
        let table = |of: fn(f64) -> f64| {
            let values: Vec<f64> = (0..config.capacity * half).map(|index| of(angle(index))).collect();
            Tensor::from_vec(values, (config.capacity, half), draw.device())?.to_dtype(draw.dtype())
        };
        let (cos, sin) = (table(f64::cos)?, table(f64::sin)?);
        Ok(Self { config, table: draw.uniform((vocabulary, width), 1.0)?, blocks, norm, head, cos, sin })
    }

    /// Nothing is remembered yet; keys and values grow.
    pub(crate) fn growing() -> Memory {
        Memory::Growing(Vec::new(), 0)
    }

    /// The same in place.
    pub(crate) fn in_place(&self) -> Result<Memory> {
        let position = Position::new(self.config.capacity, self.table.device())?;
        let of = (1, self.config.kv_heads, self.config.head_width());
        let caches = self.blocks.iter().map(|_| KvCache::new(of, &position, self.table.dtype()));
        Ok(Memory::InPlace(caches.collect::<Result<_>>()?, position))
    }

    /// Logits (1, vocabulary) of `f32` for what follows a token (1,) of `u32`.
    pub(crate) fn step(&self, token: &Tensor, memory: &mut Memory) -> Result<Tensor> {
        let mut x = self.table.index_select(token, 0)?.unsqueeze(0)?;
        let (cos, sin) = match memory {
            Memory::Growing(_, place) => (self.cos.narrow(0, *place, 1)?, self.sin.narrow(0, *place, 1)?),
            Memory::InPlace(_, position) => {
                let place = position.next(1)?;
                (self.cos.index_select(&place, 0)?, self.sin.index_select(&place, 0)?)
            }
        };
        // In place, products of one row are those of the layers of Esper.
        let is_plain = matches!(memory, Memory::Growing(..));
        let project = |layer: &Linear, x: &Tensor| match is_plain {
            true => layer.forward(x),
            false => linear(
                x,
                layer.weight(),
                None,
                &LinearOptions { order: WeightOrder::OutIn, ..LinearOptions::default() },
            ),
        };
        for (index, block) in self.blocks.iter().enumerate() {
            let normal = ops::rms_norm(&x, &block.before_attention, EPSILON)?;
            let [q, k, v, o] = &block.qkvo;
            let q = rope(&self.split(&project(q, &normal)?)?, &cos, &sin)?;
            let k = rope(&self.split(&project(k, &normal)?)?, &cos, &sin)?;
            let v = self.split(&project(v, &normal)?)?;
            let seen = match memory {
                Memory::Growing(blocks, _) => self.attend(blocks, index, &q, k, v)?,
                Memory::InPlace(caches, position) => caches[index].attend(&q, &k, &v, position)?,
            };
            let seen = seen.transpose(1, 2)?.reshape((1, 1, self.config.width))?;
            x = (x + project(o, &seen)?)?;
            let normal = ops::rms_norm(&x, &block.before_perceptron, EPSILON)?;
            let [gate, up, down] = &block.gate_up_down;
            let inner = (ops::silu(&project(gate, &normal)?)? * project(up, &normal)?)?;
            x = (x + project(down, &inner)?)?;
        }
        match memory {
            Memory::Growing(_, place) => *place += 1,
            Memory::InPlace(_, position) => position.advance(1)?,
        }
        let x = ops::rms_norm(&x, &self.norm, EPSILON)?;
        project(&self.head, &x)?.squeeze(0)?.to_dtype(DType::F32)
    }

    /// (1, 1, H·d) as (1, H, 1, d).
    fn split(&self, x: &Tensor) -> Result<Tensor> {
        let width = self.config.head_width();
        x.reshape((1, 1, x.dim(D::Minus1)? / width, width))?.transpose(1, 2)?.contiguous()
    }

    /// Attention over keys and values that become longer by one.
    fn attend(
        &self,
        blocks: &mut Vec<(Tensor, Tensor)>,
        index: usize,
        q: &Tensor,
        k: Tensor,
        v: Tensor,
    ) -> Result<Tensor> {
        let (k, v) = match blocks.get(index) {
            Some((keys, values)) => (Tensor::cat(&[keys, &k], 2)?, Tensor::cat(&[values, &v], 2)?),
            None => (k, v),
        };
        let (keys, values) = (self.repeated(&k)?, self.repeated(&v)?);
        if index < blocks.len() {
            blocks[index] = (k, v);
        } else {
            blocks.push((k, v));
        }
        let (q, keys, values) = (q.to_dtype(DType::F32)?, keys.to_dtype(DType::F32)?, values.to_dtype(DType::F32)?);
        let scores = (q.matmul(&keys.t()?)? / (self.config.head_width() as f64).sqrt())?;
        let found = ops::softmax_last_dim(&scores)?.matmul(&values.contiguous()?)?;
        found.to_dtype(self.table.dtype())
    }

    /// Each head of keys for all queries that share it.
    fn repeated(&self, x: &Tensor) -> Result<Tensor> {
        let groups = self.config.heads / self.config.kv_heads;
        if groups == 1 {
            return Ok(x.clone());
        }
        let (batch, heads, length, width) = x.dims4()?;
        Tensor::cat(&vec![x; groups], 2)?.reshape((batch, heads * groups, length, width))
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;
    use tolaria::host_read::{HostReads, read_vec};

    use super::*;

    #[test]
    fn keys_in_place_give_the_logits_of_keys_that_grow() {
        let small = LlamaConfig { vocabulary: 11, width: 16, blocks: 2, heads: 4, kv_heads: 2, inner: 24, capacity: 9 };
        let model = Llama::new(small, &mut Draw::new(3, &Device::Cpu)).unwrap();
        let (mut growing, mut in_place) = (Llama::growing(), model.in_place().unwrap());
        for token in [3_u32, 1, 4, 1, 5, 9, 2, 6, 5] {
            let token = Tensor::new(&[token], &Device::Cpu).unwrap();
            let read = |logits| read_vec(&logits, "logits", &mut HostReads::default()).unwrap();
            let expected = read(model.step(&token, &mut growing).unwrap().squeeze(0).unwrap());
            let found = read(model.step(&token, &mut in_place).unwrap().squeeze(0).unwrap());
            for (a, b) in found.iter().zip(&expected) {
                assert!((a - b).abs() < 1e-5, "{found:?} {expected:?}");
            }
        }
    }
}
