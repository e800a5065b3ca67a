//! Pass: the recorded order gives way to the dependencies that the data ask for.

use std::collections::BTreeSet;

use super::block::Block;
use super::node::{NodeIndex, NodeKind};
use super::order::NodeSet;
use super::pass::{Pass, PassReport};
use super::program::Program;

/// Makes a node depend on exactly those it must come after: a read after a write, a write after a read, a write after
/// a write of the same byte, a use after the allocation, a release after the uses; and of these only the ones that no
/// other implies.
#[must_use]
pub fn recover_dependencies(program: &Program) -> (Program, PassReport) {
    let mut history: Vec<History> = program.blocks.iter().map(History::new).collect();
    let mut ancestors: Vec<NodeSet> = Vec::with_capacity(program.nodes.len());
    let mut recovered = program.clone();
    let mut num_changed = 0;
    for (index, node) in recovered.nodes.iter_mut().enumerate() {
        let (dependencies, set) = reduce(needs(NodeIndex(index), &node.kind, &mut history), &ancestors, program);
        num_changed += usize::from(dependencies != node.dependencies);
        node.dependencies = dependencies;
        ancestors.push(set);
    }
    let report = PassReport::new(Pass::Dependencies, program, &recovered, num_changed);
    (recovered, report)
}

/// Nodes that `node` has to come after; what it does to memory is added to the history.
fn needs(node: NodeIndex, kind: &NodeKind, history: &mut [History]) -> BTreeSet<NodeIndex> {
    let mut needs = BTreeSet::new();
    for block in kind.blocks() {
        needs.extend(history[block.0].allocation);
        history[block.0].users.push(node);
    }
    for region in kind.reads() {
        for span in history[region.block.0].spans(region.start, region.end) {
            needs.extend(span.writer);
            span.readers.push(node);
        }
    }
    for write in kind.writes() {
        for span in history[write.region.block.0].spans(write.region.start, write.region.end) {
            needs.extend(span.writer);
            needs.extend(span.readers.drain(..));
            span.writer = Some(node);
        }
    }
    match kind {
        NodeKind::Alloc(block) => history[block.0].allocation = Some(node),
        NodeKind::Free(block) => {
            needs.extend(history[block.0].allocation);
            needs.extend(history[block.0].users.iter());
        }
        NodeKind::Kernel(_) | NodeKind::Memset { .. } | NodeKind::Copy { .. } | NodeKind::Empty => {}
    }
    needs.remove(&node);
    needs
}

/// Drops what other needs imply: the latest first, so that whoever implies a node is looked at before it.
fn reduce(needs: BTreeSet<NodeIndex>, ancestors: &[NodeSet], program: &Program) -> (Vec<NodeIndex>, NodeSet) {
    let mut set = NodeSet::empty(program.nodes.len());
    let mut dependencies = Vec::new();
    for need in needs.into_iter().rev() {
        if !set.contains(need) {
            set.union(&ancestors[need.0]);
            set.insert(need);
            dependencies.push(need);
        }
    }
    dependencies.reverse();
    (dependencies, set)
}

/// What the nodes so far did to a block.
struct History {
    allocation: Option<NodeIndex>,
    users: Vec<NodeIndex>,
    /// In ascending order, without a gap.
    spans: Vec<Span>,
}

/// Bytes that the same nodes used.
#[derive(Clone)]
struct Span {
    start: usize,
    end: usize,
    writer: Option<NodeIndex>,
    /// Those since the last write.
    readers: Vec<NodeIndex>,
}

impl History {
    fn new(block: &Block) -> Self {
        let all = Span { start: 0, end: block.size_bytes, writer: None, readers: Vec::new() };
        Self { allocation: None, users: Vec::new(), spans: vec![all] }
    }

    /// The spans that make up `start..end`.
    fn spans(&mut self, start: usize, end: usize) -> &mut [Span] {
        let first = self.split(start);
        let last = self.split(end);
        &mut self.spans[first..last]
    }

    /// Makes a span start at `position`, and returns its index.
    fn split(&mut self, position: usize) -> usize {
        let index = self.spans.partition_point(|span| span.end <= position);
        match self.spans.get_mut(index) {
            Some(span) if span.start < position => {
                let mut rest = span.clone();
                span.end = position;
                rest.start = position;
                self.spans.insert(index + 1, rest);
                index + 1
            }
            _ => index,
        }
    }
}
