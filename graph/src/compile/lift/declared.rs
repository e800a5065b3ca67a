//! Effects that were declared when launches were recorded.

use super::error::LiftError;
use super::resolve::{Resolved, ResolvedKernel, Source};
use super::space::Space;
use crate::compile::block::{Block, BlockId, Region};
use crate::compile::kernel::Pointer;
use crate::compile::node::{NodeKind, Write};
use crate::compile::recorded::Recorded;

/// The declared effects of a recording, and how their nodes reach what they name.
pub(super) struct Groups {
    groups: Vec<Group>,
    /// The smallest group of each node.
    of_node: Vec<Option<usize>>,
}

struct Group {
    spans: Vec<Span>,
    nodes: std::ops::Range<usize>,
    /// Whether a span lies in no block, or in more than one.
    is_broken: bool,
}

/// A range of addresses that was declared.
struct Span {
    address: u64,
    bytes: usize,
    is_write: bool,
    /// Where it lies, once a node was seen at which its memory is there.
    region: Option<Region>,
    /// Nodes with a pointer into it, in ascending order.
    inside: Vec<usize>,
    /// Nodes that may touch it in another way, in ascending order.
    others: Vec<usize>,
}

impl Groups {
    pub(super) fn of_recorded(recorded: &Recorded) -> Result<Self, LiftError> {
        let num_nodes = recorded.nodes.len();
        let mut groups = Vec::with_capacity(recorded.declared.len());
        for (index, declared) in recorded.declared.iter().enumerate() {
            if declared.nodes.end > num_nodes || declared.nodes.start > declared.nodes.end {
                return Err(LiftError::Declared { index, end: declared.nodes.end, num_nodes });
            }
            let span = |is_write| {
                move |&(address, bytes): &(u64, usize)| Span {
                    address,
                    bytes,
                    is_write,
                    region: None,
                    inside: Vec::new(),
                    others: Vec::new(),
                }
            };
            let spans = declared.reads.iter().map(span(false)).chain(declared.writes.iter().map(span(true)));
            let spans = spans.filter(|span| span.bytes > 0).collect();
            groups.push(Group { spans, nodes: declared.nodes.clone(), is_broken: false });
        }
        let mut by_size: Vec<usize> = (0..groups.len()).collect();
        by_size.sort_by_key(|&group| std::cmp::Reverse(groups[group].nodes.len()));
        let mut of_node = vec![None; num_nodes];
        for group in by_size {
            of_node[groups[group].nodes.clone()].fill(Some(group));
        }
        for (index, group) in groups.iter_mut().enumerate() {
            // What the nodes of a group within this one do to its spans is not known.
            group.is_broken = of_node[group.nodes.clone()].iter().any(|of| *of != Some(index));
        }
        Ok(Self { groups, of_node })
    }

    pub(super) fn of(&self, node: usize) -> Option<usize> {
        self.of_node[node]
    }

    /// Notes how a kernel reaches the spans of its group.
    pub(super) fn see_kernel(
        &mut self,
        node: usize,
        kernel: &ResolvedKernel<'_>,
        space: &mut Space<'_>,
    ) -> Result<(), LiftError> {
        let Some(group) = self.located(node, space)? else { return Ok(()) };
        let is_inside = |span: &Span, pointer: &Pointer| {
            span.region.is_some_and(|region| {
                region.block == pointer.block && (region.start..region.end).contains(&pointer.offset_bytes)
            })
        };
        let uncovered: Vec<BlockId> = kernel
            .pointers
            .iter()
            .filter(|pointer| !group.spans.iter().any(|span| is_inside(span, pointer)))
            .map(|pointer| pointer.block)
            .collect();
        for span in &mut group.spans {
            if kernel.pointers.iter().any(|pointer| is_inside(span, pointer)) {
                span.inside.push(node);
            } else if span.region.is_some_and(|region| uncovered.contains(&region.block)) {
                span.others.push(node);
            }
        }
        Ok(())
    }

    /// Notes what else happens to the spans of a group while its nodes run.
    pub(super) fn see_operation(
        &mut self,
        node: usize,
        kind: &NodeKind,
        space: &mut Space<'_>,
    ) -> Result<(), LiftError> {
        let Some(group) = self.located(node, space)? else { return Ok(()) };
        let touched: Vec<Region> = kind.writes().iter().map(|write| write.region).chain(kind.reads()).collect();
        for span in &mut group.spans {
            let is_touched = span.region.is_some_and(|span| touched.iter().any(|region| region.overlaps(&span)));
            if is_touched && span.others.last() != Some(&node) {
                span.others.push(node);
            }
        }
        Ok(())
    }

    /// The group of a node, its spans placed where their memory is there now.
    fn located(&mut self, node: usize, space: &mut Space<'_>) -> Result<Option<&mut Group>, LiftError> {
        let Some(group) = self.of_node[node] else { return Ok(None) };
        let group = &mut self.groups[group];
        for span in &mut group.spans {
            if space.find(node, span.address)?.is_none() {
                continue;
            }
            let region = space.region(node, span.address, span.bytes)?;
            // One address can be two blocks, one after the other: then nothing says which of them is meant.
            group.is_broken |= region.is_none() || span.region.is_some_and(|other| Some(other) != region);
            span.region = span.region.or(region);
        }
        Ok(Some(group))
    }

    /// The blocks that spans lie in.
    pub(super) fn blocks(&self) -> impl Iterator<Item = BlockId> {
        self.groups.iter().flat_map(|group| &group.spans).filter_map(|span| Some(span.region?.block))
    }

    /// Turns kernels of groups whose declaration does not fit the launches into unknown ones.
    pub(super) fn distrust(&self, resolved: &mut [Resolved<'_>]) {
        for of in resolved {
            if let Resolved::Kernel(kernel) = of
                && let Source::Declared(group) = kernel.source
                && self.groups[group].is_unfit()
            {
                kernel.source = Source::Unknown;
            }
        }
    }

    /// The pointers of a kernel of a group with what they reach. A pointer in no span reaches all of its block.
    pub(super) fn pointers(
        &self,
        node: usize,
        kernel: &ResolvedKernel<'_>,
        group: usize,
        blocks: &[Block],
    ) -> Vec<Pointer> {
        let group = &self.groups[group];
        kernel.pointers.iter().map(|pointer| group.reach(node, *pointer, blocks[pointer.block.0].size_bytes)).collect()
    }
}

impl Group {
    /// Whether memory was declared that no node reaches.
    fn is_unfit(&self) -> bool {
        let is_reached = |span: &Span| span.region.is_some() && !(span.inside.is_empty() && span.others.is_empty());
        self.is_broken || !self.spans.iter().all(is_reached)
    }

    fn reach(&self, node: usize, pointer: Pointer, size_bytes: usize) -> Pointer {
        let regions = self.spans.iter().filter_map(|span| Some((span, span.region?)));
        let around = regions.filter(|(_, region)| {
            region.block == pointer.block && (region.start..region.end).contains(&pointer.offset_bytes)
        });
        let (mut read, mut write): (Option<Region>, Option<Write>) = (None, None);
        for (span, region) in around {
            if !span.is_write {
                read = Some(hull(read, region));
                continue;
            }
            // The last node that touches a span leaves all of it written; what nodes before it left may be part of
            // that, so that it counts as read.
            let is_last = span.inside.iter().chain(&span.others).all(|&other| other <= node);
            let is_only = span.inside.iter().chain(&span.others).all(|&other| other == node);
            if !is_only {
                read = Some(hull(read, region));
            }
            write = Some(match write {
                None => Write { region, is_full: is_last },
                Some(other) => Write { region: hull(Some(other.region), region), is_full: other.is_full && is_last },
            });
        }
        if read.is_none() && write.is_none() {
            return Pointer::unknown(pointer.word_index, pointer.block, pointer.offset_bytes, size_bytes);
        }
        Pointer { read, write, ..pointer }
    }
}

/// The smallest region with both; they share the byte that a pointer points to, so that it has no gap.
fn hull(first: Option<Region>, second: Region) -> Region {
    first.map_or(second, |first| Region::new(second.block, first.start.min(second.start), first.end.max(second.end)))
}
