//! What fusion, constants, hoisting and forwarding of copies make of small programs.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::examples::{block, chain, kernel};
use super::programs::programs;
use super::{replay, run};
use crate::compile::fused::Body;
use crate::compile::{
    BinaryOp, Block, BlockId, Code, Effect, ElementType, Lifetime, NodeKind, Operand, Pass, PassSet, Pattern, Pointer,
    Pointwise, Program, Region, Step, compile,
};

const ELEMENTS: usize = 12;
const BYTES: usize = 4 * ELEMENTS;

fn external() -> Block {
    block(BYTES, Lifetime::External)
}

fn graph() -> Block {
    block(BYTES, Lifetime::Graph)
}

fn reading(word: usize, from: usize) -> Pointer {
    Pointer::new(word, BlockId(from), 0).reading(0, BYTES)
}

/// `to[i] = op(left[i], right[i])`.
fn binary(op: BinaryOp, left: usize, right: usize, to: usize) -> NodeKind {
    strided(op, left, (right, None), to)
}

fn strided(op: BinaryOp, left: usize, (right, strides): (usize, Option<Vec<usize>>), to: usize) -> NodeKind {
    let element = ElementType::F32;
    let pointers = vec![reading(0, left), reading(1, right), Pointer::new(2, BlockId(to), 0).writing(0, BYTES)];
    let operands = vec![Operand { pointer: 0, element, strides: None }, Operand { pointer: 1, element, strides }];
    let steps = vec![Step::Load(0), Step::Load(1), Step::Binary(op, [0, 1])];
    let pointwise = Pointwise { shape: vec![3, 4], operands, output: 2, output_type: element, steps };
    kernel(pointers, Effect::Pointwise(Box::new(pointwise)))
}

/// A kernel of which only the bytes are known.
fn opaque(from: usize, to: usize) -> NodeKind {
    kernel(vec![reading(0, from), Pointer::new(1, BlockId(to), 0).writing(0, BYTES)], Effect::Known)
}

fn memset(block: usize, value: u32) -> NodeKind {
    let pattern = Pattern { value, width_bytes: 4 };
    NodeKind::Memset { region: Region::new(BlockId(block), 0, BYTES), pattern }
}

fn copy(from: usize, to: usize) -> NodeKind {
    let whole = |block| Region::new(BlockId(block), 0, BYTES);
    NodeKind::Copy { source: whole(from), destination: whole(to) }
}

/// Operations on two external blocks, 0 and 1, and graph-owned ones from 2 on.
fn program(num_owned: usize, kinds: Vec<NodeKind>) -> Program {
    let owned = 2..2 + num_owned;
    let mut all: Vec<NodeKind> = owned.clone().map(|block| NodeKind::Alloc(BlockId(block))).collect();
    all.extend(kinds);
    all.extend(owned.map(|block| NodeKind::Free(BlockId(block))));
    let mut blocks = vec![external(); 2];
    blocks.extend(vec![graph(); num_owned]);
    chain(blocks, all)
}

/// The operations, and inputs and outputs of each element-wise one, once a pass has run.
fn shapes(program: &Program) -> Vec<(usize, usize)> {
    let kernels = program.nodes.iter().filter_map(|node| match &node.kind {
        NodeKind::Kernel(kernel) => Some(kernel),
        _ => None,
    });
    kernels.map(|kernel| Body::of(kernel).map_or((0, 0), |body| (body.operands.len(), body.outputs.len()))).collect()
}

#[test]
fn what_shares_data_merges_where_nothing_has_to_run_in_between() {
    use BinaryOp::{Add, MaximumNumber, Multiply, Subtract};
    let transposed = Some(vec![1, 3]);
    type Case = (&'static str, usize, Vec<NodeKind>, Vec<(usize, usize)>);
    let cases: Vec<Case> = vec![
        ("a chain", 1, vec![binary(Add, 0, 1, 2), binary(Multiply, 2, 0, 1)], vec![(2, 1)]),
        (
            "a tree of two branches",
            2,
            vec![binary(Add, 0, 1, 2), binary(Multiply, 0, 1, 3), binary(Subtract, 2, 3, 1)],
            vec![(2, 1)],
        ),
        (
            "a result that somebody else reads is stored",
            2,
            vec![binary(Add, 0, 1, 2), binary(Multiply, 2, 0, 1), opaque(2, 3), copy(3, 0)],
            vec![(2, 2), (0, 0)],
        ),
        ("in place, twice", 0, vec![binary(Add, 0, 1, 0), binary(Multiply, 0, 1, 0)], vec![(2, 1)]),
        ("siblings", 0, vec![binary(Add, 0, 1, 1), binary(Multiply, 0, 0, 0)], vec![(2, 2)]),
        (
            "another has to run in between",
            2,
            vec![binary(Add, 0, 1, 2), opaque(2, 3), binary(Multiply, 2, 3, 1)],
            vec![(2, 1), (0, 0), (2, 1)],
        ),
        (
            "read at other positions",
            1,
            vec![binary(Add, 0, 1, 2), strided(Multiply, 0, (2, transposed.clone()), 1)],
            vec![(2, 1), (2, 1)],
        ),
        (
            "read at other positions before it is overwritten",
            1,
            vec![strided(MaximumNumber, 1, (0, transposed), 2), binary(Add, 1, 2, 0)],
            vec![(2, 1), (2, 1)],
        ),
    ];
    for (name, num_owned, kinds, expected) in cases {
        let program = program(num_owned, kinds);
        let (fused, _) = Pass::Fuse.run(&program);
        assert_eq!(fused.validate(), Ok(()), "{name}");
        assert_eq!(shapes(&fused), expected, "{name}");
        assert_eq!(run(&fused, None), run(&program, None), "{name}");
    }
}

#[test]
fn a_zero_that_is_added_to_or_subtracted_from_needs_no_memory_and_every_bit_stays() {
    for op in [BinaryOp::Add, BinaryOp::Subtract] {
        // The gradient is −0.0: added to zero it is +0.0, which a copy would not be.
        let program = program(2, vec![memset(2, 0), memset(3, 0x8000_0000), binary(op, 2, 3, 1)]);
        let compiled = compile(&program, &PassSet::exact()).expect("valid");
        assert_eq!(shapes(&compiled.program), [(0, 1)]);
        assert_eq!(compiled.program.nodes.len(), 1);
        let result = run(&compiled.program, None).expect("a result");
        assert_eq!(result, run(&program, None).expect("a result"));
        assert_eq!(result[&BlockId(1)], vec![0; BYTES]);
    }
}

#[test]
fn a_block_that_is_the_same_in_every_replay_is_filled_once() {
    let mut kinds = vec![memset(2, 0x3F80_0000), opaque(2, 3), binary(BinaryOp::Add, 3, 0, 0)];
    let constant = program(2, kinds.clone());
    let compiled = compile(&constant, &PassSet::exact()).expect("valid");
    assert_eq!((compiled.once.nodes.len(), compiled.program.nodes.len()), (1, 2));
    assert_eq!(replay(&compiled, None), run(&constant, None));
    // Written a second time in a replay, it is not the same.
    kinds.push(memset(2, 7));
    kinds.push(opaque(2, 1));
    let compiled = compile(&program(2, kinds), &PassSet::exact()).expect("valid");
    assert_eq!(compiled.once.nodes, []);
}

#[test]
fn copies_go_unless_somebody_writes_the_source_or_the_copy() {
    let cases: [(&str, Vec<NodeKind>, usize); 4] = [
        ("only read", vec![copy(0, 2), opaque(2, 1)], 0),
        ("the source changes later", vec![copy(0, 2), opaque(2, 1), memset(0, 1)], 0),
        ("the source changes before", vec![copy(0, 2), memset(0, 1), opaque(2, 1)], 1),
        ("the copy changes", vec![copy(0, 2), binary(BinaryOp::Add, 2, 0, 2), opaque(2, 1)], 1),
    ];
    for (name, kinds, num_copies) in cases {
        let program = program(1, kinds);
        let (forwarded, _) = Pass::Copies.run(&program);
        assert_eq!(forwarded.validate(), Ok(()), "{name}");
        let copies = forwarded.nodes.iter().filter(|node| matches!(node.kind, NodeKind::Copy { .. }));
        assert_eq!(copies.count(), num_copies, "{name}");
        assert_eq!(run(&forwarded, None), run(&program, None), "{name}");
    }
}

#[test]
fn an_arena_that_grows_too_much_gives_up_parallelism() {
    // Sixteen results of 8 MiB, one after the other in the order listed, all at once by their dependencies.
    let size = 8 << 20;
    let mut blocks = vec![block(8, Lifetime::External); 17];
    let mut kinds = Vec::new();
    for index in 0..16 {
        let id = BlockId(blocks.len());
        blocks.push(block(size, Lifetime::Graph));
        let read = |word, block| Pointer::new(word, block, 0).reading(0, 8);
        let write = |word, block| Pointer::new(word, block, 0).writing(0, 8);
        kinds.push(NodeKind::Alloc(id));
        kinds.push(kernel(vec![read(0, BlockId(0)), write(1, id)], Effect::Known));
        kinds.push(kernel(vec![read(0, id), write(1, BlockId(1 + index))], Effect::Known));
        kinds.push(NodeKind::Free(id));
    }
    let (recovered, _) = Pass::Dependencies.run(&chain(blocks, kinds));
    let (planned, report) = Pass::Memory.run(&recovered);
    assert_eq!(planned.validate(), Ok(()));
    assert_eq!((report.peak_bytes.after, report.critical_path.after), (size, 32));
}

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
