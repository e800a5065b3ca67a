//! Sets of bytes of blocks.

use super::block::{BlockId, Region};

/// A set of bytes: per block, by its number, ranges in ascending order that neither overlap nor touch.
#[derive(Debug, Clone, Default)]
pub(super) struct ByteSet(Vec<Vec<(usize, usize)>>);

impl ByteSet {
    pub(super) fn insert(&mut self, region: &Region) {
        if region.is_empty() {
            return;
        }
        if self.0.len() <= region.block.0 {
            self.0.resize_with(region.block.0 + 1, Vec::new);
        }
        let ranges = &mut self.0[region.block.0];
        // Those that overlap or touch the region become one with it.
        let first = ranges.partition_point(|&(_, to)| to < region.start);
        let last = first + ranges[first..].partition_point(|&(from, _)| from <= region.end);
        match ranges.get_mut(first..last) {
            Some([only]) => *only = (only.0.min(region.start), only.1.max(region.end)),
            Some([(start, _), .., (_, end)]) => {
                let whole = ((*start).min(region.start), (*end).max(region.end));
                ranges.splice(first..last, [whole]);
            }
            _ => ranges.insert(first, (region.start, region.end)),
        }
    }

    pub(super) fn remove(&mut self, region: &Region) {
        let Some(ranges) = self.0.get_mut(region.block.0) else { return };
        if region.is_empty() {
            return;
        }
        let first = ranges.partition_point(|&(_, to)| to <= region.start);
        let last = first + ranges[first..].partition_point(|&(from, _)| from < region.end);
        if let Some((&(from, _), &(_, to))) = ranges[first..last].first().zip(ranges[first..last].last()) {
            let rests = [(from, region.start), (region.end, to)];
            ranges.splice(first..last, rests.into_iter().filter(|(from, to)| from < to));
        }
    }

    pub(super) fn overlaps(&self, region: &Region) -> bool {
        let ranges = self.of(region.block);
        let first = ranges.partition_point(|&(_, to)| to <= region.start);
        ranges.get(first).is_some_and(|&(from, to)| from.max(region.start) < to.min(region.end))
    }

    /// Whether every byte of the region is in the set.
    pub(super) fn covers(&self, region: &Region) -> bool {
        let ranges = self.of(region.block);
        let first = ranges.partition_point(|&(_, to)| to <= region.start);
        region.is_empty() || ranges.get(first).is_some_and(|&(from, to)| from <= region.start && region.end <= to)
    }

    fn of(&self, block: BlockId) -> &[(usize, usize)] {
        self.0.get(block.0).map_or(&[], Vec::as_slice)
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
