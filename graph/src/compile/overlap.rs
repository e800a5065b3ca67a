//! Which dependencies let a kernel take its place on the device before what it depends on is over.
//!
//! A kernel *waits* where its first instruction returns once all that its node depends on is over and can be read. It may be
//! launched as soon as the blocks of a kernel before it have begun: such a dependency is *early*. All others hold the launch back.
//!
//! Nodes that come after one another further apart need no more than that: what is over has waited itself, so that everything before
//! it is over too.

use super::node::{Node, NodeIndex, NodeKind};
use super::program::Program;
use super::roots::with_few_roots;

/// What a node depends on.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Edges {
    /// What has to be over before the node is launched.
    pub(crate) full: Vec<NodeIndex>,
    /// What the node waits for once it is launched.
    pub(crate) early: Vec<NodeIndex>,
}

/// Most bytes of shared memory, as a launch asks for them, for a block of a kernel that overlaps with another: what every kernel may have
/// without asking. Larger blocks beside those of another kernel leave little room, and what begins meanwhile crowds where some is.
const MAX_SHARED_BYTES: u32 = 48 << 10;

/// Most blocks of a kernel that is nowhere in the way of others while it waits, and most such kernels after one.
const FEW_BLOCKS: u64 = 16;
const FEW_AFTER: usize = 4;

/// The edges of each node; `waits` says of each whether it is a kernel that waits, and lets others begin with it. Few nodes come after
/// nothing (`roots.rs`), so that some have an edge that the program does not ask for.
///
/// After a kernel that more than one node depends on none is early but a few kernels of few blocks after one of few: more that wait would take
/// the places of those that could run. Kernels with large blocks neither begin early nor, where they wait themselves, let others.
pub(crate) fn edges(program: &Program, waits: &[bool]) -> Vec<Edges> {
    let dependencies = with_few_roots(program);
    let mut num_after = vec![0_usize; program.nodes.len()];
    dependencies.iter().flatten().for_each(|before| num_after[before.0] += 1);
    // Kernels that do not wait do not let others begin at once either.
    let is_crowded = |node: usize| waits[node] && is_large(&program.nodes[node]);
    let is_early = |node: usize, before: NodeIndex| {
        let is_kernel = matches!(program.nodes[before.0].kind, NodeKind::Kernel(_));
        let are_few = |nodes: [usize; 2]| nodes.iter().all(|node| has_few_blocks(&program.nodes[*node]));
        let has_room = num_after[before.0] == 1 || (num_after[before.0] <= FEW_AFTER && are_few([node, before.0]));
        waits[node] && is_kernel && has_room && !is_crowded(node) && !is_crowded(before.0)
    };
    let of = |(index, before): (usize, Vec<NodeIndex>)| {
        let (early, full) = before.into_iter().partition(|before| is_early(index, *before));
        Edges { full, early }
    };
    dependencies.into_iter().enumerate().map(of).collect()
}

/// The node that may be early after a kernel which waits and which the whole program comes after: the one that comes after nothing, where
/// there is one and it waits.
pub(crate) fn early_root(program: &Program, waits: &[bool], edges: &[Edges]) -> Option<NodeIndex> {
    let mut roots = edges.iter().enumerate().filter(|(_, edges)| edges.full.is_empty() && edges.early.is_empty());
    let (root, None) = (roots.next()?.0, roots.next()) else { return None };
    (waits[root] && !is_large(&program.nodes[root])).then_some(NodeIndex(root))
}

fn has_few_blocks(node: &Node) -> bool {
    let NodeKind::Kernel(kernel) = &node.kind else { return false };
    kernel.launch.grid.iter().map(|blocks| u64::from(*blocks)).product::<u64>() <= FEW_BLOCKS
}

fn is_large(node: &Node) -> bool {
    matches!(&node.kind, NodeKind::Kernel(kernel) if kernel.launch.shared_bytes > MAX_SHARED_BYTES)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// Whether each node begins to touch memory only after all that it comes after are over, though a launch may come as soon as
    /// every edge allows it, and no sooner end of anything is known than that of its own work.
    fn keeps_order(program: &Program, waits: &[bool], edges: &[Edges]) -> bool {
        // What is over when a node is launched, when it touches memory, and so when it is over.
        let mut over: Vec<Vec<bool>> = Vec::new();
        let mut launched: Vec<Vec<bool>> = Vec::new();
        let mut after: Vec<Vec<bool>> = Vec::new();
        let join = |into: &mut Vec<bool>, from: &[bool]| into.iter_mut().zip(from).for_each(|(a, b)| *a |= b);
        for (index, Edges { full, early }) in edges.iter().enumerate() {
            let nothing = vec![false; edges.len()];
            let (mut start, mut needs) = (nothing.clone(), nothing);
            for before in full {
                join(&mut start, &over[before.0]);
                start[before.0] = true;
            }
            // A kernel whose blocks have begun was launched.
            early.iter().for_each(|before| join(&mut start, &launched[before.0]));
            let mut touch = start.clone();
            for before in early.iter().filter(|_| waits[index]) {
                join(&mut touch, &over[before.0]);
                touch[before.0] = true;
            }
            for before in &program.nodes[index].dependencies {
                join(&mut needs, &after[before.0]);
                needs[before.0] = true;
            }
            if needs.iter().zip(&touch).any(|(needed, known)| *needed && !known) {
                return false;
            }
            launched.push(start);
            over.push(touch);
            after.push(needs);
        }
        true
    }

    /// Of fills (0), kernels of somebody else (1), kernels that wait (2), and such with large blocks (3) or with few (4).
    fn program(kinds: &[u8], pairs: &[(usize, usize)]) -> Program {
        let text: Vec<String> = kinds
            .iter()
            .enumerate()
            .map(|(index, kind)| {
                let after: Vec<String> = pairs
                    .iter()
                    .filter(|(before, node)| *node == index && before < node)
                    .map(|(before, _)| *before)
                    .collect::<BTreeSet<_>>()
                    .iter()
                    .map(ToString::to_string)
                    .collect();
                let what = if *kind == 0 { "zero x0[0..8]" } else { "kernel k known (x0 r[0..8])" };
                format!("%{index} {what} after [{}]", after.join(" "))
            })
            .collect();
        let mut program: Program = format!("blocks x0=8\n{}", text.join("\n")).parse().expect("a program");
        for (node, kind) in program.nodes.iter_mut().zip(kinds) {
            if let NodeKind::Kernel(kernel) = &mut node.kind {
                kernel.launch.shared_bytes = if *kind == 3 { MAX_SHARED_BYTES + 1 } else { MAX_SHARED_BYTES };
                kernel.launch.grid = if *kind == 4 { [8, 2, 1] } else { [17, 1, 1] };
            }
        }
        program
    }

    proptest! {
        #[test]
        fn nothing_touches_memory_before_all_that_it_comes_after_is_over(
            kinds in prop::collection::vec(0..5_u8, 1..24), pairs in prop::collection::vec((0..24_usize, 0..24_usize), 0..60),
        ) {
            let program = program(&kinds, &pairs);
            let waits: Vec<bool> = kinds.iter().map(|kind| *kind >= 2).collect();
            let edges = edges(&program, &waits);
            let after = with_few_roots(&program);
            prop_assert!(after.iter().filter(|before| before.is_empty()).count() <= 2);
            for (index, (node, before)) in program.nodes.iter().zip(&after).enumerate() {
                let is_added = node.dependencies.is_empty() && before.len() < 2 && before.iter().all(|before| before.0 < index);
                prop_assert!(is_added || *before == node.dependencies);
            }
            for (dependencies, of) in after.iter().zip(&edges) {
                let mut all = [&of.full[..], &of.early[..]].concat();
                all.sort_unstable();
                prop_assert_eq!(&all, dependencies);
            }
            prop_assert!(keeps_order(&program, &waits, &edges));
            // A kernel that is taken to wait and does not breaks the order; where something else holds its launch back, that may imply it,
            // and where the program asks for nothing there is none.
            let waits_alone = |node: &usize| edges[*node].full.is_empty() && !program.nodes[*node].dependencies.is_empty();
            for node in (0..kinds.len()).filter(waits_alone) {
                let mut lacking = waits.clone();
                lacking[node] = false;
                prop_assert!(!keeps_order(&program, &lacking, &edges));
            }
        }
    }

    #[test]
    fn kernels_that_wait_start_early_after_kernels_that_no_other_depends_on_and_after_nothing_else() {
        // A fill, a kernel of somebody else, and four that wait, the last two for the same.
        let program = program(&[0, 1, 2, 2, 2, 2], &[(0, 1), (0, 2), (1, 2), (2, 3), (3, 4), (3, 5)]);
        let nodes = |nodes: &[usize]| nodes.iter().map(|&node| NodeIndex(node)).collect::<Vec<_>>();
        let edge = |full: &[usize], early: &[usize]| Edges { full: nodes(full), early: nodes(early) };
        let expected =
            [edge(&[], &[]), edge(&[0], &[]), edge(&[0], &[1]), edge(&[], &[2]), edge(&[3], &[]), edge(&[3], &[])];
        assert_eq!(edges(&program, &[false, false, true, true, true, true]), expected);
        assert!(edges(&program, &[false; 6]).iter().all(|edges| edges.early.is_empty()));
    }

    #[test]
    fn kernels_of_few_blocks_start_early_beside_others_after_one_of_few() {
        let early = |kinds: &[u8]| {
            let edges = edges(&program(kinds, &[(0, 1), (0, 2)]), &[true; 3]);
            [1, 2].map(|node| edges[node].early.len())
        };
        assert_eq!([early(&[4, 4, 4]), early(&[4, 4, 2]), early(&[4, 4, 3])], [[1, 1], [1, 0], [1, 0]]);
        assert_eq!(early(&[2, 4, 4]), [0, 0]);
        let after_one = |count: usize| {
            let pairs: Vec<_> = (1..=count).map(|node| (0, node)).collect();
            edges(&program(&[4; 8][..=count], &pairs), &[true; 8][..=count])[1].early.len()
        };
        assert_eq!([4, 5].map(after_one), [1, 0]);
    }

    #[test]
    fn no_kernel_starts_early_after_one_that_another_only_waits_for_so_that_few_come_after_nothing() {
        let early = |kinds: &[u8]| {
            let program = program(kinds, &[(0, 1)]);
            edges(&program, &vec![true; kinds.len()]).iter().map(|edges| edges.early.len()).sum::<usize>()
        };
        assert_eq!([early(&[2, 2, 2]), early(&[2, 2, 2, 2])], [1, 0]);
    }

    #[test]
    fn a_node_that_all_others_come_after_may_be_early_where_it_waits_and_has_small_blocks() {
        let root = |kinds: &[u8], pairs: &[(usize, usize)]| {
            let program = program(kinds, pairs);
            let waits: Vec<bool> = kinds.iter().map(|kind| *kind >= 2).collect();
            early_root(&program, &waits, &edges(&program, &waits)).map(|root| root.0)
        };
        assert_eq!(root(&[2, 2, 0], &[(0, 1), (0, 2)]), Some(0));
        assert_eq!(root(&[2, 2, 0], &[(0, 2)]), None, "two come after nothing");
        assert_eq!([1, 3].map(|kind| root(&[kind, 2], &[(0, 1)])), [None, None]);
        assert_eq!(root(&[], &[]), None);
    }

    #[test]
    fn kernels_with_large_blocks_neither_start_early_nor_let_others() {
        // A chain: one that waits, one with large blocks, another that waits, one of somebody else with large blocks, and one that waits.
        let mut program = program(&[2, 3, 2, 1, 2], &[(0, 1), (1, 2), (2, 3), (3, 4)]);
        if let NodeKind::Kernel(kernel) = &mut program.nodes[3].kind {
            kernel.launch.shared_bytes = 200 << 10;
        }
        let early: Vec<usize> =
            edges(&program, &[true, true, true, false, true]).iter().map(|edges| edges.early.len()).collect();
        assert_eq!(early, [0, 0, 0, 0, 1]);
    }
}
