//! What a seed went through: the moves it made, in a ring that holds the latest ones.

use std::collections::VecDeque;

use leyline::seed::SeedStage;
use serde::{Deserialize, Serialize};

/// One move of a seed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HistoryEntry {
    /// Epochs from germination to the move (count).
    pub age_epochs: u64,
    /// Stage before.
    pub from: SeedStage,
    /// Stage after.
    pub to: SeedStage,
    /// Epochs in the stage before (count).
    pub epochs_in_stage: u64,
    /// Why, for people.
    pub reason: String,
}

/// A ring was written with more than it holds.
#[derive(Debug, thiserror::Error)]
#[error("{len} entries: expected at most {capacity}")]
pub(super) struct RingTooLong {
    len: usize,
    capacity: usize,
}

/// The latest `N` values, oldest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "VecDeque<T>", into = "VecDeque<T>")]
#[serde(bound(serialize = "T: Clone + Serialize", deserialize = "T: Deserialize<'de>"))]
pub(super) struct Ring<T, const N: usize>(VecDeque<T>);

impl<T, const N: usize> Ring<T, N> {
    pub(super) const fn new() -> Self {
        Self(VecDeque::new())
    }

    /// Appends, and drops the oldest value when there are too many.
    pub(super) fn push(&mut self, value: T) {
        if self.0.len() == N {
            self.0.pop_front();
        }
        self.0.push_back(value);
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn last(&self) -> Option<&T> {
        self.0.back()
    }

    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = &T> {
        self.0.iter()
    }
}

impl<T, const N: usize> TryFrom<VecDeque<T>> for Ring<T, N> {
    type Error = RingTooLong;
    fn try_from(values: VecDeque<T>) -> Result<Self, RingTooLong> {
        let len = values.len();
        if len > N { Err(RingTooLong { len, capacity: N }) } else { Ok(Self(values)) }
    }
}

impl<T, const N: usize> From<Ring<T, N>> for VecDeque<T> {
    fn from(ring: Ring<T, N>) -> Self {
        ring.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_keeps_the_latest_values_and_reads_no_more_than_it_holds() {
        let mut ring = Ring::<u32, 3>::new();
        for value in 0..5 {
            ring.push(value);
        }
        assert_eq!((ring.iter().copied().collect::<Vec<_>>(), ring.last()), (vec![2, 3, 4], Some(&4)));
        let json = serde_json::to_string(&ring).unwrap();
        assert_eq!(serde_json::from_str::<Ring<u32, 3>>(&json).unwrap(), ring);
        let error = serde_json::from_str::<Ring<u32, 2>>(&json).unwrap_err().to_string();
        assert_eq!(error, "3 entries: expected at most 2");
    }
}
