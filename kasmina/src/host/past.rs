//! What a network keeps of the tokens that it has seen.

use candle_core::{Device, Result, Tensor};
use esper_layers::{KvCache, Position};

/// Keys and values of the tokens so far, for each attention that a pass comes to, in its order.
#[derive(Debug)]
pub struct Past {
    position: Position,
    caches: Vec<KvCache>,
    /// Which attention of the pass is next.
    next: usize,
}

impl Past {
    /// Room for `capacity` tokens.
    pub(crate) fn new(capacity: usize, device: &Device) -> Result<Self> {
        Ok(Self { position: Position::new(capacity, device)?, caches: Vec::new(), next: 0 })
    }

    /// Attention of n tokens to themselves and to all before them, in place of attention over the whole sequence.
    ///
    /// # Shapes
    /// `queries`, `keys`, `values` and the result (1, H, n, d), of H heads of d coordinates
    /// # Errors
    /// For other shapes than those of the pass before; when the device fails.
    /// # Sync
    /// none
    pub fn attend(&mut self, queries: &Tensor, keys: &Tensor, values: &Tensor) -> Result<Tensor> {
        if self.next == self.caches.len() {
            let (_, heads, _, width) = keys.dims4()?;
            self.caches.push(KvCache::new((1, heads, width), &self.position, keys.dtype())?);
        }
        self.next += 1;
        self.caches[self.next - 1].attend(queries, keys, values, &self.position)
    }

    /// Places of the next `count` tokens, (count,) of `u32`.
    pub(crate) fn places(&self, count: usize) -> Result<Tensor> {
        self.position.next(count)
    }

    /// Tokens that there is room for.
    pub(crate) fn capacity(&self) -> usize {
        self.position.capacity()
    }

    /// Begins a pass, whatever became of the one before.
    pub(crate) fn begin(&mut self) {
        self.next = 0;
    }

    /// Ends a pass over `count` tokens.
    pub(crate) fn advance(&mut self, count: usize) -> Result<()> {
        self.position.advance(count)
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) -> Result<()> {
        self.position.set(0)?;
        self.caches.iter().try_for_each(KvCache::clear)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::DType;

    use super::*;

    #[test]
    fn a_pass_that_broke_off_leaves_the_next_one_its_keys() {
        let mut past = Past::new(4, &Device::Cpu).unwrap();
        let token = Tensor::ones((1, 1, 1, 2), DType::F32, &Device::Cpu).unwrap();
        for _ in 0..2 {
            past.begin();
            past.attend(&token, &token, &token).unwrap();
        }
        assert_eq!(past.caches.len(), 1);
    }
}
