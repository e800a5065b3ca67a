//! An order of a graph's nodes in which each comes after those that it waits for.

use std::collections::BTreeSet;

/// The nodes `0..num_nodes` in such an order; of several that could come next, the one with the smallest number. None
/// when the edges, from the node that comes first to the one that waits, form a circle or name a node that is not there.
pub(crate) fn topological_order(num_nodes: usize, edges: &[(usize, usize)]) -> Option<Vec<usize>> {
    let mut num_waited_for = vec![0_usize; num_nodes];
    let mut successors: Vec<Vec<usize>> = vec![Vec::new(); num_nodes];
    for &(from, to) in edges {
        successors.get_mut(from)?.push(to);
        *num_waited_for.get_mut(to)? += 1;
    }
    let mut ready: BTreeSet<usize> = (0..num_nodes).filter(|&node| num_waited_for[node] == 0).collect();
    let mut order = Vec::with_capacity(num_nodes);
    while let Some(node) = ready.pop_first() {
        order.push(node);
        for &successor in &successors[node] {
            num_waited_for[successor] -= 1;
            if num_waited_for[successor] == 0 {
                ready.insert(successor);
            }
        }
    }
    (order.len() == num_nodes).then_some(order)
}

/// For each position of an order the positions that it waits for, ascending, each once.
pub(crate) fn predecessors(order: &[usize], edges: &[(usize, usize)]) -> Vec<Vec<usize>> {
    let mut position = vec![0; order.len()];
    for (at, &node) in order.iter().enumerate() {
        position[node] = at;
    }
    let mut predecessors: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); order.len()];
    for &(from, to) in edges {
        predecessors[position[to]].insert(position[from]);
    }
    predecessors.into_iter().map(|set| set.into_iter().collect()).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_chain_that_is_listed_backwards_is_turned_around() {
        let edges = [(2, 1), (1, 0)];
        let order = topological_order(3, &edges).expect("a chain has an order");
        assert_eq!(order, [2, 1, 0]);
        assert_eq!(predecessors(&order, &edges), [vec![], vec![0], vec![1]]);
    }

    #[test]
    fn circles_and_strangers_have_no_order() {
        for edges in [&[(0, 1), (1, 0)][..], &[(0, 0)], &[(0, 2)], &[(5, 1)]] {
            assert_eq!(topological_order(2, edges), None, "{edges:?}");
        }
        assert_eq!(topological_order(0, &[]), Some(Vec::new()));
    }

    proptest! {
        #[test]
        fn every_node_comes_after_all_it_waits_for(
            names in Just((0..12_usize).collect::<Vec<_>>()).prop_shuffle(),
            pairs in prop::collection::vec((0..12_usize, 0..12_usize), 0..40),
        ) {
            let edges: Vec<(usize, usize)> =
                pairs.into_iter().filter(|(a, b)| a < b).map(|(a, b)| (names[a], names[b])).collect();
            let order = topological_order(names.len(), &edges).expect("edges of ascending pairs form no circle");
            let mut sorted = order.clone();
            sorted.sort_unstable();
            prop_assert_eq!(sorted, (0..names.len()).collect::<Vec<_>>());
            let waits = predecessors(&order, &edges);
            for (at, before) in waits.iter().enumerate() {
                prop_assert!(before.iter().all(|&other| other < at));
                prop_assert!(before.is_sorted_by(|a, b| a < b));
            }
            for (from, to) in edges {
                let at = |node| order.iter().position(|&other| other == node).expect("it is in the order");
                prop_assert!(waits[at(to)].contains(&at(from)));
            }
        }
    }
}
