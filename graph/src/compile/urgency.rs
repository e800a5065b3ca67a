//! Which nodes others wait for the longest.

use super::program::Program;

/// The nodes of the longest chain that begins at each node, itself among them.
///
/// Where several nodes could run and not all of them have room, the one with the longest chain is to go first: the rest of the
/// program cannot be over sooner than its chain.
pub(crate) fn chains(program: &Program) -> Vec<usize> {
    let mut chains = vec![1; program.nodes.len()];
    for (index, node) in program.nodes.iter().enumerate().rev() {
        for before in &node.dependencies {
            chains[before.0] = chains[before.0].max(chains[index] + 1);
        }
    }
    chains
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_counts_the_nodes_that_follow_one_another_to_the_end() {
        let text = "blocks x0=8
            %0 zero x0[0..8]
            %1 kernel long known (x0 r[0..8]) after [0]
            %2 kernel longer known (x0 r[0..8]) after [1]
            %3 kernel side known (x0 r[0..8]) after [0]
            %4 kernel last known (x0 r[0..8]) after [2 3]";
        let program: Program = text.parse().unwrap();
        assert_eq!(chains(&program), [4, 3, 2, 2, 1]);
        assert_eq!(chains(&program).into_iter().max(), Some(program.critical_path()));
    }
}
