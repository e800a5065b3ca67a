//! What holds of every valid program.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::programs::programs;
use super::{closure, conflicts, replay, run, shuffled};
use crate::compile::fuel::Fuel;
use crate::compile::memory::plan_memory_of;
use crate::compile::{Compiled, Lifetime, Node, Pass, PassSet, Program, compile};

/// Every pass alone, some that meet, those that keep every bit, and all of them.
fn sets() -> Vec<PassSet> {
    let mut sets: Vec<PassSet> = Pass::ALL.into_iter().map(|pass| PassSet::none().with(pass)).collect();
    sets.push(PassSet::none().with(Pass::Dead).with(Pass::Memory));
    sets.push(PassSet::none().with(Pass::Fuse).with(Pass::Memory));
    sets.push(PassSet::none().with(Pass::Constants).with(Pass::Dead).with(Pass::Fuse));
    sets.push(PassSet::exact());
    sets.push(PassSet::all());
    sets
}

/// Bytes of the arenas.
fn arena_bytes(program: &Program) -> usize {
    program.blocks.iter().filter(|block| block.lifetime == Lifetime::Arena).map(|block| block.size_bytes).sum()
}

proptest! {
    #[test]
    fn random_programs_are_valid_and_any_order_gives_the_same_result(program in programs(), seed: u64) {
        prop_assert_eq!(program.validate(), Ok(()));
        let expected = run(&program, None);
        prop_assert!(expected.is_ok(), "{:?}", expected);
        for seed in [seed, seed ^ 1] {
            prop_assert_eq!(&run(&program, Some(&shuffled(&program, seed))), &expected);
        }
    }

    #[test]
    fn every_set_of_passes_keeps_what_external_blocks_hold_in_any_order(program in programs(), seed: u64) {
        let expected = run(&program, None);
        for passes in sets() {
            let compiled = compile(&program, &passes).map_err(|error| TestCaseError::fail(format!("{error:?}")))?;
            prop_assert_eq!(&replay(&compiled, None), &expected, "{:?}", passes);
            for seed in [seed, seed ^ 1] {
                let order = shuffled(&compiled.program, seed);
                prop_assert_eq!(&replay(&compiled, Some(&order)), &expected, "{:?}", passes);
            }
            prop_assert_eq!(compiled.reports.len(), passes.iter().count());
        }
    }

    #[test]
    fn a_pass_run_twice_changes_nothing_the_second_time(program in programs()) {
        for pass in Pass::ALL {
            let (once, _) = pass.run(&program);
            let (twice, report) = pass.run(&once);
            prop_assert_eq!(&twice, &once, "{}", pass.name());
            prop_assert_eq!(report.num_rewrites, 0, "{}", pass.name());
        }
        // All of them once more may find two kernels near enough to one another that were not before others had gone: seen in one
        // of 4000 programs. What runs once is left where it is, since the rest does not run without it.
        let passes = PassSet::all().without(Pass::Hoist);
        let once = compile(&program, &passes).expect("valid").program;
        let twice = compile(&once, &passes).expect("valid").program;
        let is_shorter = twice.nodes.len() < once.nodes.len() && run(&twice, None) == run(&program, None);
        prop_assert!(twice == once || is_shorter, "{once}\n{twice}");
    }

    #[test]
    fn recovered_dependencies_are_those_of_the_definition_and_none_follows_from_others(program in programs()) {
        let (recovered, _) = Pass::Dependencies.run(&program);
        let mut by_definition = program.clone();
        for index in 0..program.nodes.len() {
            let kinds = |node: usize| &program.nodes[node].kind;
            let wanted = (0..index).filter(|&other| conflicts(kinds(other), kinds(index)));
            by_definition.nodes[index] = Node::new(kinds(index).clone(), wanted);
        }
        prop_assert_eq!(closure(&recovered), closure(&by_definition));
        let before = closure(&recovered);
        for node in &recovered.nodes {
            for dependency in &node.dependencies {
                let mut others = node.dependencies.iter().filter(|other| *other != dependency);
                prop_assert!(others.all(|other| !before[other.0].contains(&dependency.0)));
            }
        }
    }

    #[test]
    fn passes_never_add_nodes_or_order(program in programs()) {
        for pass in Pass::ALL {
            let (_, report) = pass.run(&program);
            prop_assert!(report.nodes.after <= report.nodes.before, "{:?}", report);
            // What is one kernel waits for all that its parts waited for.
            let may_wait = matches!(pass, Pass::Fuse | Pass::Copies | Pass::Gates);
            prop_assert!(may_wait || report.critical_path.after <= report.critical_path.before, "{:?}", report);
        }
    }

    #[test]
    fn a_planned_program_has_no_allocation_and_what_shares_bytes_is_ordered(program in programs()) {
        for passes in [PassSet::none(), PassSet::none().with(Pass::Dependencies)] {
            let before = compile(&program, &passes).expect("valid").program;
            let (planned, report) = Pass::Memory.run(&before);
            prop_assert!(planned.nodes.iter().all(|node| node.kind.lifetime_of().is_none()));
            prop_assert_eq!(report.peak_bytes.after, arena_bytes(&planned));
            let sizes = before.blocks.iter().filter(|block| block.lifetime == Lifetime::Graph);
            let apart: usize = sizes.map(|block| block.size_bytes.next_multiple_of(256)).sum();
            prop_assert!(report.peak_bytes.after <= apart);
            let order = closure(&planned);
            for (second, before) in order.iter().enumerate() {
                for first in (0..second).filter(|first| !before.contains(first)) {
                    prop_assert!(!conflicts(&planned.nodes[first].kind, &planned.nodes[second].kind));
                }
            }
        }
    }

    #[test]
    fn blocks_placed_in_their_turn_share_no_bytes_while_they_are_there(program in programs()) {
        for passes in [PassSet::none(), PassSet::none().with(Pass::Dependencies)] {
            let before = compile(&program, &passes).expect("valid").program;
            let planned = plan_memory_of(before.clone(), &mut Fuel::new(None), 0);
            prop_assert_eq!(planned.validate(), Ok(()));
            prop_assert_eq!(&run(&planned, Some(&shuffled(&planned, 3))), &run(&program, None));
            let owned = before.blocks.iter().filter(|block| block.lifetime == Lifetime::Graph);
            prop_assert!(arena_bytes(&planned) <= owned.map(|block| block.size_bytes.next_multiple_of(256)).sum());
        }
    }
}

proptest! {
    // Every number of rewrites of each.
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn any_number_of_rewrites_gives_the_same_result(program in programs()) {
        let expected = run(&program, None);
        let count = |compiled: &Compiled| compiled.reports.iter().map(|report| report.num_rewrites).sum::<usize>();
        let total = count(&compile(&program, &PassSet::all()).expect("valid"));
        for fuel in 0..=total {
            let compiled = compile(&program, &PassSet::all().with_fuel(fuel));
            let compiled = compiled.map_err(|error| TestCaseError::fail(format!("fuel {fuel}: {error:?}")))?;
            prop_assert_eq!(count(&compiled), fuel);
            prop_assert_eq!(&replay(&compiled, None), &expected, "fuel {}", fuel);
            prop_assert_eq!(&replay(&compiled, Some(&shuffled(&compiled.program, 5))), &expected, "fuel {}", fuel);
        }
        let unchanged = compile(&program, &PassSet::all().with_fuel(0)).expect("valid").program;
        prop_assert_eq!(unchanged, program);
    }
}

#[test]
fn random_programs_give_every_pass_something_to_do_and_let_blocks_share_bytes() {
    let mut runner = TestRunner::deterministic();
    let mut num_rewritten = [0; Pass::ALL.len()];
    let (mut num_sharing, mut num_medium) = (0, 0);
    for _ in 0..200 {
        let program = programs().new_tree(&mut runner).expect("a program").current();
        num_medium += usize::from((10..=60).contains(&program.nodes.len()));
        for (count, pass) in num_rewritten.iter_mut().zip(Pass::ALL) {
            *count += usize::from(pass.run(&program).1.num_rewrites > 0);
        }
        let (_, report) = Pass::Memory.run(&program);
        let owned = program.blocks.iter().filter(|block| block.lifetime == Lifetime::Graph);
        num_sharing += usize::from(report.peak_bytes.after < owned.map(|block| block.size_bytes).sum());
    }
    assert!(num_rewritten.iter().all(|&count| count >= 15), "{num_rewritten:?}");
    assert!(num_sharing >= 40 && num_medium >= 150, "{num_sharing} share, {num_medium} are of medium size");
}
