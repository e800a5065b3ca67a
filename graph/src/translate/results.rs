//! What a captured graph and a rewritten one must agree in, and how a difference is told.

use std::ops::Range;

use crate::compile::{BlockId, Lifetime, Program};
use crate::launch::Span;

/// The bytes of other owners that one of the programs may write, block by block, as ranges that neither overlap nor
/// touch within a block: the driver copies no range that reaches into a second allocation. Ranges inside of `scratch`
/// are left out: they are nobody's result.
pub(crate) fn written_spans(programs: &[&Program], addresses: &[Option<u64>], scratch: &Range<u64>) -> Vec<Span> {
    let mut ranges: Vec<(BlockId, Range<u64>)> = Vec::new();
    for program in programs {
        for write in program.nodes.iter().flat_map(|node| node.kind.writes()) {
            let block = write.region.block;
            if program.blocks[block.0].lifetime != Lifetime::External {
                continue;
            }
            let Some(base) = addresses.get(block.0).copied().flatten() else { continue };
            let range = base + write.region.start as u64..base + write.region.end as u64;
            if scratch.start <= range.start && range.end <= scratch.end {
                continue;
            }
            ranges.push((block, range));
        }
    }
    ranges.sort_unstable_by_key(|(block, range)| (*block, range.start, range.end));
    let mut merged: Vec<(BlockId, Range<u64>)> = Vec::new();
    for (block, range) in ranges.into_iter().filter(|(_, range)| !range.is_empty()) {
        match merged.last_mut().filter(|(of, last)| *of == block && range.start <= last.end) {
            Some((_, last)) => last.end = last.end.max(range.end),
            None => merged.push((block, range)),
        }
    }
    let bytes = |range: &Range<u64>| usize::try_from(range.end - range.start).expect("a block has a size");
    merged.iter().map(|(_, range)| Span { address: range.start, bytes: bytes(range) }).collect()
}

/// How two versions of one span differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Difference {
    /// 4-byte words that differ.
    pub(crate) num_words: u64,
    /// The first of them, counted from the start of the span.
    pub(crate) first_word: u64,
}

/// The differences in words; none where there are none.
pub(crate) fn describe(spans: &[Span], differences: &[Difference]) -> Option<String> {
    let differing: Vec<(&Span, &Difference)> =
        spans.iter().zip(differences).filter(|(_, difference)| difference.num_words > 0).collect();
    let (span, difference) = differing.first()?;
    let more = match differing.len() - 1 {
        0 => String::new(),
        others => format!("; so do {others} other ranges"),
    };
    Some(format!(
        "the {} bytes at {:#x} differ in {} of {} words, the first at byte {}{more}",
        span.bytes,
        span.address,
        difference.num_words,
        span.bytes.div_ceil(4),
        difference.first_word * 4,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::{Block, Node, NodeKind, Pattern, Region};

    fn program(lifetimes: &[Lifetime], fills: &[(usize, usize, usize)]) -> Program {
        let fill = |&(block, start, end): &(usize, usize, usize)| NodeKind::Memset {
            region: Region::new(BlockId(block), start, end),
            pattern: Pattern::ZERO,
        };
        Program {
            blocks: lifetimes.iter().map(|&lifetime| Block { size_bytes: 1024, lifetime }).collect(),
            nodes: fills.iter().map(|fill_of| Node::new(fill(fill_of), [])).collect(),
        }
    }

    fn spans(of: &[(u64, usize)]) -> Vec<Span> {
        of.iter().map(|&(address, bytes)| Span { address, bytes }).collect()
    }

    #[test]
    fn written_ranges_of_others_are_joined() {
        let lifetimes = [Lifetime::External, Lifetime::Graph, Lifetime::External];
        let addresses = [Some(1000), None, Some(5000)];
        let recorded = program(&lifetimes, &[(0, 0, 8), (1, 0, 8), (2, 100, 104), (0, 8, 16), (0, 40, 48)]);
        let rewritten =
            program(&[Lifetime::External, Lifetime::Graph, Lifetime::External], &[(2, 98, 102), (0, 44, 60)]);
        let found = written_spans(&[&recorded, &rewritten], &addresses, &(0..0));
        assert_eq!(found, spans(&[(1000, 16), (1040, 20), (5098, 6)]));
    }

    #[test]
    fn neighboring_blocks_are_not_joined() {
        let program = program(&[Lifetime::External, Lifetime::External], &[(0, 1000, 1024), (1, 0, 16)]);
        let found = written_spans(&[&program], &[Some(1024), Some(2048)], &(0..0));
        assert_eq!(found, spans(&[(2024, 24), (2048, 16)]));
    }

    #[test]
    fn a_range_inside_of_scratch_memory_is_no_result() {
        let lifetimes = [Lifetime::External, Lifetime::External];
        let recorded = program(&lifetimes, &[(0, 0, 8), (1, 0, 1024)]);
        let found = |scratch| written_spans(&[&recorded], &[Some(1000), Some(5000)], &scratch);
        assert_eq!(found(5000..6024), spans(&[(1000, 8)]));
        // One that only overlaps it is.
        assert_eq!(found(5001..9000), spans(&[(1000, 8), (5000, 1024)]));
    }

    #[test]
    fn a_difference_is_told_with_its_place() {
        let spans = spans(&[(0x1000, 8), (0x2000, 10), (0x3000, 4)]);
        let same = Difference { num_words: 0, first_word: u64::MAX };
        let other = |num_words, first_word| Difference { num_words, first_word };
        assert_eq!(describe(&spans, &[same; 3]), None);
        let one = describe(&spans, &[same, other(2, 1), same]);
        assert_eq!(one.as_deref(), Some("the 10 bytes at 0x2000 differ in 2 of 3 words, the first at byte 4"));
        let two = describe(&spans, &[other(1, 0), other(2, 1), same]).expect("they differ");
        assert!(two.starts_with("the 8 bytes at 0x1000 differ in 1 of 2 words, the first at byte 0"), "{two}");
        assert!(two.ends_with("; so do 1 other ranges"), "{two}");
    }
}
