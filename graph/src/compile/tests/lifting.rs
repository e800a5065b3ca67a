//! Recordings made by hand, and the programs that they become.

use std::ops::Range;

use super::recordings::{
    Device, PRODUCT, SUM_OF_PARTS, alloc, chain, free, kernel, launch, of_library, single, unary, word, words, zeros,
};
use crate::compile::{
    BlockId, Code, DeclaredEffect, Effect, Kernel, Lifetime, LiftError, Lifted, Node, NodeKind, PassSet, Recorded,
    RecordedKind, Region, compile, lift,
};

const INPUT: u64 = 0x100_0000;
const RESULT: u64 = 0x200_0000;
const WORKSPACE: u64 = 0x300_0000;
const FIRST: u64 = 0x7000_0000;
const SECOND: u64 = 0x7000_1000;

fn device() -> Device {
    Device::with(&[(INPUT, 256), (RESULT, 256), (WORKSPACE, 1024)])
}

fn lifted(recorded: &Recorded) -> Lifted {
    let lifted = lift(recorded, &mut device()).unwrap();
    assert_eq!(lifted.program.validate(), Ok(()), "{:#?}", lifted.program);
    assert_eq!(lifted.addresses.len(), lifted.program.blocks.len());
    lifted
}

fn kernel_at(lifted: &Lifted, node: usize) -> &Kernel {
    match &lifted.program.nodes[node].kind {
        NodeKind::Kernel(kernel) => kernel,
        other => panic!("{other:?}"),
    }
}

/// The bytes read and written through each pointer, the second with whether all of them are.
type Reach = (Option<(usize, usize)>, Option<(usize, usize, bool)>);

fn reach(lifted: &Lifted, node: usize) -> Vec<Reach> {
    let read = |region: Region| (region.start, region.end);
    let pointers = kernel_at(lifted, node).pointers.iter();
    pointers
        .map(|pointer| {
            let written = pointer.write.map(|write| (write.region.start, write.region.end, write.is_full));
            (pointer.read.map(read), written)
        })
        .collect()
}

/// Addresses and lengths.
type Spans<'a> = &'a [(u64, usize)];

fn reads(bytes: usize) -> Reach {
    (Some((0, bytes)), None)
}

fn fills(bytes: usize) -> Reach {
    (None, Some((0, bytes, true)))
}

fn both(bytes: usize) -> Reach {
    (Some((0, bytes)), Some((0, bytes, false)))
}

fn declaring(mut recorded: Recorded, nodes: Range<usize>, reads: &[(u64, usize)], writes: &[(u64, usize)]) -> Recorded {
    recorded.declared.push(DeclaredEffect { nodes, reads: reads.to_vec(), writes: writes.to_vec() });
    recorded
}

/// A block of 64 bytes that holds data when it is used, and one of 64 bytes that nothing was written to, around nodes.
fn between(nodes: Vec<RecordedKind>) -> Recorded {
    let before = vec![alloc(FIRST, 64), unary("ucopy_f32", 16, INPUT, FIRST), alloc(SECOND, 64)];
    chain([before, nodes, vec![free(FIRST), free(SECOND)]].concat())
}

#[test]
fn one_address_allocated_twice_is_two_blocks() {
    let recorded = chain(vec![
        alloc(FIRST, 64),
        unary("uexp_f32", 16, INPUT, FIRST),
        unary("uneg_f32", 16, FIRST, RESULT),
        free(FIRST),
        alloc(FIRST, 32),
        unary("uneg_f32", 8, RESULT, FIRST),
        unary("uabs_f32", 4, FIRST + 16, INPUT + 32),
        free(FIRST),
    ]);
    let lifted = lifted(&recorded);
    let kinds: Vec<_> = lifted.program.blocks.iter().map(|block| (block.size_bytes, block.lifetime)).collect();
    let (owned, external) = (Lifetime::Graph, Lifetime::External);
    assert_eq!(kinds, [(64, owned), (256, external), (256, external), (32, owned)]);
    assert_eq!(lifted.addresses, [None, Some(INPUT), Some(RESULT), None]);
    let pointers = &kernel_at(&lifted, 6).pointers;
    assert_eq!((pointers[0].block, pointers[0].offset_bytes), (BlockId(3), 16));
    assert_eq!(pointers[0].read, Some(Region::new(BlockId(3), 16, 32)));
    assert!(pointers[1].read.is_none() && pointers[1].offset_bytes == 32);
    assert!(matches!(kernel_at(&lifted, 1).effect, Effect::Pointwise(_)));
    assert!(lifted.unknown_kernels.is_empty());
    assert!(compile(&lifted.program, &PassSet::all()).is_ok());
}

#[test]
fn dimensions_in_memory_are_read_and_count_as_an_operand() {
    let arguments = [6, 2, WORKSPACE + 16, INPUT, RESULT].map(word).to_vec();
    let recorded = chain(vec![kernel("uexp_f32", arguments)]);
    let lifted = lift(&recorded, &mut device().holding(WORKSPACE + 16, &[2, 3, 1, 2])).unwrap();
    let pointers = &kernel_at(&lifted, 0).pointers;
    assert_eq!(pointers[0].read, Some(Region::new(pointers[0].block, 16, 48)));
    assert!(matches!(&kernel_at(&lifted, 0).effect, Effect::Pointwise(of) if of.operands[0].strides.is_some()));
    // The words of pointers are blank, numbers are not.
    assert_eq!(kernel_at(&lifted, 0).parameters, [6, 2, 0, 0, 0]);
}

#[test]
fn dimensions_that_a_node_may_overwrite_are_not_trusted() {
    let arguments = [6, 2, WORKSPACE + 16, INPUT, RESULT].map(word).to_vec();
    let read = kernel("uexp_f32", arguments);
    let device = || device().holding(WORKSPACE + 16, &[2, 3, 1, 2]);
    for (overwritten, is_known) in [(WORKSPACE + 16 + 31, false), (WORKSPACE + 48, true), (WORKSPACE + 15, true)] {
        let recorded = chain(vec![read.clone(), zeros(overwritten, 1)]);
        let lifted = lift(&recorded, &mut device()).unwrap();
        assert_eq!(kernel_at(&lifted, 0).effect != Effect::Unknown, is_known, "{overwritten:#x}");
        assert_eq!(!lifted.unknown_kernels.contains_key("uexp_f32"), is_known);
    }
    // Dimensions in memory of the graph are not there when it is lifted.
    let inside = kernel("uexp_f32", [6, 2, FIRST, INPUT, RESULT].map(word).to_vec());
    let recorded = chain(vec![alloc(FIRST, 64), zeros(FIRST, 64), inside, free(FIRST)]);
    let lifted = lift(&recorded, &mut device().holding(FIRST, &[2, 3, 1, 2])).unwrap();
    assert_eq!(kernel_at(&lifted, 2).effect, Effect::Unknown);
}

#[test]
fn a_null_input_works_in_place() {
    let lifted = lifted(&chain(vec![unary("uexp_f32", 16, 0, RESULT)]));
    assert_eq!(reach(&lifted, 0), [(Some((0, 64)), Some((0, 64, true)))]);
}

#[test]
fn a_kernel_that_runs_past_its_memory_is_unknown() {
    let lifted = lifted(&chain(vec![unary("uexp_f32", 65, INPUT, RESULT)]));
    assert_eq!(kernel_at(&lifted, 0).effect, Effect::Unknown);
    assert_eq!(reach(&lifted, 0), [both(256), both(256)]);
}

#[test]
fn unknown_kernels_reach_all_of_every_block_that_any_word_points_into() {
    // A structure with two addresses, a number that fits no memory, and four bytes too many.
    let structure = [&word(INPUT + 8)[..], &word(0x1_0000_0020), &word(FIRST), &[1, 2, 3, 4]].concat();
    let recorded = chain(vec![
        alloc(FIRST, 64),
        kernel("mystery", vec![single(1.0), structure]),
        words("mystery", &[FIRST + 64, FIRST]),
        free(FIRST),
    ]);
    let lifted = lifted(&recorded);
    assert_eq!(reach(&lifted, 1), [both(256), both(64)]);
    let words: Vec<usize> = kernel_at(&lifted, 1).pointers.iter().map(|pointer| pointer.word_index).collect();
    assert_eq!(words, [1, 3]);
    assert_eq!(kernel_at(&lifted, 1).argument_bytes, [4, 28]);
    assert_eq!(kernel_at(&lifted, 1).parameters, [u64::from(1.0_f32.to_bits()), 0, 0x1_0000_0020, 0, 0x0403_0201]);
    // One past the end is no address of the block.
    assert_eq!(reach(&lifted, 2), [both(64)]);
    assert_eq!(lifted.unknown_kernels["mystery"], 2);
}

#[test]
fn addresses_of_memory_that_is_not_allocated_then_are_numbers() {
    let recorded = chain(vec![
        words("mystery", &[FIRST, INPUT]),
        alloc(FIRST, 64),
        zeros(FIRST, 64),
        free(FIRST),
        words("mystery", &[FIRST, INPUT]),
    ]);
    let lifted = lifted(&recorded);
    assert_eq!((reach(&lifted, 0), reach(&lifted, 4)), (vec![both(256)], vec![both(256)]));
}

#[test]
fn a_matrix_product_writes_the_operand_that_nothing_has_written() {
    let product = of_library(words(PRODUCT, &[FIRST, RESULT, SECOND, WORKSPACE]));
    let lifted = lifted(&between(vec![unary("uexp_f32", 16, INPUT, RESULT), product.clone()]));
    assert_eq!(reach(&lifted, 4), [reads(64), reads(256), fills(64), both(1024)]);
    assert_eq!(kernel_at(&lifted, 4).effect, Effect::Known);
    // Memory outside the graph that nothing else uses may be workspace, even if a memset clears it.
    let lifted = self::lifted(&between(vec![zeros(WORKSPACE, 64), product]));
    assert_eq!(reach(&lifted, 4), [reads(64), both(256), fills(64), both(1024)]);
}

#[test]
fn zeros_that_a_matrix_product_adds_to_are_read() {
    let lifted = lifted(&between(vec![zeros(SECOND, 64), of_library(words(PRODUCT, &[FIRST, SECOND]))]));
    assert_eq!(reach(&lifted, 4), [reads(64), both(64)]);
    assert_eq!(kernel_at(&lifted, 4).effect, Effect::Known);
}

#[test]
fn a_matrix_product_with_no_output_or_two_is_unknown() {
    let none = lifted(&between(vec![
        zeros(SECOND, 64),
        unary("uexp_f32", 16, FIRST, SECOND),
        of_library(words(PRODUCT, &[FIRST])),
    ]));
    assert_eq!(kernel_at(&none, 5).effect, Effect::Unknown);
    let third = 0x7000_2000;
    let two = lifted(&between(vec![
        alloc(third, 64),
        of_library(words(PRODUCT, &[FIRST, SECOND, third])),
        of_library(words(PRODUCT, &[FIRST, SECOND, third])),
        free(third),
    ]));
    assert_eq!(reach(&two, 4), [both(64); 3]);
    assert_eq!(kernel_at(&two, 4).effect, Effect::Unknown);
    // By now all three hold data.
    assert_eq!((kernel_at(&two, 5).effect.clone(), two.unknown_kernels[PRODUCT]), (Effect::Unknown, 2));
}

#[test]
fn a_kernel_that_is_only_named_like_a_product_is_unknown_and_keeps_its_place() {
    // It adds to FIRST, and to SECOND as well, which is read before and after.
    for (name, is_known) in [("my_gemm_accumulate", false), (PRODUCT, false), ("my_gemm_accumulate", true)] {
        let of = |kind| if is_known { of_library(kind) } else { kind };
        let lifted = lifted(&between(vec![
            unary("uexp_f32", 16, INPUT, SECOND),
            unary("usqr_f32", 16, SECOND, RESULT),
            zeros(FIRST, 64),
            of(words(name, &[INPUT, SECOND, FIRST])),
            unary("usin_f32", 16, SECOND, RESULT + 64),
        ]));
        assert_eq!(kernel_at(&lifted, 6).effect, Effect::Unknown, "{name}");
        assert_eq!(lifted.unknown_kernels[name], 1);
        let compiled = compile(&lifted.program, &PassSet::all()).unwrap().program;
        let at = |code: usize| {
            let is_it = |node: &Node| matches!(&node.kind, NodeKind::Kernel(of) if of.code == Code::Recorded(code));
            compiled.nodes.iter().position(is_it)
        };
        let before = super::closure(&compiled);
        let accumulates = at(6).expect("a kernel of unknown effect stays");
        for (position, set) in before.iter().enumerate() {
            let touches = compiled.nodes[position].kind.reads().iter().any(|region| {
                let accumulated = &compiled.nodes[accumulates].kind;
                accumulated.writes().iter().any(|write| write.region.overlaps(region))
            });
            let is_ordered = position == accumulates || set.contains(&accumulates);
            assert!(!touches || is_ordered || before[accumulates].contains(&position), "{name}: node {position}");
        }
    }
}

#[test]
fn kernels_that_hand_a_result_on_in_a_workspace_stay_ordered() {
    // Parts of the sum in workspace outside the graph, and in a block of the graph.
    let third = 0x7000_2000;
    for workspace in [WORKSPACE, third] {
        let recorded = between(vec![
            alloc(third, 1024),
            of_library(words(PRODUCT, &[FIRST, INPUT, workspace])),
            of_library(words(SUM_OF_PARTS, &[workspace, SECOND])),
            unary("uexp_f32", 16, SECOND, RESULT),
            free(third),
        ]);
        let lifted = lifted(&recorded);
        let compiled = compile(&lifted.program, &PassSet::all()).unwrap().program;
        let position = |name: &str| {
            compiled.nodes.iter().position(|node| matches!(&node.kind, NodeKind::Kernel(of) if of.name == name))
        };
        let before = super::closure(&compiled);
        let (parts, sum) = (position(PRODUCT).unwrap(), position(SUM_OF_PARTS).unwrap());
        assert!(before[sum].contains(&parts), "{workspace:#x}");
    }
}

#[test]
fn declared_effects_come_before_everything_else() {
    let launch = words("uexp_f32", &[FIRST, SECOND, RESULT + 16, 7]);
    let recorded = between(vec![launch]);
    let declared = declaring(recorded, 3..4, &[(FIRST, 48), (RESULT, 64)], &[(SECOND, 64), (RESULT + 8, 56)]);
    let lifted = lifted(&declared);
    assert_eq!(reach(&lifted, 3), [reads(48), fills(64), (Some((0, 64)), Some((8, 64, true)))]);
    assert_eq!(kernel_at(&lifted, 3).effect, Effect::Known);
    assert!(lifted.unknown_kernels.is_empty());
}

#[test]
fn a_pointer_that_no_declared_span_covers_reaches_all_of_its_block() {
    let recorded = between(vec![words("mine", &[FIRST, SECOND, WORKSPACE + 8])]);
    let lifted = lifted(&declaring(recorded, 3..4, &[(FIRST, 64)], &[(SECOND, 64)]));
    assert_eq!(reach(&lifted, 3), [reads(64), fills(64), both(1024)]);
    assert_eq!(kernel_at(&lifted, 3).effect, Effect::Known);
}

#[test]
fn a_declared_span_that_nothing_reaches_or_that_no_memory_holds_makes_all_launches_unknown() {
    let recorded = between(vec![words("mine", &[FIRST, SECOND]), words("mine", &[SECOND, INPUT])]);
    let spans: [(Spans<'_>, Spans<'_>); 4] = [
        (&[(FIRST, 64), (RESULT, 8)], &[(SECOND, 64)]),
        (&[(FIRST, 64)], &[(SECOND, 65)]),
        (&[(FIRST, 64)], &[(0xdead_0000, 64)]),
        (&[(FIRST, 64)], &[]),
    ];
    for (reads, writes) in spans {
        let lifted = lifted(&declaring(recorded.clone(), 3..5, reads, writes));
        let first_is_known = writes.is_empty();
        assert_eq!(kernel_at(&lifted, 3).effect != Effect::Unknown, first_is_known, "{reads:x?} {writes:x?}");
    }
    let missing = lift(&declaring(recorded.clone(), 3..9, &[], &[]), &mut device());
    assert_eq!(missing, Err(LiftError::Declared { index: 0, end: 9, num_nodes: 7 }));
    let empty = lifted(&declaring(recorded, 3..5, &[], &[]));
    assert_eq!(reach(&empty, 3), [both(64), both(64)]);
}

#[test]
fn of_several_declared_launches_the_last_leaves_the_output_written() {
    let recorded = between(vec![
        zeros(SECOND, 64),
        words("parts", &[FIRST, SECOND, WORKSPACE]),
        words("sum", &[WORKSPACE, SECOND]),
    ]);
    let lifted = lifted(&declaring(recorded, 3..6, &[(FIRST, 64)], &[(SECOND, 64)]));
    assert_eq!(reach(&lifted, 4), [reads(64), both(64), both(1024)]);
    assert_eq!(reach(&lifted, 5), [both(1024), (Some((0, 64)), Some((0, 64, true)))]);
    // So the zeros and the parts are not dropped.
    let compiled = compile(&lifted.program, &PassSet::all()).unwrap().program;
    let num_kept = compiled.nodes.iter().filter(|node| !matches!(node.kind, NodeKind::Empty)).count();
    assert_eq!(num_kept, 4, "{compiled:#?}");
    let alone = between(vec![words("parts", &[FIRST, WORKSPACE]), words("sum", &[WORKSPACE, SECOND])]);
    let lifted = self::lifted(&declaring(alone, 3..5, &[(FIRST, 64)], &[(SECOND, 64)]));
    assert_eq!(reach(&lifted, 4), [both(1024), fills(64)]);
}

#[test]
fn memsets_with_a_pitch_become_rows() {
    let memset = |value_bytes, width, height, pitch_bytes| RecordedKind::Memset {
        address: RESULT,
        value: 0x1_0203,
        value_bytes,
        width,
        height,
        pitch_bytes,
    };
    let regions = |kind: RecordedKind| -> Vec<(usize, usize)> {
        let lifted = lifted(&chain(vec![kind, unary("uexp_f32", 4, RESULT, INPUT)]));
        // What follows waits for every row.
        let last = lifted.program.nodes.last().unwrap();
        assert_eq!(last.dependencies.len(), lifted.program.nodes.len() - 1);
        let filled = lifted.program.nodes.iter().flat_map(|node| match node.kind {
            NodeKind::Memset { region, pattern } => {
                assert_eq!(u64::from(pattern.value) >> (8 * pattern.width_bytes), 0);
                Some((region.start, region.end))
            }
            _ => None,
        });
        filled.collect()
    };
    assert_eq!(regions(memset(2, 4, 3, 16)), [(0, 8), (16, 24), (32, 40)]);
    assert_eq!(regions(memset(2, 8, 3, 16)), [(0, 48)]);
    assert_eq!(regions(memset(4, 8, 1, 99)), [(0, 32)]);
    assert_eq!(regions(memset(1, 0, 1, 0)), []);
    for kind in [memset(1, 1, 65, 2), memset(1, 4, 2, 3), memset(3, 1, 1, 0), memset(4, usize::MAX, 2, 0)] {
        let refused = lift(&chain(vec![kind]), &mut device());
        assert!(matches!(refused, Err(LiftError::Unsupported { node: 0, .. })), "{refused:?}");
    }
}

#[test]
fn recordings_that_contradict_themselves_are_refused() {
    let other = RecordedKind::Other("a host call".into());
    let copy = |source, destination, bytes| RecordedKind::Copy { source, destination, bytes };
    let cases = [
        (vec![other], LiftError::Node { node: 0, kind: "a host call".into() }),
        (vec![free(INPUT)], LiftError::Free { node: 0, address: INPUT }),
        (vec![alloc(FIRST, 8), free(FIRST), free(FIRST)], LiftError::Free { node: 2, address: FIRST }),
        (vec![alloc(FIRST, 8), alloc(FIRST, 8)], LiftError::Overlap { node: 1, address: FIRST }),
        (vec![alloc(FIRST, 8), alloc(FIRST - 4, 8)], LiftError::Overlap { node: 1, address: FIRST - 4 }),
        (vec![zeros(INPUT, 8), alloc(INPUT + 16, 8)], LiftError::Overlap { node: 0, address: INPUT }),
        (vec![alloc(FIRST, 8)], LiftError::NeverFreed { address: FIRST }),
        (vec![zeros(0xdead_0000, 8)], LiftError::Address { node: 0, address: 0xdead_0000 }),
        (vec![zeros(RESULT + 250, 8)], LiftError::Range { node: 0, address: RESULT + 250, bytes: 8 }),
        (vec![copy(INPUT, RESULT, 257)], LiftError::Range { node: 0, address: INPUT, bytes: 257 }),
        (vec![copy(INPUT, 16, 8)], LiftError::Address { node: 0, address: 16 }),
        (vec![unary("uexp_f32", 4, 0xdead_0000, RESULT)], LiftError::Address { node: 0, address: 0xdead_0000 }),
        (vec![words("mystery", &[1, 2])], LiftError::NoAddress { node: 0, kernel: "mystery".into() }),
    ];
    for (kinds, error) in cases {
        assert_eq!(lift(&chain(kinds), &mut device()), Err(error));
    }
    let overlapping = lift(&chain(vec![copy(INPUT, INPUT + 4, 8)]), &mut device());
    assert!(matches!(overlapping, Err(LiftError::Unsupported { node: 0, .. })));
    let mut backward = chain(vec![zeros(INPUT, 8), zeros(INPUT, 8)]);
    backward.nodes[0].dependencies = vec![1];
    assert_eq!(lift(&backward, &mut device()), Err(LiftError::Dependency { node: 0, dependency: 1 }));
}

#[test]
fn kernels_keep_their_launch_and_their_place() {
    let mut recorded = chain(vec![zeros(RESULT, 8), unary("uexp_f32", 16, INPUT, RESULT)]);
    if let RecordedKind::Kernel { launch: shape, .. } = &mut recorded.nodes[1].kind {
        *shape = launch(3, 64);
    }
    let lifted = lifted(&recorded);
    let kernel = kernel_at(&lifted, 1);
    assert_eq!((kernel.launch, kernel.code.clone()), (launch(3, 64), crate::compile::Code::Recorded(1)));
    assert_eq!(kernel.name, "uexp_f32");
}
