//! Attention as candle computes it on the CPU: q (B, S, H, D), k and v (B, L, H / n, D), result (B, H, S, D).

use super::{wanted, wide};
use crate::attention::AttnMask;
use candle::{CpuStorage, CustomOp3, Layout, Result, Shape, Tensor, D};

/// What it was called with.
pub(crate) struct Attention {
    scale: f64,
    mask: AttnMask,
    max_bias: f32,
    softcap: Option<f32>,
}

impl Attention {
    pub(crate) fn new(scale: f32, mask: AttnMask, max_bias: Option<f32>, softcap: Option<f32>) -> Self {
        Self { scale: scale.into(), mask, max_bias: max_bias.unwrap_or(0.0), softcap }
    }

    /// (S, L) or what spreads to (B, H, S, L): added to the products of queries and keys.
    fn mask(&self, batch: usize, queries: usize, keys: usize, like: &Tensor) -> Result<Option<Tensor>> {
        let offset = match &self.mask {
            AttnMask::None => return Ok(None),
            AttnMask::Mask(mask) => {
                let mask = wide(mask)?.to_dtype(like.dtype())?;
                return Ok(Some(if mask.rank() == 3 { mask.unsqueeze(1)? } else { mask }));
            }
            // Batches are aligned at their ends, and one query sees all keys.
            AttnMask::Causal { .. } if batch > 1 || queries == 1 => keys.saturating_sub(queries),
            AttnMask::Causal { kv_offset } => *kv_offset,
        };
        let hidden = (0..queries).flat_map(|query| (0..keys).map(move |key| f32::from(key > query + offset)));
        let hidden = hidden.map(|hidden| if hidden > 0.0 { f32::NEG_INFINITY } else { 0.0 }).collect::<Vec<_>>();
        Tensor::from_vec(hidden, (queries, keys), like.device())?.to_dtype(like.dtype()).map(Some)
    }
}

impl CustomOp3 for Attention {
    fn name(&self) -> &'static str {
        "flash_attn"
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        candle::bail!("{} is recorded only", self.name())
    }

    fn bwd(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        _: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        if self.max_bias != 0.0 {
            candle::bail!("`flash_attn` with a bias of positions (`max_bias`) has no backward pass")
        }
        let by_head = |x: &Tensor| wide(x)?.transpose(1, 2)?.contiguous();
        let ((batch, queries, heads, depth), (_, keys, kv_heads, _)) = (q.dims4()?, k.dims4()?);
        let shared = heads / kv_heads;
        // (B, H, L, D): each head of keys as often as it is used.
        let spread = |x: &Tensor| {
            let width = x.dim(3)?;
            by_head(x)?
                .unsqueeze(2)?
                .broadcast_as((batch, kv_heads, shared, keys, width))?
                .reshape((batch, heads, keys, width))
        };
        // (B, H, L, D) ─► (B, L, H / n, D)
        let gather = |x: Tensor| {
            let width = x.dim(3)?;
            x.reshape((batch, kv_heads, shared, keys, width))?.sum(2)?.transpose(1, 2)?.contiguous()
        };
        let (queries_by_head, keys_by_head, values_by_head) = (by_head(q)?, spread(k)?, spread(v)?);
        let product = (queries_by_head.matmul(&keys_by_head.t()?)? * self.scale)?;
        let (capped, slope) = match self.softcap {
            Some(cap) => {
                let bent = (product / f64::from(cap))?.tanh()?;
                ((&bent * f64::from(cap))?, Some((1.0 - bent.sqr()?)?))
            }
            None => (product, None),
        };
        let masked = match self.mask(batch, queries, keys, &capped)? {
            Some(mask) => capped.broadcast_add(&mask)?,
            None => capped,
        };
        let weights = crate::ops::softmax(&masked, D::Minus1)?;
        let weights = match self.mask {
            // A query that sees nothing is answered with zeros.
            AttnMask::Mask(_) => {
                let is_blind = masked.max_keepdim(D::Minus1)?.eq(f64::NEG_INFINITY)?.broadcast_as(weights.shape())?;
                is_blind.where_cond(&weights.zeros_like()?, &weights)?
            }
            AttnMask::None | AttnMask::Causal { .. } => weights,
        };
        let grad = wide(grad)?;
        let of_weights = grad.matmul(&values_by_head.t()?)?;
        let of_product = super::norm::softmax(&weights, &of_weights)?;
        let of_product = match slope {
            Some(slope) => (of_product * slope)?,
            None => of_product,
        };
        let of_product = (of_product * self.scale)?;
        Ok((
            wanted(q, || of_product.matmul(&keys_by_head)?.transpose(1, 2)?.contiguous())?,
            wanted(k, || gather(of_product.t()?.matmul(&queries_by_head)?))?,
            wanted(v, || gather(weights.t()?.matmul(&grad.contiguous()?)?))?,
        ))
    }
}
