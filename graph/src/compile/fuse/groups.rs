//! Nodes that become one: which may, and in which order the groups run.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use super::line::Line;
use super::merge::{aligned, can_merge, merge, share_data};
use crate::compile::block::{Block, BlockId};
use crate::compile::codegen::can_generate;
use crate::compile::dependencies::recovered;
use crate::compile::fuel::Fuel;
use crate::compile::fused::Body;
use crate::compile::node::{Node, NodeIndex, NodeKind};
use crate::compile::program::Program;
use crate::compile::work::did;

/// Kernels that read a tensor which are looked at when another one does, the latest.
const MAX_SIBLINGS: usize = 4;
/// By how many nodes on the longest chain siblings may be apart: far ones would wait for each other.
const MAX_DEPTH_DIFFERENCE: usize = 4;

/// Most dependencies that are looked at to find out whether anything has to run between two groups. Two with more than that
/// in between stay apart.
const MAX_STEPS_BETWEEN: usize = 1 << 10;

/// A partition of the operations; the groups form an order.
pub(super) struct Groups {
    kinds: Vec<NodeKind>,
    /// Of each operation.
    dependencies: Vec<Vec<NodeIndex>>,
    /// The group that an operation is in, by the number of its first member.
    group_of: Vec<usize>,
    groups: Vec<Option<Group>>,
    /// The groups, each after all that have to be over before it.
    line: Line,
}

struct Group {
    members: Vec<usize>,
    /// What it computes, if that is known element by element and there is code for it.
    body: Option<Body>,
    depth: usize,
}

impl Groups {
    /// Each operation by itself.
    pub(super) fn new(blocks: &[Block], kinds: Vec<NodeKind>) -> Self {
        let nodes = kinds.into_iter().enumerate().map(|(index, kind)| Node::new(kind, index.checked_sub(1)));
        let listed = Program { blocks: blocks.to_vec(), nodes: nodes.collect() };
        let (kinds, dependencies) =
            recovered(listed).nodes.into_iter().map(|node| (node.kind, node.dependencies)).unzip();
        Self { kinds, dependencies, group_of: Vec::new(), groups: Vec::new(), line: Line::default() }
    }

    /// The operations as they were given, of which none was merged.
    pub(super) fn unmerged(self) -> Vec<NodeKind> {
        self.kinds
    }

    /// Merges what can be merged; says whether anything was.
    pub(super) fn merge_all(&mut self, fuel: &mut Fuel) -> bool {
        let mut readers: BTreeMap<(BlockId, usize, usize), Vec<usize>> = BTreeMap::new();
        let mut has_merged = false;
        for node in 0..self.kinds.len() {
            self.add(node);
            let Some(body) = self.body(node) else { continue };
            let regions: Vec<_> = body
                .operands
                .iter()
                .map(|access| (access.region.block, access.region.start, access.region.end))
                .collect();
            let mut candidates: Vec<(usize, bool)> = Vec::new();
            for &dependency in self.dependencies[node].iter().rev() {
                candidates.push((dependency.0, true));
            }
            for region in regions {
                let of = readers.entry(region).or_default();
                candidates.extend(of.iter().rev().take(MAX_SIBLINGS).map(|&sibling| (sibling, false)));
                of.push(node);
            }
            for (candidate, is_dependency) in candidates {
                has_merged |= self.try_merge(candidate, node, is_dependency, fuel);
            }
        }
        has_merged
    }

    fn add(&mut self, node: usize) {
        let depths = self.dependencies[node].iter().map(|dependency| self.group(dependency.0).depth + 1);
        let depth = depths.max().unwrap_or(0);
        let body = match &self.kinds[node] {
            NodeKind::Kernel(kernel) => Body::of(kernel).filter(can_generate),
            _ => None,
        };
        self.group_of.push(node);
        self.line.push();
        self.groups.push(Some(Group { members: vec![node], body, depth }));
    }

    fn group(&self, node: usize) -> &Group {
        self.groups[self.group_of[node]].as_ref().expect("a node points to a group that is there")
    }

    fn body(&self, node: usize) -> Option<&Body> {
        self.group(node).body.as_ref()
    }

    /// Merges the groups of two operations if that is right and pays.
    fn try_merge(&mut self, one: usize, other: usize, is_dependency: bool, fuel: &mut Fuel) -> bool {
        let (one, other) = (self.group_of[one], self.group_of[other]);
        if one == other {
            return false;
        }
        let (one_group, other_group) = (self.group(one), self.group(other));
        let (Some(one_body), Some(other_body)) = (&one_group.body, &other_group.body) else { return false };
        let is_near = one_group.depth.abs_diff(other_group.depth) <= MAX_DEPTH_DIFFERENCE;
        if !(is_dependency || is_near) || !share_data(one_body, other_body) {
            return false;
        }
        // The one that has to come first, if one has to.
        let starts_with_other = self.waits_for(one, other);
        let (first, second) = if starts_with_other { (other_body, one_body) } else { (one_body, other_body) };
        let [first, second] = aligned(first, second);
        if !can_merge(&first, &second) {
            return false;
        }
        let Some(between) = self.before_and_apart(one, other).filter(|_| fuel.burn()) else { return false };
        let body = merge(&first, &second);
        self.unite(one, other, body, between);
        true
    }

    /// Whether a member of a group depends on one of another group.
    fn waits_for(&self, group: usize, other: usize) -> bool {
        self.waited_for(group).any(|before| before == other)
    }

    /// The groups that a group depends on, some more than once, itself perhaps.
    fn waited_for(&self, group: usize) -> impl Iterator<Item = usize> {
        let members = self.groups[group].iter().flat_map(|group| &group.members);
        members.flat_map(|&member| &self.dependencies[member]).map(|dependency| self.group_of[dependency.0])
    }

    /// What stands between two groups and has to be over before the later one, in order; none where one of it has to come
    /// after the earlier one, or where there is so much of it that nobody looks.
    fn before_and_apart(&self, one: usize, other: usize) -> Option<Vec<usize>> {
        let (early, late) = if self.line.is_before(one, other) { (one, other) } else { (other, one) };
        let mut found = BTreeSet::new();
        let mut waiting = vec![late];
        let mut num_steps = 0;
        let mut is_apart = true;
        while let Some(group) = waiting.pop().filter(|_| is_apart) {
            for before in self.waited_for(group) {
                num_steps += 1;
                is_apart &= num_steps <= MAX_STEPS_BETWEEN && (before != early || group == late);
                if before != late && self.line.is_before(early, before) && found.insert(before) {
                    waiting.push(before);
                }
            }
        }
        did(num_steps);
        let mut found: Vec<usize> = is_apart.then(|| found.into_iter().collect())?;
        found.sort_unstable_by_key(|&group| self.line.label(group));
        Some(found)
    }

    /// Makes one group of two, at the place of the earlier one, with `between` before it.
    fn unite(&mut self, one: usize, other: usize, body: Body, between: Vec<usize>) {
        let (kept, gone) = (one.min(other), one.max(other));
        let gone_group = self.groups[gone].take().expect("a node points to a group that is there");
        let group = self.groups[kept].as_mut().expect("a node points to a group that is there");
        for &member in &gone_group.members {
            self.group_of[member] = kept;
        }
        group.members.extend(gone_group.members);
        group.body = Some(body);
        group.depth = group.depth.max(gone_group.depth);
        let early = if self.line.is_before(one, other) { one } else { other };
        for group in between {
            self.line.remove(group);
            self.line.insert_before(early, group);
        }
        if early == gone {
            self.line.remove(kept);
            self.line.insert_before(gone, kept);
        }
        self.line.remove(gone);
    }

    /// The operations in an order of the groups that is as near as can be to the one given.
    pub(super) fn into_kinds(mut self) -> Vec<NodeKind> {
        let num_nodes = self.kinds.len();
        let mut waits_for: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); num_nodes];
        let mut followers: Vec<Vec<usize>> = vec![Vec::new(); num_nodes];
        for node in 0..num_nodes {
            let group = self.group_of[node];
            for dependency in &self.dependencies[node] {
                let before = self.group_of[dependency.0];
                if before != group && waits_for[group].insert(before) {
                    followers[before].push(group);
                }
            }
        }
        let mut num_waiting: Vec<usize> = waits_for.iter().map(BTreeSet::len).collect();
        let last = |groups: &[Option<Group>], group: usize| {
            groups[group].as_ref().and_then(|group| group.members.iter().max().copied()).unwrap_or(group)
        };
        let mut ready: BinaryHeap<Reverse<(usize, usize)>> = BinaryHeap::new();
        for (group, &num_before) in num_waiting.iter().enumerate() {
            if self.groups[group].is_some() && num_before == 0 {
                ready.push(Reverse((last(&self.groups, group), group)));
            }
        }
        let mut kinds = Vec::with_capacity(num_nodes);
        while let Some(Reverse((_, group))) = ready.pop() {
            let taken = self.groups[group].as_mut().expect("a group runs once");
            let body = if taken.members.len() > 1 { taken.body.take() } else { None };
            kinds.push(match body {
                Some(mut body) => {
                    body.retain_outputs(|_| true);
                    NodeKind::Kernel(body.into_kernel())
                }
                None => std::mem::replace(&mut self.kinds[group], NodeKind::Empty),
            });
            for &follower in &followers[group] {
                num_waiting[follower] -= 1;
                if num_waiting[follower] == 0 {
                    ready.push(Reverse((last(&self.groups, follower), follower)));
                }
            }
        }
        kinds
    }
}
