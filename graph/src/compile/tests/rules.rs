//! Each rule of programs, broken once.

use std::collections::BTreeMap;

use super::run;
use crate::compile::work::taken;
use crate::compile::{
    Block, BlockId, Code, CompileError, Effect, ElementType, InterpretError, Kernel, LaunchShape, Lifetime, MAX_NODES,
    Node, NodeIndex, NodeKind, PassSet, Pattern, Pointer, Pointwise, Program, ProgramError, Region, compile, interpret,
    perceptron,
};

const RESULT: BlockId = BlockId(0);
const SCRATCH: BlockId = BlockId(1);

/// Nodes: 0 alloc, 1 memset of the scratch block, 2 sum into itself, 3 unknown kernel, 4 copy to the result, 5 free.
fn valid() -> Program {
    let kernel = |name: &str, pointers: Vec<Pointer>, effect| {
        let parameters = vec![0; pointers.len()];
        let argument_bytes = vec![8; parameters.len()];
        let (name, code, launch) = (name.into(), Code::Recorded(0), LaunchShape::default());
        NodeKind::Kernel(Kernel { name, code, launch, parameters, argument_bytes, pointers, effect })
    };
    let terms =
        vec![Pointer::new(0, SCRATCH, 0).reading(0, 8).writing(0, 8), Pointer::new(1, SCRATCH, 8).reading(8, 16)];
    let source = Region::new(SCRATCH, 0, 16);
    let kinds = vec![
        NodeKind::Alloc(SCRATCH),
        NodeKind::Memset { region: source, pattern: Pattern { value: 0x0102, width_bytes: 2 } },
        kernel("add", terms, Effect::Pointwise(Box::new(Pointwise::sum(8, ElementType::U8, [0, 1], 0)))),
        kernel("mystery", vec![Pointer::unknown(0, SCRATCH, 4, 16)], Effect::Unknown),
        NodeKind::Copy { source, destination: Region::new(RESULT, 0, 16) },
        NodeKind::Free(SCRATCH),
    ];
    let nodes = kinds.into_iter().enumerate().map(|(index, kind)| Node::new(kind, index.checked_sub(1))).collect();
    let block = |lifetime| Block { size_bytes: 16, lifetime };
    Program { blocks: vec![block(Lifetime::External), block(Lifetime::Graph)], nodes }
}

fn pointer(program: &mut Program, node: usize, index: usize) -> &mut Pointer {
    match &mut program.nodes[node].kind {
        NodeKind::Kernel(kernel) => &mut kernel.pointers[index],
        other => panic!("no kernel: {other:?}"),
    }
}

fn pointwise(program: &mut Program, node: usize) -> &mut Pointwise {
    match &mut program.nodes[node].kind {
        NodeKind::Kernel(Kernel { effect: Effect::Pointwise(pointwise), .. }) => pointwise,
        other => panic!("not element-wise: {other:?}"),
    }
}

fn memset(region: Region, value: u32, width_bytes: usize) -> NodeKind {
    NodeKind::Memset { region, pattern: Pattern { value, width_bytes } }
}

fn copy(source: Region, destination: Region) -> NodeKind {
    NodeKind::Copy { source, destination }
}

#[test]
fn every_broken_rule_has_its_error() {
    type Case = (&'static str, fn(&mut Program), ProgramError);
    let node = NodeIndex;
    let lifetime =
        |block, allocations, releases| ProgramError::Lifetime { block: BlockId(block), allocations, releases };
    let range = |index, block| ProgramError::Range { node: NodeIndex(index), block: BlockId(block) };
    let bad = |index, pointer| ProgramError::Pointer { node: NodeIndex(index), pointer };
    let operands = |index| ProgramError::Operands { node: NodeIndex(index) };
    let cases: Vec<Case> = vec![
        ("no bytes", |p| p.blocks[1].size_bytes = 0, ProgramError::EmptyBlock { block: SCRATCH }),
        (
            "forward",
            |p| p.nodes[2].dependencies = vec![NodeIndex(4)],
            ProgramError::Order { node: node(2), dependency: node(4) },
        ),
        (
            "itself",
            |p| p.nodes[2].dependencies = vec![NodeIndex(2)],
            ProgramError::Order { node: node(2), dependency: node(2) },
        ),
        (
            "twice",
            |p| p.nodes[2].dependencies = vec![NodeIndex(1); 2],
            ProgramError::Order { node: node(2), dependency: node(1) },
        ),
        ("past the end", |p| p.nodes[1].kind = memset(Region::new(SCRATCH, 8, 17), 0, 1), range(1, 1)),
        ("nothing", |p| p.nodes[1].kind = memset(Region::new(SCRATCH, 8, 8), 0, 1), range(1, 1)),
        ("no such block", |p| p.nodes[1].kind = memset(Region::new(BlockId(9), 0, 1), 0, 1), range(1, 9)),
        ("no such block to free", |p| p.nodes[5].kind = NodeKind::Free(BlockId(7)), range(5, 7)),
        ("no word", |p| pointer(p, 2, 1).word_index = 2, bad(2, 1)),
        ("a word for two", |p| pointer(p, 2, 1).word_index = 0, bad(2, 1)),
        ("address outside", |p| pointer(p, 2, 1).offset_bytes = 17, bad(2, 1)),
        ("range of another block", |p| pointer(p, 2, 1).block = RESULT, bad(2, 1)),
        ("unknown but read only", |p| pointer(p, 3, 0).write = None, bad(3, 0)),
        ("unknown but small", |p| *pointer(p, 3, 0) = Pointer::unknown(0, SCRATCH, 0, 8), bad(3, 0)),
        (
            "unknown but full",
            |p| *pointer(p, 3, 0) = Pointer::new(0, SCRATCH, 0).reading(0, 16).writing(0, 16),
            bad(3, 0),
        ),
        ("sum of some", |p| *pointer(p, 2, 0) = pointer(p, 2, 0).writing_some(0, 8), bad(2, 0)),
        ("sum with two outputs", |p| *pointer(p, 2, 1) = pointer(p, 2, 1).writing(8, 16), bad(2, 1)),
        ("sum of unequal length", |p| *pointer(p, 2, 1) = pointer(p, 2, 1).reading(8, 15), bad(2, 1)),
        ("sum of shifted bytes", |p| *pointer(p, 2, 1) = Pointer::new(1, SCRATCH, 7).reading(7, 15), operands(2)),
        ("sum of nothing", |p| pointwise(p, 2).operands[1].pointer = 2, operands(2)),
        ("sum of types", |p| pointwise(p, 2).output_type = ElementType::F32, operands(2)),
        ("step of later ones", |p| pointwise(p, 2).steps.swap(1, 2), operands(2)),
        ("width", |p| p.nodes[1].kind = memset(Region::new(SCRATCH, 0, 12), 0, 3), operands(1)),
        ("value too wide", |p| p.nodes[1].kind = memset(Region::new(SCRATCH, 0, 16), 256, 1), operands(1)),
        ("no multiple", |p| p.nodes[1].kind = memset(Region::new(SCRATCH, 0, 15), 0, 2), operands(1)),
        ("lengths", |p| p.nodes[4].kind = copy(Region::new(SCRATCH, 0, 8), Region::new(RESULT, 0, 9)), operands(4)),
        (
            "onto itself",
            |p| p.nodes[4].kind = copy(Region::new(SCRATCH, 0, 8), Region::new(SCRATCH, 7, 15)),
            operands(4),
        ),
        ("never freed", |p| p.nodes[5].kind = NodeKind::Empty, lifetime(1, 1, 0)),
        ("never allocated", |p| p.nodes[0].kind = NodeKind::Empty, lifetime(1, 0, 1)),
        ("neither", |p| (p.nodes[0].kind, p.nodes[5].kind) = (NodeKind::Empty, NodeKind::Empty), lifetime(1, 0, 0)),
        ("freed twice", |p| p.nodes[4].kind = NodeKind::Free(SCRATCH), lifetime(1, 1, 2)),
        ("not ours", |p| p.blocks[1].lifetime = Lifetime::External, lifetime(1, 1, 1)),
        (
            "before the allocation",
            |p| p.nodes[1].dependencies.clear(),
            ProgramError::OutsideLifetime { node: node(5), block: SCRATCH },
        ),
        (
            "beside the allocation",
            |p| {
                p.nodes[1].dependencies.clear();
                p.nodes[2].dependencies = vec![NodeIndex(0), NodeIndex(1)];
            },
            ProgramError::OutsideLifetime { node: node(1), block: SCRATCH },
        ),
        (
            "beside the release",
            |p| p.nodes[5].dependencies = vec![NodeIndex(3)],
            ProgramError::OutsideLifetime { node: node(4), block: SCRATCH },
        ),
        (
            "a race",
            |p| {
                p.nodes[2].dependencies = vec![NodeIndex(0)];
                p.nodes[3].dependencies = vec![NodeIndex(1), NodeIndex(2)];
            },
            ProgramError::Conflict { first: node(1), second: node(2), block: SCRATCH },
        ),
    ];
    assert_eq!(valid().validate(), Ok(()));
    for (name, break_rule, expected) in cases {
        let mut program = valid();
        break_rule(&mut program);
        assert_eq!(program.validate(), Err(expected), "{name}");
        assert_eq!(compile(&program, &PassSet::all()), Err(CompileError::Input(expected)), "{name}");
    }
}

#[test]
fn two_reads_of_the_same_bytes_need_no_order() {
    let mut program = valid();
    program.blocks.push(Block { size_bytes: 8, lifetime: Lifetime::External });
    program.nodes.insert(4, Node::new(copy(Region::new(SCRATCH, 4, 12), Region::new(BlockId(2), 0, 8)), [3]));
    program.nodes[5] = Node::new(program.nodes[5].kind.clone(), [3]);
    program.nodes[6] = Node::new(program.nodes[6].kind.clone(), [4, 5]);
    assert_eq!(program.validate(), Ok(()));
}

#[test]
fn a_program_that_is_too_long_is_refused_before_anything_is_made_of_it() {
    let of = |count: usize| Program {
        blocks: Vec::new(),
        nodes: (0..count).map(|index| Node::new(NodeKind::Empty, index.checked_sub(1))).collect(),
    };
    assert!(compile(&of(MAX_NODES), &PassSet::all()).is_ok());
    let refused = compile(&of(MAX_NODES + 1), &PassSet::all()).unwrap_err();
    assert_eq!(refused, CompileError::TooLong { nodes: MAX_NODES + 1 });
}

#[test]
fn what_passes_do_grows_with_the_number_of_operations_and_not_with_its_square() {
    let per_node = [220, 440].map(|layers| {
        let program = perceptron(layers).unwrap();
        let _ = taken();
        let compiled = compile(&program, &PassSet::all()).unwrap();
        assert!(compiled.program.nodes.len() * 2 < program.nodes.len());
        taken() as f64 / program.nodes.len() as f64
    });
    // A little more for deeper trees; what grows with the square would double.
    assert!(per_node[1] < 1.15 * per_node[0], "{per_node:?}");
}

#[test]
fn the_interpreter_refuses_wrong_orders_missing_inputs_and_undefined_bytes() {
    let program = valid();
    let order = |order: &[usize]| order.iter().copied().map(NodeIndex).collect::<Vec<_>>();
    for wrong in [&[0, 1, 2, 3, 4][..], &[0, 1, 2, 3, 4, 4], &[0, 2, 1, 3, 4, 5], &[0, 1, 2, 3, 4, 6]] {
        assert_eq!(run(&program, Some(&order(wrong))), Err(InterpretError::Order), "{wrong:?}");
    }
    for input in [BTreeMap::new(), BTreeMap::from([(RESULT, vec![0; 15])])] {
        assert_eq!(interpret(&program, None, &input), Err(InterpretError::Input { block: RESULT }));
    }
    let mut undefined = valid();
    undefined.nodes[1].kind = memset(Region::new(SCRATCH, 0, 15), 0, 1);
    let error = InterpretError::Undefined { node: NodeIndex(2), block: SCRATCH };
    assert_eq!(run(&undefined, None), Err(error));
}

#[test]
fn the_interpreter_computes_memsets_copies_and_sums() {
    let mut program = valid();
    program.nodes[3].kind = NodeKind::Empty;
    let found = run(&program, None).expect("a result");
    let half = [2_u8, 1].repeat(4);
    let sums: Vec<u8> = half.iter().map(|byte| 2 * byte).collect();
    assert_eq!(found[&RESULT], [sums, half].concat());
}
