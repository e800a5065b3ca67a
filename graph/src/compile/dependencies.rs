//! Pass: the recorded order gives way to the dependencies that the data ask for.

use std::cmp::Reverse;

use super::block::Block;
use super::fuel::Fuel;
use super::node::{NodeIndex, NodeKind};
use super::order::Ancestors;
use super::program::Program;

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
        for span in history[region.block.0].spans(region.start, region.end) {
            needs.extend(span.writer);
            span.readers.push(node);
        }
    }
    for write in kind.each_write() {
        for span in history[write.region.block.0].spans(write.region.start, write.region.end) {
            needs.extend(span.writer);
            needs.append(&mut span.readers);
            span.writer = Some(node);
        }
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
