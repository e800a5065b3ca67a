//! Pass: the recorded order gives way to the dependencies that the data ask for.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::block::{Block, Region};
use super::fuel::Fuel;
use super::node::{NodeIndex, NodeKind};
use super::order::Ancestors;
use super::program::Program;
use super::work::did;

/// Makes a node depend on exactly those it must come after: a read after a write, a write after a read, a write after
/// a write of the same byte, a use after the allocation, a release after the uses; and of these only the ones that no
/// other implies.
///
/// Without fuel a node keeps what it waited for beside what it needs.
pub(super) fn recover_dependencies(mut program: Program, fuel: &mut Fuel) -> Program {
    let mut history: Vec<History> = program.blocks.iter().map(History::new).collect();
    let mut ancestors = Ancestors::with_capacity(program.nodes.len());
    let mut needs: Vec<NodeIndex> = Vec::new();
    for (index, node) in program.nodes.iter_mut().enumerate() {
        needs.clear();
        add_needs(&mut needs, NodeIndex(index), &node.kind, &mut history);
        if fuel.is_out() {
            needs.extend_from_slice(&node.dependencies);
        }
        reduce(&mut needs, &mut ancestors);
        if needs != node.dependencies {
            fuel.burn();
            node.dependencies.clone_from(&needs);
        }
    }
    program
}

/// What other passes end with once they have changed the nodes: the dependencies of what they made.
pub(super) fn recovered(program: Program) -> Program {
    recover_dependencies(program, &mut Fuel::new(None))
}

/// Nodes that `node` has to come after, some more than once; what it does to memory is added to the history.
fn add_needs(needs: &mut Vec<NodeIndex>, node: NodeIndex, kind: &NodeKind, history: &mut [History]) {
    for block in kind.each_block() {
        needs.extend(history[block.0].allocation);
        if history[block.0].users.last() != Some(&node) {
            history[block.0].users.push(node);
        }
    }
    for region in kind.each_read() {
        history[region.block.0].bytes.read(&region, node, needs);
    }
    for write in kind.each_write() {
        history[write.region.block.0].bytes.write(&write.region, node, needs);
    }
    match kind {
        NodeKind::Alloc(block) => history[block.0].allocation = Some(node),
        NodeKind::Free(block) => {
            needs.extend(history[block.0].allocation);
            needs.extend_from_slice(&history[block.0].users);
        }
        NodeKind::Kernel(_) | NodeKind::Memset { .. } | NodeKind::Copy { .. } | NodeKind::Empty => {}
    }
    needs.retain(|need| *need != node);
}

/// Drops what other needs imply: the latest first, so that whoever implies a node is looked at before it.
fn reduce(needs: &mut Vec<NodeIndex>, ancestors: &mut Ancestors) {
    needs.sort_unstable_by_key(|need| Reverse(*need));
    ancestors.push();
    needs.retain(|&need| {
        let is_new = !ancestors.last_contains(need);
        if is_new {
            ancestors.insert(need);
        }
        is_new
    });
    needs.reverse();
}

/// What the nodes so far did to a block.
struct History {
    allocation: Option<NodeIndex>,
    users: Vec<NodeIndex>,
    bytes: ByteHistory,
}

impl History {
    fn new(block: &Block) -> Self {
        Self { allocation: None, users: Vec::new(), bytes: ByteHistory::new(block) }
    }
}

/// Who wrote and read the bytes of a block last.
pub(super) struct ByteHistory {
    /// By their first byte, without a gap.
    spans: BTreeMap<usize, Span>,
    /// Lists of readers: one, and the place of the next.
    readers: Vec<(NodeIndex, Option<usize>)>,
}

/// Bytes that the same nodes used.
#[derive(Clone, Copy)]
struct Span {
    end: usize,
    writer: Option<NodeIndex>,
    /// Those since the last write; parts of one span share them.
    readers: Option<usize>,
}

impl ByteHistory {
    pub(super) fn new(block: &Block) -> Self {
        let all = Span { end: block.size_bytes, writer: None, readers: None };
        Self { spans: BTreeMap::from([(0, all)]), readers: Vec::new() }
    }

    /// A node reads; whom it has to come after is added to `needs`.
    pub(super) fn read(&mut self, region: &Region, node: NodeIndex, needs: &mut Vec<NodeIndex>) {
        self.split(region);
        for (_, span) in self.spans.range_mut(region.start..region.end) {
            did(1);
            needs.extend(span.writer);
            self.readers.push((node, span.readers));
            span.readers = Some(self.readers.len() - 1);
        }
    }

    /// A node writes; whom it has to come after, itself perhaps, is added to `needs`.
    pub(super) fn write(&mut self, region: &Region, node: NodeIndex, needs: &mut Vec<NodeIndex>) {
        self.split(region);
        while let Some((&start, &span)) = self.spans.range(region.start..region.end).next() {
            did(1);
            needs.extend(span.writer);
            let mut next = span.readers;
            while let Some((reader, after)) = next.map(|place| self.readers[place]) {
                did(1);
                needs.push(reader);
                next = after;
            }
            self.spans.remove(&start);
        }
        self.spans.insert(region.start, Span { end: region.end, writer: Some(node), readers: None });
    }

    /// Makes spans start and end where the region does.
    fn split(&mut self, region: &Region) {
        for position in [region.start, region.end] {
            if let Some((_, span)) = self.spans.range_mut(..position).next_back()
                && span.end > position
            {
                let rest = *span;
                span.end = position;
                self.spans.insert(position, rest);
            }
        }
    }
}
