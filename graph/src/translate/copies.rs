//! Kernels that do nothing but copy, as the copies that they make.

use std::collections::BTreeMap;

use crate::compile::{DeclaredEffect, Recorded, RecordedKind, RecordedNode};

/// Bytes that are copied from one address to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PlainCopy {
    pub(crate) source: u64,
    pub(crate) destination: u64,
    pub(crate) bytes: usize,
}

/// Puts copies, one after the other, in the place of each node that is listed with what it copies. `handles` has one
/// entry per node; each copy gets that of its node.
pub(crate) fn split_copies<T: Copy>(
    recorded: Recorded,
    handles: &[T],
    copies: &BTreeMap<usize, Vec<PlainCopy>>,
) -> (Recorded, Vec<T>) {
    let (mut nodes, mut new_handles) = (Vec::new(), Vec::new());
    // First and last new position of each old one.
    let mut places: Vec<(usize, usize)> = Vec::with_capacity(recorded.nodes.len());
    for (position, (node, &handle)) in recorded.nodes.into_iter().zip(handles).enumerate() {
        let first = nodes.len();
        let dependencies: Vec<usize> = node.dependencies.iter().map(|&of| places[of].1).collect();
        match copies.get(&position).filter(|copies| !copies.is_empty()) {
            None => nodes.push(RecordedNode { kind: node.kind, dependencies }),
            Some(copies) => {
                for (index, &PlainCopy { source, destination, bytes }) in copies.iter().enumerate() {
                    let kind = RecordedKind::Copy { source, destination, bytes };
                    let dependencies = if index == 0 { dependencies.clone() } else { vec![first + index - 1] };
                    nodes.push(RecordedNode { kind, dependencies });
                }
            }
        }
        new_handles.resize(nodes.len(), handle);
        places.push((first, nodes.len() - 1));
    }
    let is_split = |declared: &DeclaredEffect| declared.nodes.len() == 1 && copies.contains_key(&declared.nodes.start);
    let moved = |declared: DeclaredEffect| {
        let nodes = places[declared.nodes.start].0..places[declared.nodes.end - 1].1 + 1;
        DeclaredEffect { nodes, ..declared }
    };
    let declared = recorded.declared.into_iter().filter(|declared| !is_split(declared)).map(moved).collect();
    (Recorded { nodes, declared }, new_handles)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(address: u64, dependencies: Vec<usize>) -> RecordedNode {
        RecordedNode { kind: RecordedKind::Free { address }, dependencies }
    }

    #[test]
    fn a_copying_kernel_becomes_a_chain_of_copies_and_all_positions_follow() {
        let declared = |nodes| DeclaredEffect { nodes, reads: vec![(1, 1)], writes: Vec::new() };
        let recorded = Recorded {
            nodes: vec![node(10, vec![]), node(11, vec![0]), node(12, vec![1]), node(13, vec![0, 2])],
            declared: vec![declared(0..1), declared(1..2), declared(2..4)],
        };
        let copy = |source| PlainCopy { source, destination: source + 1, bytes: 4 };
        let copies = BTreeMap::from([(1, vec![copy(100), copy(200), copy(300)])]);
        let (split, handles) = split_copies(recorded, &['a', 'b', 'c', 'd'], &copies);
        let kind = |source| RecordedKind::Copy { source, destination: source + 1, bytes: 4 };
        let expected = vec![
            node(10, vec![]),
            RecordedNode { kind: kind(100), dependencies: vec![0] },
            RecordedNode { kind: kind(200), dependencies: vec![1] },
            RecordedNode { kind: kind(300), dependencies: vec![2] },
            node(12, vec![3]),
            node(13, vec![0, 4]),
        ];
        assert_eq!(split.nodes, expected);
        assert_eq!(split.declared, [declared(0..1), declared(4..6)]);
        assert_eq!(handles, ['a', 'b', 'b', 'b', 'c', 'd']);
    }

    #[test]
    fn without_copies_nothing_changes() {
        let recorded = Recorded { nodes: vec![node(1, vec![]), node(2, vec![0])], declared: Vec::new() };
        assert_eq!(split_copies(recorded.clone(), &[7, 8], &BTreeMap::new()), (recorded, vec![7, 8]));
    }
}
