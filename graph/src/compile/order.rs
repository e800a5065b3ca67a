//! Which nodes come before which.

use super::node::{Node, NodeIndex};
use super::program::Program;
use super::work::did;

/// Children of a node of a tree.
const FAN_OUT: usize = 8;
/// Most nodes of the trees of one order: 128 MiB.
const MAX_TREE_NODES: usize = 1 << 22;
/// The tree in which nothing stands.
const NOTHING: u32 = 0;

/// For every node of a list the nodes before it that it comes after.
///
/// The list is divided into chains, each node after one that it comes after: of a chain it is enough to know how far one comes.
/// What a node knows is a tree over the numbers of the chains, of which it shares all but what is new with those that it comes
/// after. So two neighbors cost what they differ in, and a question is a walk down one tree.
///
/// Where that takes more than [`MAX_TREE_NODES`], which asks for a hundred thousand nodes without any common past, sets lose members: [`contains`](Self::contains)
/// may then say no where yes is right, never the other way around, and [`is_exact`](Self::is_exact) tells.
#[derive(Debug)]
pub(super) struct Ancestors {
    /// Trees, which share their parts: children, or at the leaves how far one comes on a chain, 0 for not at all.
    trees: Vec<[u32; FAN_OUT]>,
    /// Levels of each tree.
    height: u32,
    nodes: Vec<Place>,
    /// Last node of each chain.
    ends: Vec<NodeIndex>,
    is_exact: bool,
}

/// Where a node stands, and what it comes after.
#[derive(Debug, Clone, Copy)]
struct Place {
    /// None as long as nobody asked for it.
    chain: Option<u32>,
    /// From 1 on.
    position: u32,
    tree: u32,
}

impl Ancestors {
    /// Room for the sets of so many nodes.
    pub(super) fn with_capacity(num_nodes: usize) -> Self {
        let mut height = 1;
        while FAN_OUT.pow(height) < num_nodes {
            height += 1;
        }
        Self {
            trees: vec![[NOTHING; FAN_OUT]],
            height,
            nodes: Vec::with_capacity(num_nodes),
            ends: Vec::new(),
            is_exact: true,
        }
    }

    /// Starts the set of the next node, with nothing in it.
    pub(super) fn push(&mut self) {
        self.close();
        self.nodes.push(Place { chain: None, position: 1, tree: NOTHING });
    }

    /// Puts a node and all that come before it into the set that was started last.
    pub(super) fn insert(&mut self, node: NodeIndex) {
        let (of, last) = (self.nodes[node.0], self.nodes.len() - 1);
        let mut place = self.nodes[last];
        let Some(chain) = of.chain else { return };
        if place.chain.is_none() && self.ends[chain as usize] == node {
            place.chain = Some(chain);
            place.position = of.position + 1;
            self.ends[chain as usize] = NodeIndex(last);
        }
        place.tree = self.union(place.tree, of.tree, self.height);
        self.nodes[last] = place;
    }

    /// Whether the set that was started last has a node.
    pub(super) fn last_contains(&self, node: NodeIndex) -> bool {
        self.contains(NodeIndex(self.nodes.len() - 1), node)
    }

    /// Whether sets have all their members.
    pub(super) fn is_exact(&self) -> bool {
        self.is_exact
    }

    fn contains(&self, of: NodeIndex, node: NodeIndex) -> bool {
        let Place { chain: Some(chain), position, .. } = self.nodes[node.0] else { return false };
        did(1);
        let mut tree = self.nodes[of.0].tree;
        for level in (0..self.height).rev() {
            tree = self.trees[tree as usize][child(chain, level)];
        }
        position <= tree
    }

    /// The set that was started last is complete: its node stands at the end of a chain, and knows itself.
    fn close(&mut self) {
        let Some(last) = self.nodes.len().checked_sub(1) else { return };
        let mut place = self.nodes[last];
        let chain = place.chain.unwrap_or_else(|| {
            self.ends.push(NodeIndex(last));
            as_index(self.ends.len() - 1)
        });
        place.chain = Some(chain);
        place.tree = self.with(place.tree, chain, place.position, self.height);
        self.nodes[last] = place;
    }

    /// The tree in which one comes to `position` on `chain`.
    fn with(&mut self, tree: u32, chain: u32, position: u32, height: u32) -> u32 {
        if height == 0 {
            return tree.max(position);
        }
        let mut made = self.trees[tree as usize];
        let slot = &mut made[child(chain, height - 1)];
        let inner = *slot;
        *slot = self.with(inner, chain, position, height - 1);
        self.make(made)
    }

    /// The tree in which one comes as far as in either.
    fn union(&mut self, one: u32, other: u32, height: u32) -> u32 {
        if height == 0 {
            return one.max(other);
        }
        if one == other || other == NOTHING {
            return one;
        }
        if one == NOTHING {
            return other;
        }
        if self.trees.len() >= MAX_TREE_NODES {
            self.is_exact = false;
            return one;
        }
        did(1);
        let (left, right) = (self.trees[one as usize], self.trees[other as usize]);
        let mut made = left;
        for (slot, &right) in made.iter_mut().zip(&right) {
            *slot = self.union(*slot, right, height - 1);
        }
        // What holds all of the other is it itself: nothing is kept twice.
        if made == left {
            return one;
        }
        if made == right {
            return other;
        }
        self.make(made)
    }

    fn make(&mut self, tree: [u32; FAN_OUT]) -> u32 {
        did(1);
        self.trees.push(tree);
        as_index(self.trees.len() - 1)
    }
}

/// Which child of a tree so high above its leaves leads to a chain.
fn child(chain: u32, level: u32) -> usize {
    (chain as usize / FAN_OUT.pow(level)) % FAN_OUT
}

fn as_index(index: usize) -> u32 {
    u32::try_from(index).expect("programs are far shorter than 2^32")
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

    /// Whether `first` is over before `second` starts. Of an order that is not exact, no may mean that it is not known.
    pub(super) fn is_before(&self, first: NodeIndex, second: NodeIndex) -> bool {
        match self {
            Self::Listed => first < second,
            Self::Partial(ancestors) => first < second && ancestors.contains(second, first),
        }
    }

    /// Whether no is always no.
    pub(super) fn is_exact(&self) -> bool {
        match self {
            Self::Listed => true,
            Self::Partial(ancestors) => ancestors.is_exact(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_node_knows_whom_it_comes_after(
            pairs in prop::collection::vec((0..40_usize, 0..40_usize), 0..120), num_nodes in 1..40_usize,
        ) {
            let mut waits = vec![BTreeSet::new(); num_nodes];
            for (one, other) in pairs {
                if one.max(other) < num_nodes && one != other {
                    waits[one.max(other)].insert(one.min(other));
                }
            }
            let mut ancestors = Ancestors::with_capacity(num_nodes);
            let mut sets: Vec<BTreeSet<usize>> = Vec::new();
            for waits in &waits {
                ancestors.push();
                let mut set = BTreeSet::new();
                for &before in waits.iter().rev() {
                    prop_assert_eq!(ancestors.last_contains(NodeIndex(before)), set.contains(&before));
                    ancestors.insert(NodeIndex(before));
                    set.insert(before);
                    set.extend(&sets[before]);
                }
                sets.push(set);
            }
            prop_assert!(ancestors.is_exact());
            for (node, set) in sets.iter().enumerate() {
                for before in 0..node {
                    prop_assert_eq!(ancestors.contains(NodeIndex(node), NodeIndex(before)), set.contains(&before));
                }
            }
        }
    }
}
