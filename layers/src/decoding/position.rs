//! Where in a sequence the next token goes, as a number on the device.

use candle_core::{DType, Device, Result, Tensor};

/// The place of the next token of a sequence of at most `capacity` tokens; a clone is the same place.
///
/// It is written in place, by an eager call as by a replay of a graph in which [`advance`](Self::advance) was recorded. Places
/// from `capacity` on exist, but nothing is there: [`next`](Self::next) gives `u32::MAX` for them, which candle's
/// look-ups answer with zeros and its writes ignore, and [`KvCache::attend`](super::KvCache::attend) answers with NaN.
#[derive(Debug, Clone)]
pub struct Position {
    /// (1,) of `u32`, written in place.
    at: Tensor,
    /// 0, 1, …, capacity − 1.
    places: Tensor,
    /// The capacity, `u32::MAX` and 1: (1,) each.
    end: Tensor,
    nowhere: Tensor,
    one: Tensor,
}

impl Position {
    /// The start of a sequence.
    ///
    /// # Errors
    /// For no capacity or more than 2³¹; when the device fails.
    ///
    /// # Examples
    /// ```
    /// use candle_core::Device;
    /// use esper_layers::Position;
    ///
    /// let position = Position::new(4, &Device::Cpu)?;
    /// position.advance(3)?;
    /// assert_eq!(position.next(2)?.to_vec1::<u32>()?, [3, u32::MAX]); // the fifth token has no place
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn new(capacity: usize, device: &Device) -> Result<Self> {
        let Some(end) = u32::try_from(capacity).ok().filter(|end| (1..=1 << 31).contains(end)) else {
            candle_core::bail!("position: expected a capacity of 1 to 2147483648 tokens, found {capacity}")
        };
        Ok(Self {
            at: Tensor::zeros(1, DType::U32, device)?,
            places: Tensor::arange(0, end, device)?,
            end: Tensor::full(end, 1, device)?,
            nowhere: Tensor::full(u32::MAX, 1, device)?,
            one: Tensor::ones(1, DType::U32, device)?,
        })
    }

    /// What it is on.
    #[must_use]
    pub fn device(&self) -> &Device {
        self.at.device()
    }

    /// The place itself, (1,) of `u32`.
    #[cfg(feature = "cuda")]
    pub(super) fn at(&self) -> &Tensor {
        &self.at
    }

    /// Most tokens of a sequence.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.places.elem_count()
    }

    /// The places of the next `count` tokens, (count,) of `u32`: rows of a table of [`capacity`](Self::capacity) rows.
    ///
    /// # Errors
    /// Where `count` is not 1 to the capacity; when the device fails.
    /// # Sync
    /// none
    pub fn next(&self, count: usize) -> Result<Tensor> {
        let places = self.unbounded(count)?;
        places.broadcast_lt(&self.end)?.where_cond(&places, &self.nowhere.broadcast_as(count)?)
    }

    /// Moves by `count` tokens.
    ///
    /// # Errors
    /// As for [`next`](Self::next).
    /// # Sync
    /// none
    pub fn advance(&self, count: usize) -> Result<()> {
        // One past the last of them. Beyond the end it stays at the end, so that no sum can overflow.
        let next = self.unbounded(count)?.narrow(0, count - 1, 1)?.broadcast_add(&self.one)?;
        self.at.slice_set(&next.minimum(&self.end)?, 0, 0)
    }

    /// Back to the start, or to any place before it is advanced again: what comes after is written anew.
    ///
    /// # Errors
    /// For a place beyond the capacity; when the device fails.
    /// # Sync
    /// none
    pub fn set(&self, place: usize) -> Result<()> {
        if place > self.capacity() {
            candle_core::bail!("position: expected a place up to {}, found {place}", self.capacity())
        }
        let place = u32::try_from(place).map_err(candle_core::Error::wrap)?;
        self.at.slice_set(&Tensor::full(place, 1, self.at.device())?, 0, 0)
    }

    /// For each of `count` next tokens, which places it sees: (count, capacity) of `u8`. One beyond the capacity sees all.
    pub(super) fn seen(&self, count: usize) -> Result<Tensor> {
        let (rows, columns) = (self.next(count)?.unsqueeze(1)?, self.places.unsqueeze(0)?);
        columns.broadcast_le(&rows)
    }

    /// Which of `count` next tokens have a place: (count, 1) of `u8`.
    pub(super) fn is_within(&self, count: usize) -> Result<Tensor> {
        self.unbounded(count)?.broadcast_lt(&self.end)?.unsqueeze(1)
    }

    fn unbounded(&self, count: usize) -> Result<Tensor> {
        if !(1..=self.capacity()).contains(&count) {
            candle_core::bail!("position: expected 1 to {} tokens at once, found {count}", self.capacity())
        }
        self.places.narrow(0, 0, count)?.broadcast_add(&self.at)
    }
}
