//! Fused kernels that are wrong, and the code of those that are right.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::programs::programs;
use super::run;
use crate::compile::fused::Body;
use crate::compile::{Code, Effect, NodeKind, Pass, PassSet, Program, Step, compile};

/// Fused kernels that are wrong, one per store that is forgotten and per load that goes to another operand.
fn wrong(program: &Program) -> Vec<Program> {
    let mut all = Vec::new();
    for (index, node) in program.nodes.iter().enumerate() {
        let NodeKind::Kernel(kernel) = &node.kind else { continue };
        let Some(body) = Body::of(kernel).filter(|_| matches!(kernel.effect, Effect::Fused(_))) else { continue };
        let mut push = |body: Body| {
            let mut wrong = program.clone();
            wrong.nodes[index].kind = NodeKind::Kernel(body.into_kernel());
            all.push(wrong);
        };
        for lost in body.outputs.iter().filter(|_| body.outputs.len() > 1) {
            let mut body = body.clone();
            body.retain_outputs(|store| store.region != lost.region);
            push(body);
        }
        for position in 0..body.steps.len() {
            if let Step::Load(operand) = body.steps[position] {
                let mut wrong = body.clone();
                wrong.steps[position] = Step::Load((operand + 1) % body.operands.len());
                if wrong != body && wrong.types() == body.types() {
                    push(wrong);
                }
            }
        }
    }
    all
}

#[test]
fn most_wrong_fusions_change_a_result() {
    let mut runner = TestRunner::deterministic();
    let (mut num_wrong, mut num_caught) = (0, 0);
    for _ in 0..150 {
        let program = programs().new_tree(&mut runner).expect("a program").current();
        let expected = run(&program, None);
        let (fused, _) = Pass::Fuse.run(&Pass::Dead.run(&program).0);
        assert_eq!(run(&fused, None), expected);
        for wrong in wrong(&fused) {
            num_wrong += 1;
            num_caught += usize::from(wrong.validate().is_err() || run(&wrong, None) != expected);
        }
    }
    // What is left is a choice of the larger of two, or the same bytes under two names.
    assert!(num_wrong >= 100 && 10 * num_caught >= 8 * num_wrong, "{num_caught} of {num_wrong}");
}

proptest! {
    #[test]
    fn generated_kernels_have_a_name_a_source_and_a_launch(program in programs()) {
        let compiled = compile(&program, &PassSet::exact()).expect("valid");
        for node in compiled.program.nodes.iter().chain(&compiled.once.nodes) {
            let NodeKind::Kernel(kernel) = &node.kind else { continue };
            if let Code::Generated(source) = &kernel.code {
                let is_named = source.contains(&format!("{}(", kernel.name));
                prop_assert!(kernel.name.starts_with("esper_pw_") && is_named, "{}", source);
                prop_assert!(kernel.launch.grid[0] > 0 && kernel.launch.block == [256, 1, 1]);
            }
        }
    }
}
