//! What each pass makes of a small program.

use super::run;
use crate::compile::{
    Block, BlockId, Code, Effect, ElementType, Kernel, LaunchShape, Lifetime, Node, NodeKind, Pass, PassSet, Pattern,
    Pointer, Pointwise, Program, Region, compile,
};

pub(super) fn block(size_bytes: usize, lifetime: Lifetime) -> Block {
    Block { size_bytes, lifetime }
}

pub(super) fn chain(blocks: Vec<Block>, kinds: Vec<NodeKind>) -> Program {
    let nodes = kinds.into_iter().enumerate().map(|(index, kind)| Node::new(kind, index.checked_sub(1))).collect();
    let program = Program { blocks, nodes };
    assert_eq!(program.validate(), Ok(()));
    program
}

fn all(block: usize, size_bytes: usize) -> Region {
    Region::new(BlockId(block), 0, size_bytes)
}

pub(super) fn kernel(pointers: Vec<Pointer>, effect: Effect) -> NodeKind {
    let parameters = vec![0; pointers.len()];
    let argument_bytes = vec![8; parameters.len()];
    let (name, code, launch) = ("k".into(), Code::Recorded(0), LaunchShape::default());
    NodeKind::Kernel(Kernel { name, code, launch, parameters, argument_bytes, pointers, effect })
}

/// A kernel that reads all of one block of 8 bytes and writes all of another.
pub(super) fn map(from: usize, to: usize) -> NodeKind {
    let read = Pointer::new(0, BlockId(from), 0).reading(0, 8);
    kernel(vec![read, Pointer::new(1, BlockId(to), 0).writing(0, 8)], Effect::Known)
}

fn zero(block: usize) -> NodeKind {
    NodeKind::Memset { region: all(block, 8), pattern: Pattern::ZERO }
}

fn add_into(from: usize, to: usize) -> NodeKind {
    let read = Pointer::new(0, BlockId(from), 0).reading(0, 8);
    let both = Pointer::new(1, BlockId(to), 0).reading(0, 8).writing(0, 8);
    kernel(vec![read, both], Effect::Pointwise(Box::new(Pointwise::sum(2, ElementType::F32, [1, 0], 1))))
}

const EXTERNAL: Lifetime = Lifetime::External;

fn direct(program: &Program) -> Vec<Vec<usize>> {
    program.nodes.iter().map(|node| node.dependencies.iter().map(|node| node.0).collect()).collect()
}

#[test]
fn two_branches_of_a_chain_become_parallel() {
    let program = chain(vec![block(8, EXTERNAL); 4], vec![map(0, 1), map(0, 2), map(1, 3), add_into(2, 3), map(3, 0)]);
    let (recovered, report) = Pass::Dependencies.run(&program);
    // 3 waits for what it adds and for what it adds to; 4 overwrites what 0 and 1 read, which 3 implies.
    assert_eq!(direct(&recovered), [vec![], vec![], vec![0], vec![1, 2], vec![3]]);
    assert_eq!((report.critical_path.before, report.critical_path.after), (5, 4));
}

#[test]
fn a_write_that_may_skip_bytes_leaves_earlier_results_needed() {
    let write = |is_full: bool| {
        let pointer = Pointer::new(0, BlockId(0), 0);
        kernel(vec![if is_full { pointer.writing(0, 8) } else { pointer.writing_some(0, 8) }], Effect::Known)
    };
    for (is_full, expected) in [(true, 1), (false, 2)] {
        let program = chain(vec![block(8, EXTERNAL)], vec![zero(0), write(is_full)]);
        for pass in [Pass::Dead, Pass::OverwrittenZeros] {
            assert_eq!(pass.run(&program).0.nodes.len(), expected, "{} {is_full}", pass.name());
        }
    }
}

#[test]
fn a_chain_of_results_that_nobody_reads_goes_with_its_allocations() {
    let graph = block(8, Lifetime::Graph);
    let [first, second] = [BlockId(1), BlockId(2)];
    let kinds = vec![
        NodeKind::Alloc(first),
        map(0, 1),
        NodeKind::Alloc(second),
        map(1, 2),
        NodeKind::Empty,
        NodeKind::Free(first),
        map(0, 3),
        NodeKind::Free(second),
    ];
    let program = chain(vec![block(8, EXTERNAL), graph, graph, block(8, EXTERNAL)], kinds);
    let (living, report) = Pass::Dead.run(&program);
    assert_eq!(living.nodes, [Node::new(map(0, 3), [])]);
    assert_eq!((report.num_rewrites, report.peak_bytes.before, report.peak_bytes.after), (5, 16, 0));
}

#[test]
fn an_unknown_kernel_and_what_it_may_read_stay() {
    let unknown = kernel(vec![Pointer::unknown(0, BlockId(1), 0, 8)], Effect::Unknown);
    let kinds = vec![NodeKind::Alloc(BlockId(1)), zero(1), unknown, NodeKind::Free(BlockId(1))];
    let program = chain(vec![block(8, EXTERNAL), block(8, Lifetime::Graph)], kinds);
    for pass in [Pass::Dead, Pass::OverwrittenZeros, Pass::ZeroSums] {
        assert_eq!(pass.run(&program).0, program, "{}", pass.name());
    }
}

#[test]
fn zeros_that_a_gradient_is_added_to_go_in_two_passes() {
    let graph = block(8, Lifetime::Graph);
    let kinds = vec![
        NodeKind::Alloc(BlockId(1)),
        zero(1),
        map(2, 0),
        add_into(0, 1),
        add_into(2, 1),
        map(1, 2),
        NodeKind::Free(BlockId(1)),
    ];
    let program = chain(vec![block(8, EXTERNAL), graph, block(8, EXTERNAL)], kinds);
    let passes = PassSet::none().with(Pass::ZeroSums).with(Pass::OverwrittenZeros);
    let compiled = compile(&program, &passes).expect("valid");
    let copy = NodeKind::Copy { source: all(0, 8), destination: all(1, 8) };
    let kinds: Vec<&NodeKind> = compiled.program.nodes.iter().map(|node| &node.kind).collect();
    // The second sum adds to what is no longer zero.
    assert_eq!(kinds[1..4], [&map(2, 0), &copy, &add_into(2, 1)]);
    assert_eq!(compiled.reports.iter().map(|report| report.num_rewrites).collect::<Vec<_>>(), [1, 1]);
    assert_eq!(run(&compiled.program, None), run(&program, None));
    // Bit by bit: the sum stays, with a zero that nobody has to fill in, and takes the second with it.
    let exact = compile(&program, &PassSet::exact()).expect("valid").program;
    assert_eq!(exact.nodes.len(), 3);
    assert_eq!(run(&exact, None), run(&program, None));
}

#[test]
fn what_no_kernel_computed_keeps_its_sum_with_zero() {
    let kinds = vec![NodeKind::Alloc(BlockId(1)), zero(1), add_into(0, 1), map(1, 2), NodeKind::Free(BlockId(1))];
    let blocks = vec![block(8, EXTERNAL), block(8, Lifetime::Graph), block(8, EXTERNAL)];
    // Who filled the block may have left a zero with a sign.
    let program = chain(blocks, kinds);
    assert_eq!(Pass::ZeroSums.run(&program).0, program);
}

#[test]
fn what_is_computed_to_be_copied_is_computed_there() {
    let copy = |start| NodeKind::Copy { source: all(1, 8), destination: Region::new(BlockId(2), start, start + 8) };
    let writes_at = |start| {
        let read = Pointer::new(0, BlockId(0), 0).reading(0, 8);
        kernel(vec![read, Pointer::new(1, BlockId(2), start).writing(start, start + 8)], Effect::Known)
    };
    let read = |start| kernel(vec![Pointer::new(0, BlockId(2), start).reading(start, start + 8)], Effect::Known);
    let (alloc, free) = (NodeKind::Alloc(BlockId(1)), NodeKind::Free(BlockId(1)));
    let placed = |kinds: Vec<NodeKind>| {
        let blocks = vec![block(8, EXTERNAL), block(8, Lifetime::Graph), block(64, EXTERNAL)];
        let (program, report) = Pass::Placement.run(&chain(blocks, kinds));
        assert_eq!(program.validate(), Ok(()));
        (program.nodes.into_iter().map(|node| node.kind).collect::<Vec<_>>(), report.num_rewrites)
    };
    let whole = |middle: Vec<NodeKind>| [vec![alloc.clone()], middle, vec![free.clone()]].concat();
    // The kernel writes where the copy would have gone.
    assert_eq!(placed(whole(vec![map(0, 1), copy(16)])), (vec![writes_at(16)], 1));
    // Readers before the copy and after it follow.
    assert_eq!(placed(whole(vec![map(0, 1), copy(32), read(32)])), (vec![writes_at(32), read(32)], 1));
    // What was there is read before anybody writes.
    assert_eq!(placed(whole(vec![read(16), map(0, 1), copy(16)])), (vec![read(16), writes_at(16)], 1));
    for (why, middle) in [
        ("what was there is still read", vec![map(0, 1), read(16), copy(16)]),
        ("the block goes on changing", vec![map(0, 1), copy(16), map(0, 1)]),
        ("the destination changes while the block is read", vec![map(0, 1), copy(16), writes_at(16), map(1, 0)]),
        ("the address would move by too little", vec![map(0, 1), copy(8)]),
        (
            "an unknown kernel may do anything",
            vec![kernel(vec![Pointer::unknown(0, BlockId(1), 0, 8)], Effect::Unknown), copy(16)],
        ),
    ] {
        assert_eq!(placed(whole(middle)).1, 0, "{why}");
    }
}

#[test]
fn blocks_share_bytes_in_the_recorded_order_and_keep_apart_where_they_may_run_at_once() {
    let graph = block(300, Lifetime::Graph);
    let piece = |of: usize, result: usize| {
        [NodeKind::Alloc(BlockId(of)), map(0, of), map(of, result), NodeKind::Free(BlockId(of))]
    };
    let blocks = vec![block(8, EXTERNAL), graph, graph, block(8, EXTERNAL), block(8, EXTERNAL)];
    let program = chain(blocks, [piece(1, 3), piece(2, 4)].concat());
    let (shared, report) = Pass::Memory.run(&program);
    assert_eq!((report.peak_bytes.before, report.peak_bytes.after), (300, 300));
    assert_eq!(Pass::Dependencies.run(&shared).1.critical_path.after, 4);
    let (recovered, _) = Pass::Dependencies.run(&program);
    let (apart, report) = Pass::Memory.run(&recovered);
    assert_eq!((report.peak_bytes.after, report.critical_path.after), (512 + 300, 2));
    assert_eq!(run(&shared, None), run(&apart, None));
}

#[test]
fn small_blocks_fill_the_lowest_gap() {
    let sizes = [1000, 100, 300, 290];
    let blocks = sizes.iter().map(|&size| block(size, Lifetime::Graph));
    let live = |ids: &[usize]| {
        let pointers = ids.iter().enumerate().map(|(word, &id)| Pointer::new(word, BlockId(id), 0).writing(0, 8));
        kernel(pointers.collect(), Effect::Known)
    };
    let mut kinds: Vec<NodeKind> = (0..4).map(|id| NodeKind::Alloc(BlockId(id))).collect();
    // Placed in the order 0, 2, 3, 1: 2 goes behind 0; 3 and 1 go where 0 was and do not reach 2.
    kinds.extend([live(&[0, 2]), live(&[2, 1, 3])]);
    kinds.extend((0..4).map(|id| NodeKind::Free(BlockId(id))));
    let program = chain(blocks.collect(), kinds);
    let (planned, report) = Pass::Memory.run(&program);
    let offsets = |node: usize| match &planned.nodes[node].kind {
        NodeKind::Kernel(kernel) => kernel.pointers.iter().map(|pointer| pointer.offset_bytes).collect(),
        _ => Vec::new(),
    };
    assert_eq!([offsets(0), offsets(1)], [vec![0, 1024], vec![1024, 512, 0]]);
    assert_eq!((report.peak_bytes.before, report.peak_bytes.after), (1690, 1324));
}
