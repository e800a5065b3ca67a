//! Sets of bytes of blocks.

use std::collections::BTreeMap;

use super::block::{BlockId, Region};

/// A set of bytes: per block, ranges in ascending order that neither overlap nor touch.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct ByteSet(BTreeMap<BlockId, Vec<(usize, usize)>>);

impl ByteSet {
    pub(super) fn insert(&mut self, region: &Region) {
        if region.is_empty() {
            return;
        }
        let ranges = self.0.entry(region.block).or_default();
        let (mut start, mut end) = (region.start, region.end);
        ranges.retain(|&(from, to)| {
            let is_apart = to < start || end < from;
            if !is_apart {
                start = start.min(from);
                end = end.max(to);
            }
            is_apart
        });
        let position = ranges.partition_point(|&(from, _)| from < start);
        ranges.insert(position, (start, end));
    }

    pub(super) fn remove(&mut self, region: &Region) {
        let Some(ranges) = self.0.get_mut(&region.block) else { return };
        if region.is_empty() {
            return;
        }
        *ranges = ranges
            .iter()
            .flat_map(|&(from, to)| [(from, to.min(region.start)), (from.max(region.end), to)])
            .filter(|(from, to)| from < to)
            .collect();
    }

    pub(super) fn overlaps(&self, region: &Region) -> bool {
        self.of(region.block).iter().any(|&(from, to)| from.max(region.start) < to.min(region.end))
    }

    /// Whether every byte of the region is in the set.
    pub(super) fn covers(&self, region: &Region) -> bool {
        region.is_empty() || self.of(region.block).iter().any(|&(from, to)| from <= region.start && region.end <= to)
    }

    fn of(&self, block: BlockId) -> &[(usize, usize)] {
        self.0.get(&block).map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_byte_set_agrees_with_a_set_of_single_bytes(
            steps in prop::collection::vec((any::<bool>(), 0..2_usize, 0..24_usize, 0..8_usize), 0..40),
            asked in (0..2_usize, 0..24_usize, 0..8_usize),
        ) {
            let mut set = ByteSet::default();
            let mut bytes = BTreeSet::new();
            for (insert, block, start, len) in steps {
                let region = Region::new(BlockId(block), start, start + len);
                if insert {
                    set.insert(&region);
                    bytes.extend((start..start + len).map(|byte| (block, byte)));
                } else {
                    set.remove(&region);
                    bytes.retain(|&(of, byte)| of != block || byte < start || start + len <= byte);
                }
            }
            let (block, start, len) = asked;
            let region = Region::new(BlockId(block), start, start + len);
            let mut held = (start..start + len).map(|byte| bytes.contains(&(block, byte)));
            prop_assert_eq!(set.overlaps(&region), held.clone().any(|is_held| is_held));
            prop_assert_eq!(set.covers(&region), held.all(|is_held| is_held));
        }
    }
}
