//! Few nodes of a graph come after nothing.
//!
//! A node that comes after nothing begins a branch of its own: the call that launches the graph takes longer for each, and so does the device
//! where branches meet (decision 46). Further ones wait for those before them.

use super::node::NodeIndex;
use super::program::Program;

/// Most nodes that come after nothing: two kernels that could run side by side still do.
const MAX_ROOTS: usize = 2;

/// What each node comes after: what the program says, and one more that is earlier where that is nothing and too many such are.
pub(super) fn with_few_roots(program: &Program) -> Vec<Vec<NodeIndex>> {
    let mut after: Vec<_> = program.nodes.iter().map(|node| node.dependencies.clone()).collect();
    let roots: Vec<usize> = (0..after.len()).filter(|&node| after[node].is_empty()).collect();
    for (&earlier, &root) in roots.iter().zip(roots.iter().skip(MAX_ROOTS)) {
        after[root].push(NodeIndex(earlier));
    }
    after
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_that_come_after_nothing_wait_in_two_rows() {
        let text = "blocks x0=8\n%0 zero x0[0..8]\n%1 zero x0[0..8] after []\n%2 zero x0[0..8] after [0]\n%3 zero x0[0..8] after []
%4 zero x0[0..8] after [1 2]\n%5 zero x0[0..8] after []\n%6 zero x0[0..8] after []";
        let program: Program = text.parse().expect("a program");
        let after =
            with_few_roots(&program).into_iter().map(|of| of.into_iter().map(|node| node.0).collect::<Vec<_>>());
        let expected: [&[usize]; 7] = [&[], &[], &[0], &[0], &[1, 2], &[1], &[3]];
        assert!(after.eq(expected));
    }
}
