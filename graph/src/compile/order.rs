//! Which nodes come before which.

use super::node::{Node, NodeIndex};
use super::program::Program;

/// A set of node indices, one bit each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NodeSet(Vec<u64>);

impl NodeSet {
    pub(super) fn empty(num_nodes: usize) -> Self {
        Self(vec![0; num_nodes.div_ceil(64)])
    }

    pub(super) fn insert(&mut self, node: NodeIndex) {
        insert(&mut self.0, node);
    }

    pub(super) fn remove(&mut self, node: NodeIndex) {
        self.0[node.0 / 64] &= !(1 << (node.0 % 64));
    }

    pub(super) fn contains(&self, node: NodeIndex) -> bool {
        contains(&self.0, node)
    }

    pub(super) fn union(&mut self, other: &Self) {
        union(&mut self.0, &other.0);
    }
}

fn insert(words: &mut [u64], node: NodeIndex) {
    words[node.0 / 64] |= 1 << (node.0 % 64);
}

fn contains(words: &[u64], node: NodeIndex) -> bool {
    words.get(node.0 / 64).is_some_and(|word| word & (1 << (node.0 % 64)) != 0)
}

fn union(words: &mut [u64], other: &[u64]) {
    for (word, other) in words.iter_mut().zip(other) {
        *word |= other;
    }
}

/// For every node of a list the nodes before it that it comes after: a set per node, each as long as it has to be.
#[derive(Debug, Default)]
pub(super) struct Ancestors {
    words: Vec<u64>,
    /// Where the set of each node starts.
    starts: Vec<usize>,
}

impl Ancestors {
    /// Room for the sets of so many nodes.
    pub(super) fn with_capacity(num_nodes: usize) -> Self {
        let num_blocks = num_nodes.div_ceil(64);
        Self { words: Vec::with_capacity(32 * num_blocks * (num_blocks + 1)), starts: Vec::with_capacity(num_nodes) }
    }

    /// Starts the set of the next node, with nothing in it.
    pub(super) fn push(&mut self) {
        let node = self.starts.len();
        self.starts.push(self.words.len());
        self.words.resize(self.words.len() + node.div_ceil(64), 0);
    }

    /// Puts a node and all that come before it into the set that was started last.
    pub(super) fn insert(&mut self, node: NodeIndex) {
        let last = self.starts.last().copied().unwrap_or(0);
        let (before, set) = self.words.split_at_mut(last);
        let start = self.starts[node.0];
        union(set, &before[start..start + node.0.div_ceil(64)]);
        insert(set, node);
    }

    /// Whether the set that was started last has a node.
    pub(super) fn last_contains(&self, node: NodeIndex) -> bool {
        self.contains(NodeIndex(self.starts.len() - 1), node)
    }

    fn contains(&self, of: NodeIndex, node: NodeIndex) -> bool {
        let start = self.starts[of.0];
        contains(&self.words[start..start + of.0.div_ceil(64)], node)
    }
}

/// The partial order that the dependencies of a program span.
#[derive(Debug)]
pub(super) enum Order {
    /// Every node waits for the one before it.
    Listed,
    Partial(Ancestors),
}

impl Order {
    /// The order of a program whose dependencies all point to earlier nodes.
    pub(super) fn of(program: &Program) -> Self {
        let waits = |(index, node): (usize, &Node)| {
            index.checked_sub(1).is_none_or(|before| node.dependencies.contains(&NodeIndex(before)))
        };
        if program.nodes.iter().enumerate().all(waits) {
            return Self::Listed;
        }
        let mut ancestors = Ancestors::with_capacity(program.nodes.len());
        for node in &program.nodes {
            ancestors.push();
            for &dependency in node.dependencies.iter().rev() {
                if !ancestors.last_contains(dependency) {
                    ancestors.insert(dependency);
                }
            }
        }
        Self::Partial(ancestors)
    }

    /// Whether `first` is over before `second` starts.
    pub(super) fn is_before(&self, first: NodeIndex, second: NodeIndex) -> bool {
        match self {
            Self::Listed => first < second,
            Self::Partial(ancestors) => first < second && ancestors.contains(second, first),
        }
    }
}
