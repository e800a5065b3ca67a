//! Which nodes a declared launch recorded.

use std::collections::BTreeMap;
use std::ops::Range;

/// A recorded graph as the log of launches knows it: handles of nodes, and what they wait for.
#[derive(Debug)]
pub(crate) struct Launches<'a> {
    /// Position of the node with each handle.
    positions: BTreeMap<usize, usize>,
    /// Positions that each position waits for.
    dependencies: &'a [Vec<usize>],
}

impl<'a> Launches<'a> {
    /// Nodes by position: their handles, and what they wait for.
    pub(crate) fn new(handles: &[usize], dependencies: &'a [Vec<usize>]) -> Self {
        let positions = handles.iter().enumerate().map(|(at, &handle)| (handle, at)).collect();
        Self { positions, dependencies }
    }
}

/// The positions after `before`, or from the start, up to and including `last`: none unless these nodes are a chain
/// that hangs on `before` alone. Then it cannot be told which nodes the launch recorded, and nothing is known of them.
pub(crate) fn positions(launches: &Launches<'_>, before: Option<usize>, last: usize) -> Option<Range<usize>> {
    let at = &launches.positions;
    let start = match before {
        Some(handle) => at.get(&handle)? + 1,
        None => 0,
    };
    let range = start..at.get(&last)? + 1;
    let is_chain = range.clone().all(|position| match position.checked_sub(1) {
        Some(previous) => launches.dependencies[position] == [previous],
        None => launches.dependencies[position].is_empty(),
    });
    (!range.is_empty() && is_chain).then_some(range)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(len: usize) -> Vec<Vec<usize>> {
        (0..len).map(|at: usize| at.checked_sub(1).into_iter().collect()).collect()
    }

    #[test]
    fn a_launch_is_what_follows_the_node_before_it() {
        let handles = [70, 71, 90, 40];
        let dependencies = chain(4);
        let launches = Launches::new(&handles, &dependencies);
        for (before, last, expected) in [
            (None, 70, Some(0..1)),
            (None, 90, Some(0..3)),
            (Some(70), 71, Some(1..2)),
            (Some(70), 40, Some(1..4)),
            // Nothing lies between, or the wrong way round, or a node is not of this graph.
            (Some(71), 71, None),
            (Some(40), 70, None),
            (Some(1), 40, None),
            (None, 1, None),
        ] {
            assert_eq!(positions(&launches, before, last), expected, "{before:?} to {last}");
        }
    }

    #[test]
    fn nothing_is_said_of_nodes_that_are_no_chain() {
        let handles = [10, 11, 12, 13];
        // A fork: 11 and 12 both wait for 10; 13 for both.
        let dependencies = [vec![], vec![0], vec![0], vec![1, 2]];
        let launches = Launches::new(&handles, &dependencies);
        assert_eq!(positions(&launches, Some(10), 11), Some(1..2));
        assert_eq!(positions(&launches, Some(11), 12), None);
        assert_eq!(positions(&launches, Some(10), 13), None);
    }
}
