//! Passes that are wrong on purpose, and who notices.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::programs::programs;
use super::{run, shuffled};
use crate::compile::{Block, BlockId, Lifetime, NodeIndex, NodeKind, Pass, Program, ProgramError};

/// Memory planning that puts every block at the start of the arena.
fn plan_all_at_once(program: &Program) -> Program {
    let is_kept: Vec<bool> = program.nodes.iter().map(|node| node.kind.lifetime_of().is_none()).collect();
    let mut planned = program.clone().retain(&is_kept);
    let arena = BlockId(planned.blocks.len());
    let owned: Vec<bool> = planned.blocks.iter().map(|block| block.lifetime == Lifetime::Graph).collect();
    for node in &mut planned.nodes {
        node.kind.relocate(|block| owned[block.0].then_some((arena, 0)));
    }
    let size_bytes = program.blocks.iter().map(|block| block.size_bytes).max().unwrap_or(1);
    planned.blocks.push(Block { size_bytes, lifetime: Lifetime::Arena });
    planned
}

/// Two results kept in two blocks until both are copied out.
fn two_live_blocks() -> Program {
    let text = "blocks x0=8 x1=8 g2=8 g3=8
        %0 alloc g2
        %1 alloc g3
        %2 kernel k known (x0 r[0..8], g2 w[0..8])
        %3 kernel k known (x1 r[0..8], g3 w[0..8])
        %4 kernel k known (g2 r[0..8], x0 w[0..8])
        %5 kernel k known (g3 r[0..8], x1 w[0..8])
        %6 free g2
        %7 free g3";
    text.parse().expect("a program")
}

#[test]
fn overlapping_live_blocks_are_caught_by_interpretation_in_a_chain_and_by_validation_without_one() {
    let program = two_live_blocks();
    let wrong = plan_all_at_once(&program);
    assert_eq!(wrong.validate(), Ok(()));
    assert_ne!(run(&wrong, None), run(&program, None));
    let (recovered, _) = Pass::Dependencies.run(&program);
    let conflict = ProgramError::Conflict { first: NodeIndex(0), second: NodeIndex(1), block: BlockId(4) };
    assert_eq!(plan_all_at_once(&recovered).validate(), Err(conflict));
}

#[test]
fn a_dropped_dependency_changes_the_result_of_some_order() {
    let text = "blocks x0=8 x1=8 x2=8
        %0 kernel k known (x0 r[0..8], x1 w[0..8])
        %1 kernel k known (x1 r[0..8], x2 w[0..8])";
    let mut program: Program = text.parse().expect("a program");
    let expected = run(&program, None);
    program.nodes[1].dependencies.clear();
    assert!((0..16).any(|seed| run(&program, Some(&shuffled(&program, seed))) != expected));
}

#[test]
fn most_random_programs_notice_blocks_at_one_place_or_a_lost_node() {
    let mut runner = TestRunner::deterministic();
    let (mut num_planned, mut num_overlaps_caught) = (0, 0);
    let (mut num_nodes, mut num_losses_caught) = (0, 0);
    for _ in 0..100 {
        let program = programs().new_tree(&mut runner).expect("a program").current();
        let expected = run(&program, None);
        let is_caught = |wrong: &Program| wrong.validate().is_err() || run(wrong, None) != expected;
        let (living, _) = Pass::Dead.run(&program);
        let (planned, report) = Pass::Memory.run(&living);
        if report.num_rewrites >= 3 {
            assert!(!is_caught(&planned));
            num_planned += 1;
            num_overlaps_caught += usize::from(is_caught(&plan_all_at_once(&living)));
        }
        for lost in 0..living.nodes.len() {
            if matches!(living.nodes[lost].kind, NodeKind::Kernel(_)) {
                let keep: Vec<bool> = (0..living.nodes.len()).map(|node| node != lost).collect();
                num_nodes += 1;
                num_losses_caught += usize::from(is_caught(&living.clone().retain(&keep)));
            }
        }
    }
    assert!(num_planned >= 30 && 10 * num_overlaps_caught >= 8 * num_planned, "{num_overlaps_caught} of {num_planned}");
    assert!(num_nodes >= 300 && 10 * num_losses_caught >= 8 * num_nodes, "{num_losses_caught} of {num_nodes}");
}

proptest! {
    #[test]
    fn validation_notices_every_dependency_that_recovery_found_and_somebody_drops(program in programs()) {
        let (recovered, _) = Pass::Dependencies.run(&program);
        for node in 0..recovered.nodes.len() {
            for position in 0..recovered.nodes[node].dependencies.len() {
                let mut wrong = recovered.clone();
                wrong.nodes[node].dependencies.remove(position);
                prop_assert!(wrong.validate().is_err(), "node {} without dependency {}", node, position);
            }
        }
    }
}
