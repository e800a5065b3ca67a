//! Which nodes come before which.

use super::node::NodeIndex;
use super::program::Program;

/// A set of node indices, one bit each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NodeSet(Vec<u64>);

impl NodeSet {
    pub(super) fn empty(num_nodes: usize) -> Self {
        Self(vec![0; num_nodes.div_ceil(64)])
    }

    pub(super) fn insert(&mut self, node: NodeIndex) {
        self.0[node.0 / 64] |= 1 << (node.0 % 64);
    }

    pub(super) fn remove(&mut self, node: NodeIndex) {
        self.0[node.0 / 64] &= !(1 << (node.0 % 64));
    }

    pub(super) fn contains(&self, node: NodeIndex) -> bool {
        self.0[node.0 / 64] & (1 << (node.0 % 64)) != 0
    }

    pub(super) fn union(&mut self, other: &Self) {
        for (word, other) in self.0.iter_mut().zip(&other.0) {
            *word |= other;
        }
    }

    pub(super) fn intersect(&mut self, other: &Self) {
        for (word, other) in self.0.iter_mut().zip(&other.0) {
            *word &= other;
        }
    }
}

/// The partial order that the dependencies of a program span.
#[derive(Debug)]
pub(super) struct Order {
    ancestors: Vec<NodeSet>,
}

impl Order {
    /// The order of a program whose dependencies all point to earlier nodes.
    pub(super) fn of(program: &Program) -> Self {
        let mut ancestors: Vec<NodeSet> = Vec::with_capacity(program.nodes.len());
        for node in &program.nodes {
            let mut set = NodeSet::empty(program.nodes.len());
            for &dependency in &node.dependencies {
                set.union(&ancestors[dependency.0]);
                set.insert(dependency);
            }
            ancestors.push(set);
        }
        Self { ancestors }
    }

    /// Whether `first` is over before `second` starts.
    pub(super) fn is_before(&self, first: NodeIndex, second: NodeIndex) -> bool {
        self.ancestors[second.0].contains(first)
    }

    /// All nodes that are over before `node` starts.
    pub(super) fn ancestors(&self, node: NodeIndex) -> &NodeSet {
        &self.ancestors[node.0]
    }
}
