//! Keys and values of a sequence, at one place in memory.

use candle_core::{D, DType, Device, Result, Tensor};

use super::position::Position;
use crate::precision::{compute_type, expect_alike};

/// Keys and values of all tokens of a sequence so far, for one layer of attention. A clone is the same memory.
///
/// # Examples
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use esper_layers::{KvCache, Position};
///
/// // One head of one coordinate; a query of 0 weighs all tokens so far alike.
/// let position = Position::new(8, &Device::Cpu)?;
/// let cache = KvCache::new((1, 1, 1), &position, DType::F32)?;
/// let token = |value: f32| Tensor::new(&[[[[value]]]], &Device::Cpu);
/// let mut found = Vec::new();
/// for value in [1.0, 3.0, 8.0] {
///     let seen = cache.attend(&token(0.0)?, &token(5.0)?, &token(value)?, &position)?;
///     found.push(seen.flatten_all()?.to_vec1::<f32>()?[0]);
///     position.advance(1)?;
/// }
/// assert_eq!(found, [1.0, 2.0, 4.0]);
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct KvCache {
    /// (B, H, T, d), written in place.
    keys: Tensor,
    values: Tensor,
    /// What blocks of the kernel for one query count with; 0 between calls.
    #[cfg(feature = "cuda")]
    counters: Tensor,
}

impl KvCache {
    /// Room for as many tokens as the position has places: 2·B·H·T·d elements.
    ///
    /// # Shapes
    /// (B, H, d): batch, heads of keys and values, coordinates of a head
    /// # Errors
    /// For a type that is no float type; when the device has no room.
    pub fn new((batch, heads, width): (usize, usize, usize), position: &Position, dtype: DType) -> Result<Self> {
        compute_type("cache of keys and values", dtype)?;
        let zeros = || Tensor::zeros((batch, heads, position.capacity(), width), dtype, position.device());
        Ok(Self {
            keys: zeros()?,
            values: zeros()?,
            #[cfg(feature = "cuda")]
            counters: Tensor::zeros(batch * heads * super::cuda::MAX_GROUPS, DType::U32, position.device())?,
        })
    }

    /// Keeps the keys and values of n new tokens at the position, and returns `softmax(q Kᵀ / √d) V` for their queries, each over
    /// all tokens up to its own. A token beyond the capacity gives NaN and is not kept. The position stays: further
    /// layers use it, then [`Position::advance`] moves it.
    ///
    /// No gradient flows to what was kept. Half precision is computed in `f32`. On a GPU one query per head of 32, 64, 128 or 256
    /// coordinates, of which no gradient is asked for, is one kernel, which reads what is filled alone and as it is; it
    /// sums in another order than the operations of other calls.
    ///
    /// # Shapes
    /// `queries` (B, G·H, n, d): a head of keys serves G heads of queries, one after the other; `keys`, `values` (B, H, n, d); the
    /// result is as `queries`
    /// # Errors
    /// For other shapes, types and devices; for more tokens at once than the capacity; when the device fails.
    /// # Sync
    /// none
    /// # Source
    /// Vaswani et al. 2017, arXiv 1706.03762, equation 1; shared heads of keys: Ainslie et al. 2023, arXiv 2305.13245
    pub fn attend(&self, queries: &Tensor, keys: &Tensor, values: &Tensor, position: &Position) -> Result<Tensor> {
        let (batch, heads, capacity, width) = self.keys.dims4()?;
        let (groups, count) = match queries.dims() {
            &[b, all, n, d] if [b, d] == [batch, width] && all > 0 && all.checked_rem(heads) == Some(0) => {
                (all / heads, n)
            }
            _ => (0, 0),
        };
        let expected = [batch, heads, count, width];
        if count == 0 || keys.dims() != expected || values.dims() != expected || position.capacity() != capacity {
            candle_core::bail!(
                "attention with a cache of {:?}: expected queries (B, G·H, n, d), keys and values (B, H, n, d) and a position of \
                 its capacity, found {:?}, {:?}, {:?} and {}",
                self.keys.dims(),
                queries.dims(),
                keys.dims(),
                values.dims(),
                position.capacity()
            )
        }
        expect_alike("attention with a cache", &self.keys, &[queries, keys, values])?;
        #[expect(clippy::cast_precision_loss, reason = "widths are far below 2^52")]
        let scale = 1.0 / (width as f64).sqrt();
        #[cfg(feature = "cuda")]
        {
            let kept = super::cuda::Kept { keys: &self.keys, values: &self.values, counters: &self.counters };
            if super::cuda::takes(kept, queries)
                && let Some(found) = super::cuda::attend(kept, [queries, keys, values], position, scale)?
            {
                return Ok(found);
            }
        }
        let places = position.next(count)?.reshape((1, 1, count, 1))?.broadcast_as(&expected[..])?.contiguous()?;
        self.keys.scatter_set(&places, &keys.contiguous()?, 2)?;
        self.values.scatter_set(&places, &values.contiguous()?, 2)?;

        let dtype = compute_type("attention with a cache", queries.dtype())?;
        let (all_keys, all_values) = (self.keys.detach().to_dtype(dtype)?, self.values.detach().to_dtype(dtype)?);
        // Rows of one product per head of keys: the queries of its group.
        let rows = queries.to_dtype(dtype)?.contiguous()?.reshape((batch, heads, groups * count, width))?;
        let scores = (rows.matmul(&all_keys.transpose(2, 3)?)? * scale)?;
        let scores = scores.reshape((batch, heads, groups, count, capacity))?;
        let hidden = constant(f32::NEG_INFINITY, &scores)?;
        let scores = position.seen(count)?.broadcast_as(scores.shape())?.where_cond(&scores, &hidden)?;
        let weights = scores.broadcast_sub(&scores.max_keepdim(D::Minus1)?)?.exp()?;
        let weights = weights.broadcast_div(&weights.sum_keepdim(D::Minus1)?)?;
        let found = weights.reshape((batch, heads, groups * count, capacity))?.matmul(&all_values)?;
        let found = found.reshape((batch, heads * groups, count, width))?;
        let is_within = position.is_within(count)?.broadcast_as(found.shape())?;
        is_within.where_cond(&found, &constant(f32::NAN, &found)?)?.to_dtype(queries.dtype())
    }

    /// Forgets everything. Before another sequence [`Position::set`] is enough, unless numbers of this one were not finite: those
    /// that no token sees weigh 0, and 0 times infinity is no number.
    ///
    /// # Errors
    /// When the device fails.
    /// # Sync
    /// none
    pub fn clear(&self) -> Result<()> {
        #[cfg(feature = "cuda")]
        self.counters.zero_set()?;
        self.keys.zero_set()?;
        self.values.zero_set()
    }

    /// What it is on.
    #[must_use]
    pub fn device(&self) -> &Device {
        self.keys.device()
    }
}

/// One number in the shape of another tensor.
fn constant(value: f32, like: &Tensor) -> Result<Tensor> {
    Tensor::full(value, (), like.device())?.to_dtype(like.dtype())?.broadcast_as(like.shape())
}
