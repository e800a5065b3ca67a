//! What the table makes of single launches.

use super::recordings::{Device, launch, single, word};
use crate::compile::{
    BinaryOp, Comparison, Decoded, ElementType, LaunchShape, Operand, Reduction, Step, UnaryOp, Use, Written, decode,
};

const INFO: u64 = 0x50_0000;
const IN: u64 = 0x60_0000;
const OTHER: u64 = 0x70_0000;
const OUT: u64 = 0x80_0000;

fn decoded(name: &str, launch: LaunchShape, arguments: Vec<Vec<u8>>, info: &[u64]) -> Option<Decoded> {
    decode(name, &launch, &arguments, &mut Device::default().holding(INFO, info))
}

/// Argument, bytes read, and bytes written with whether all are.
type Reach = (usize, usize, Option<(usize, bool)>);

fn reach(decoded: &Decoded) -> Vec<Reach> {
    let written = |write: Written| (write.bytes, write.is_full);
    decoded.uses.iter().map(|of: &Use| (of.argument, of.read_bytes, of.write.map(written))).collect()
}

/// The single step on the loads.
fn last_step(decoded: &Decoded) -> Option<Step> {
    decoded.pointwise.as_ref()?.steps.last().cloned()
}

fn words(values: &[u64]) -> Vec<Vec<u8>> {
    values.iter().copied().map(word).collect()
}

#[test]
fn a_contiguous_function_of_one_number_reads_and_writes_as_many_elements() {
    let all = decoded("uexp_f32", launch(1, 32), words(&[10, 2, 0, IN, OUT]), &[]).unwrap();
    assert_eq!(reach(&all), [(3, 40, None), (4, 0, Some((40, true)))]);
    let pointwise = all.pointwise.unwrap();
    assert_eq!((pointwise.shape, pointwise.output), (vec![10], 1));
    assert_eq!(pointwise.operands, [Operand { pointer: 0, element: ElementType::F32, strides: None }]);
    assert_eq!(pointwise.steps, [Step::Load(0), Step::Unary(UnaryOp::Exp, 0)]);
}

#[test]
fn a_null_input_is_the_output_in_place() {
    let all = decoded("uneg_bf16", launch(1, 32), words(&[10, 1, 0, 0, OUT]), &[]).unwrap();
    assert_eq!(reach(&all), [(4, 20, Some((20, true)))]);
    let pointwise = all.pointwise.unwrap();
    assert_eq!((pointwise.output, pointwise.operands[0].pointer), (0, 0));
    assert_eq!(decoded("badd_f32", launch(1, 32), words(&[10, 1, 0, 0, IN, OUT]), &[]), None);
}

#[test]
fn strided_operands_reach_the_hull_of_their_elements_and_the_dimensions_are_read() {
    // A transposed matrix of 2 × 3 and one row for all.
    let info = [2, 3, 1, 2, 0, 1];
    let all = decoded("bmul_f64", launch(1, 32), words(&[6, 2, INFO, IN, OTHER, OUT]), &info).unwrap();
    assert_eq!(reach(&all), [(2, 48, None), (3, 48, None), (4, 24, None), (5, 0, Some((48, true)))]);
    let pointwise = all.pointwise.unwrap();
    assert_eq!(pointwise.shape, [2, 3]);
    let strides: Vec<_> = pointwise.operands.iter().map(|operand| operand.strides.clone()).collect();
    assert_eq!(strides, [Some(vec![1, 2]), Some(vec![0, 1])]);
    assert_eq!(pointwise.steps[2], Step::Binary(BinaryOp::Multiply, [0, 1]));
    // Dimensions that are not those of the count, that cannot be read, or that no kernel counts to.
    let arguments = |numel| words(&[numel, 2, INFO, IN, OTHER, OUT]);
    assert_eq!(decoded("bmul_f64", launch(1, 32), arguments(7), &info), None);
    assert_eq!(decoded("bmul_f64", launch(1, 32), arguments(6), &info[..5]), None);
    assert_eq!(decoded("bmul_f64", launch(1, 32), arguments(6), &[2, 3, 1 << 40, 2, 0, 1]), None);
}

#[test]
fn element_wise_kernels_have_their_steps() {
    let binary = |name: &str| decoded(name, launch(1, 32), words(&[4, 1, 0, IN, OTHER, OUT]), &[]).unwrap();
    let steps = [
        ("badd_f32", Step::Binary(BinaryOp::Add, [0, 1])),
        ("bsub_bf16", Step::Binary(BinaryOp::Subtract, [0, 1])),
        ("bdiv_i64", Step::Binary(BinaryOp::Divide, [0, 1])),
        ("bmaximum_f32", Step::Binary(BinaryOp::MaximumNumber, [0, 1])),
        ("bmaximum_bf16", Step::Binary(BinaryOp::Maximum, [0, 1])),
        ("bminimum_u8", Step::Binary(BinaryOp::Minimum, [0, 1])),
        ("le_f64", Step::Compare(Comparison::LessOrEqual, [0, 1])),
    ];
    for (name, step) in steps {
        assert_eq!(last_step(&binary(name)), Some(step), "{name}");
    }
    assert_eq!(reach(&binary("le_f64"))[2], (5, 0, Some((4, true))));
    let cast = decoded("cast_u8_bf16", launch(1, 32), words(&[4, 1, 0, IN, OUT]), &[]).unwrap();
    assert_eq!(last_step(&cast), Some(Step::Convert(ElementType::Bf16, 0)));
    assert_eq!(reach(&cast), [(3, 4, None), (4, 0, Some((8, true)))]);
    let info = [4, 1, 1, 0];
    let select = decoded("where_u8_f32", launch(1, 32), words(&[4, 1, INFO, IN, OTHER, OTHER, OUT]), &info).unwrap();
    assert_eq!(last_step(&select), Some(Step::Select([0, 1, 2])));
    assert_eq!(reach(&select)[1..], [(3, 4, None), (4, 16, None), (5, 4, None), (6, 0, Some((16, true)))]);
}

#[test]
fn numbers_among_the_arguments_are_in_the_steps_where_they_are_exact() {
    let with = |name: &str, number: Vec<u8>| {
        let arguments = vec![word(4), word(1), word(0), number, word(IN), word(OUT)];
        last_step(&decoded(name, launch(1, 32), arguments, &[]).unwrap())
    };
    assert_eq!(with("upowf_f32", single(2.5)), Some(Step::Power(0, 2.5_f32.to_bits())));
    assert_eq!(with("uelu_f64", 0.5_f64.to_le_bytes().to_vec()), Some(Step::Elu(0, 0.5_f32.to_bits())));
    assert_eq!(with("uelu_f64", 0.1_f64.to_le_bytes().to_vec()), None);
    let affine = |name: &str, numbers: [Vec<u8>; 2]| {
        let [factor, term] = numbers;
        let arguments = vec![word(4), word(1), word(0), word(IN), word(OUT), factor, term];
        last_step(&decoded(name, launch(1, 32), arguments, &[]).unwrap())
    };
    let step =
        |factor: f32, term: f32| Some(Step::MultiplyAdd { value: 0, factor: factor.to_bits(), term: term.to_bits() });
    assert_eq!(affine("affine_f32", [single(0.1), single(-3.0)]), step(0.1, -3.0));
    // Of 16-bit floats only one rounding can be told: 2·x + 0 and 1·x + 2, not 2·x + 2.
    let bf16 = |value: f32| value.to_bits().to_le_bytes()[2..].to_vec();
    assert_eq!(affine("affine_bf16", [bf16(2.0), bf16(0.0)]), step(2.0, 0.0));
    assert_eq!(affine("affine_bf16", [bf16(1.0), bf16(2.0)]), step(1.0, 2.0));
    assert_eq!(affine("affine_bf16", [bf16(2.0), bf16(2.0)]), None);
    assert_eq!(affine("affine_u32", [vec![2, 0, 0, 0], vec![0; 4]]), None);
    let fill = decoded("fill_f32", launch(1, 32), vec![word(OUT), single(1.5), word(4)], &[]).unwrap();
    assert_eq!(last_step(&fill), Some(Step::Constant(ElementType::F32, 1.5_f64.to_bits())));
    assert_eq!(reach(&fill), [(0, 0, Some((16, true)))]);
}

#[test]
fn operands_that_overlap_the_output_in_part_leave_no_computation() {
    for (input, is_told) in [(OUT, true), (OUT + 4, false), (OUT - 4, false), (OUT + 16, true)] {
        let all = decoded("uexp_f32", launch(1, 32), words(&[4, 1, 0, input, OUT]), &[]).unwrap();
        assert_eq!(all.pointwise.is_some(), is_told, "{input:#x}");
    }
}

#[test]
fn rows_and_strided_writes_are_full_only_without_gaps() {
    let rows = |from: u32, to: u32, threads: u32| {
        let sizes = [2_u32, 3, from, to].map(|size| size.to_le_bytes().to_vec());
        let arguments = [vec![word(IN), word(OUT)], sizes.to_vec()].concat();
        decoded("copy2d_f32", launch(1, threads), arguments, &[])
    };
    assert_eq!(reach(&rows(5, 3, 32).unwrap()), [(0, 32, None), (1, 0, Some((24, true)))]);
    assert_eq!(rows(5, 3, 32).unwrap().pointwise.unwrap().operands[0].strides, Some(vec![5, 1]));
    assert_eq!(reach(&rows(3, 5, 32).unwrap()), [(0, 24, None), (1, 0, Some((32, false)))]);
    assert_eq!(rows(3, 5, 4), None, "too few threads");
    let set = |info: &[u64]| {
        let arguments = vec![word(6), word(2), word(INFO), single(1.0), word(OUT)];
        reach(&decoded("const_set_f32", launch(1, 32), arguments, info).unwrap())[1]
    };
    assert_eq!(set(&[2, 3, 1, 2]), (4, 0, Some((24, true))));
    assert_eq!(set(&[2, 3, 5, 1]), (4, 0, Some((32, false))));
}

#[test]
fn convolutions_in_groups_and_pooling_have_exact_ranges_and_no_other_launch_of_that_name_is_known() {
    // 2 samples of 3 groups of 2 channels, 5 × 4; 4 outputs per group by windows of 3 × 1: 3 × 4.
    let sizes = [2_u32, 3, 2, 4, 5, 4, 3, 1, 3, 4, 0, 0, 1, 1, 1, 1];
    let bytes = |numbers: &[u32]| numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>();
    let (x, w, y, seen) = (240, 72, 288, 3 * 2 * 3 * 2 * 12);
    for (name, blocks, read, written, element) in [
        ("esper_grouped_output_f32", 2, &[x, w][..], y, 4),
        ("esper_grouped_input_gradient_f64", 1, &[w, y], x, 8),
        ("esper_grouped_weight_gradient_bf16", 72, &[x, y], w, 2),
        ("esper_grouped_weight_gradient_f16", 72, &[x, y], w, 2),
        ("esper_pool_gradient_max_bf16", 1, &[x, y, y], x, 2),
        ("esper_pool_gradient_mean_f64", 1, &[y], x, 8),
        ("esper_windows_seen_f32", 2, &[x], seen, 4),
        ("esper_windows_folded_f16", 1, &[seen], x, 2),
    ] {
        let arguments = |count: u32| {
            [words(&[IN, OTHER, IN][..read.len()]), words(&[OUT]), vec![bytes(&[count]), bytes(&sizes)]].concat()
        };
        let count = u32::try_from(written).unwrap();
        let found = decoded(name, launch(blocks, 256), arguments(count), &[]).expect(name);
        let mut expected: Vec<_> =
            read.iter().enumerate().map(|(index, elements)| (index, elements * element, None)).collect();
        expected.push((read.len(), 0, Some((written * element, true))));
        assert_eq!(reach(&found), expected, "{name}");
        for (name, launch, arguments) in [
            (name, launch(blocks - 1, 256), arguments(count)),
            (name, launch(blocks, 128), arguments(count)),
            (name, launch(blocks, 256), arguments(count + 1)),
            (name, launch(blocks, 256), arguments(count)[1..].to_vec()),
            (name, launch(blocks, 256), arguments(count)[..read.len() + 2].to_vec()),
            (&name[1..], launch(blocks, 256), arguments(count)),
        ] {
            assert_eq!(decoded(name, launch, arguments, &[]), None, "{name}");
        }
    }
}

#[test]
fn gradients_of_norms_have_exact_ranges_and_no_other_launch_of_that_name_is_known() {
    // 70 rows of 40, in slices of 64 and 6, or in one.
    let sizes = |slices: u32| [70_u32, 40, 32, if slices == 1 { 512 } else { 64 }, slices, 1];
    let bytes = |numbers: &[u32]| numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>();
    let grid = |x: u32, y: u32, block: [u32; 3]| LaunchShape { grid: [x, y, 1], block, shared_bytes: 0 };
    let (by_row, by_column) = ([256, 1, 1], [32, 32, 1]);
    for (name, launch, slices, read, written) in [
        ("esper_norm_input_2_f32", grid(9, 1, by_row), 2, &[11_200, 160, 11_200][..], &[11_200, 560][..]),
        ("esper_norm_input_8_bf16", grid(9, 1, by_row), 1, &[5_600, 80, 5_600], &[5_600, 560]),
        ("esper_norm_weights_bf16", grid(2, 1, by_column), 1, &[5_600, 5_600, 560], &[160]),
        ("esper_norm_slices_f64", grid(2, 2, by_column), 2, &[22_400, 22_400, 1_120], &[1_280]),
        ("esper_norm_slices_f16", grid(2, 2, by_column), 2, &[5_600, 5_600, 560], &[640]),
        ("esper_norm_sum_bf16", grid(3, 1, by_column), 2, &[640], &[160]),
    ] {
        let arguments = |sizes: &[u32]| [vec![word(IN); read.len() + written.len()], vec![bytes(sizes)]].concat();
        let found = decoded(name, launch, arguments(&sizes(slices)), &[]).expect(name);
        let reads = read.iter().map(|bytes| (*bytes, None));
        let writes = written.iter().map(|bytes| (0, Some((*bytes, true))));
        let expected: Vec<_> =
            reads.chain(writes).enumerate().map(|(index, (read, written))| (index, read, written)).collect();
        assert_eq!(reach(&found), expected, "{name}");
        let other_grid = LaunchShape { grid: [launch.grid[0] + 1, launch.grid[1], 1], ..launch };
        let other_block = LaunchShape { block: [128, 1, 1], ..launch };
        let (mut many_threads, mut many_slices) = (sizes(slices), sizes(slices));
        many_threads[2] = 64;
        many_slices[4] += 1;
        for (name, launch, arguments) in [
            (name, other_grid, arguments(&sizes(slices))),
            (name, other_block, arguments(&sizes(slices))),
            (name, launch, arguments(&many_threads)),
            (name, launch, arguments(&many_slices)),
            (name, launch, arguments(&sizes(slices))[1..].to_vec()),
            (&name[1..], launch, arguments(&sizes(slices))),
        ] {
            assert_eq!(decoded(name, launch, arguments, &[]), None, "{name}");
        }
    }
    let input = |each: u32, width: u32| {
        let sizes = [70, width, 256, 512, 1, 1];
        let arguments = [vec![word(IN); 5], vec![bytes(&sizes)]].concat();
        decoded(&format!("esper_norm_input_{each}_f32"), grid(70, 1, by_row), arguments, &[])
    };
    assert!(input(8, 2048).is_some() && input(32, 2049).is_some());
    assert_eq!([input(8, 2049), input(16, 2048), input(2, 513)], [None, None, None], "too few elements, or no kernel");
}

#[test]
fn reductions_of_floats_say_in_which_order_they_add() {
    let reduced = |name: &str, grid: u32, block: u32, source: u64, info: &[u64]| {
        let (rows, columns) = (u64::from(grid), info[..info.len() / 2].iter().product::<u64>() / u64::from(grid));
        let arguments = words(&[rows * columns, columns, info.len() as u64 / 2, INFO, source, OUT]);
        let decoded = decoded(name, launch(grid, block), arguments, info).unwrap();
        assert_eq!(reach(&decoded).len(), 3);
        let of = decoded.reduced?;
        assert_eq!((of.elements, of.operands[0].pointer, of.outputs[0].pointer), (of.columns * grid as usize, 1, 2));
        let reduction = match of.steps[..] {
            [Step::Load(0), Step::Reduce(reduction, 0)] => reduction,
            [
                Step::Load(0),
                Step::Convert(ElementType::F32, 0),
                Step::Reduce(reduction, 1),
                Step::Convert(ElementType::Bf16, 2),
            ] => reduction,
            _ => panic!("{:?}", of.steps),
        };
        assert_eq!(of.operands[0].element == ElementType::Bf16, name.ends_with("_bf16"));
        Some((reduction, of.columns, of.operands[0].dims.clone()))
    };
    let along = Some((Reduction::Sum, 36, vec![(144, 1)]));
    assert_eq!(reduced("fast_sum_f32", 4, 64, IN, &[4, 36, 36, 1]), along);
    let apart = Some((Reduction::StridedSum, 36, vec![(4, 1), (36, 4)]));
    assert_eq!(reduced("fast_sum_f32", 4, 64, IN, &[4, 4, 9, 1, 36, 4]), apart);
    assert_eq!(reduced("fast_max_f32", 4, 8, IN + 4, &[4, 7, 7, 1]), Some((Reduction::Maximum, 7, vec![(28, 1)])));
    assert_eq!(reduced("fast_min_f32", 1, 8, IN, &[7, 1]), Some((Reduction::Minimum, 7, vec![(7, 1)])));
    let eights = Some((Reduction::EightsSum, 40, vec![(160, 1)]));
    assert_eq!(reduced("fast_sum_bf16", 4, 64, IN, &[4, 40, 40, 1]), eights);
    assert_eq!(reduced("fast_sum_bf16", 4, 64, IN, &[4, 4, 9, 1, 36, 4]), apart);
    let largest = Some((Reduction::MaximumOrNan, 7, vec![(28, 1)]));
    assert_eq!(reduced("fast_max_bf16", 4, 8, IN + 2, &[4, 7, 7, 1]), largest);
    assert_eq!(reduced("fast_min_bf16", 1, 8, IN, &[7, 1]), Some((Reduction::MinimumOrNan, 7, vec![(7, 1)])));
    assert_eq!(reduced("fast_sum_bf16", 4, 64, IN, &[4, 36, 36, 1]), None);
    assert_eq!(reduced("fast_sum_bf16", 4, 64, IN + 8, &[4, 40, 40, 1]), None);
    // No fours, an address between them, another number of threads, another type, a number of the largest.
    assert_eq!(reduced("fast_sum_f32", 4, 64, IN, &[4, 37, 37, 1]), None);
    assert_eq!(reduced("fast_sum_f32", 4, 64, IN + 4, &[4, 36, 36, 1]), None);
    assert_eq!(reduced("fast_sum_f32", 4, 128, IN, &[4, 36, 36, 1]), None);
    assert_eq!(reduced("fast_sum_f64", 4, 64, IN, &[4, 36, 36, 1]), None);
    assert_eq!(reduced("fast_argmax_f32", 4, 64, IN, &[4, 36, 36, 1]), None);
}

/// Launch, arguments and words at [`INFO`] of one kernel, and what each argument reaches.
struct Case(&'static str, LaunchShape, Vec<Vec<u8>>, Vec<u64>, Vec<Reach>);

#[test]
fn kernels_that_are_not_element_wise_have_exact_ranges() {
    let sizes = |values: &[u32]| values.iter().map(|value| value.to_le_bytes().to_vec()).collect::<Vec<_>>();
    let full = |argument, bytes| (argument, 0, Some((bytes, true)));
    let read = |argument, bytes| (argument, bytes, None);
    let softmax = LaunchShape { grid: [4, 1, 1], block: [1, 32, 1], shared_bytes: 0 };
    let cases = [
        // 4 sums of 6, with the summed dimension first in memory.
        Case(
            "fast_sum_f32",
            launch(4, 8),
            words(&[24, 6, 2, INFO, IN, OUT]),
            vec![4, 6, 1, 4],
            vec![read(3, 32), read(4, 96), full(5, 16)],
        ),
        Case(
            "fast_argmax_bf16",
            launch(4, 8),
            words(&[24, 6, 2, INFO, IN, OUT]),
            vec![4, 6, 6, 1],
            vec![read(3, 32), read(4, 48), full(5, 16)],
        ),
        Case(
            "fast_sum_small_f64",
            launch(1, 256),
            words(&[4, 6, 2, INFO, IN, OUT]),
            vec![4, 6, 0, 1],
            vec![read(3, 32), read(4, 48), full(5, 32)],
        ),
        Case(
            "softmax_f32",
            softmax,
            [words(&[IN, OUT]), sizes(&[10])].concat(),
            vec![],
            vec![read(0, 160), full(1, 160)],
        ),
        Case(
            "layernorm_f32",
            launch(4, 32),
            [words(&[IN, OUT, OTHER, 0]), sizes(&[10, 32]), vec![single(1e-5)]].concat(),
            vec![],
            vec![read(0, 160), full(1, 160), read(2, 40)],
        ),
        // Two batches of one head, three positions, width 4; angles per batch.
        Case(
            "rope_f32",
            launch(1, 32),
            [words(&[IN, OTHER, OTHER, OUT]), sizes(&[2, 12, 4, 12])].concat(),
            vec![],
            vec![read(0, 96), read(1, 48), read(2, 48), full(3, 96)],
        ),
        Case(
            "asort_desc_u8",
            launch(3, 8),
            [words(&[IN, OUT]), sizes(&[5, 8])].concat(),
            vec![],
            vec![read(0, 15), full(1, 60)],
        ),
        // Rows 2 of 5 wide 3, chosen by 4 indices.
        Case(
            "is_u32_f32",
            launch(1, 32),
            words(&[24, 1, INFO, IN, OTHER, OUT, 2, 5, 4, 3]),
            vec![4, 1],
            vec![read(2, 16), read(3, 16), read(4, 120), full(5, 96)],
        ),
        Case(
            "gather_i64_bf16",
            launch(1, 32),
            words(&[24, IN, OTHER, OUT, 2, 5, 4, 3]),
            vec![],
            vec![read(1, 192), read(2, 60), full(3, 48)],
        ),
        Case(
            "ia_u8_f32",
            launch(1, 32),
            words(&[IN, 4, OTHER, OUT, 2, 4, 5, 3]),
            vec![],
            vec![read(0, 4), read(2, 96), (3, 120, Some((120, false)))],
        ),
        Case(
            "sa_u32_f32",
            launch(1, 32),
            words(&[IN, OTHER, OUT, 2, 4, 5, 3]),
            vec![],
            vec![read(0, 96), read(1, 96), (2, 120, Some((120, false)))],
        ),
        Case(
            "s_u32_f32",
            launch(1, 32),
            words(&[IN, OTHER, OUT, 2, 4, 5, 3]),
            vec![],
            vec![read(0, 96), read(1, 96), (2, 0, Some((120, false)))],
        ),
        // 2 × 3 channels × 6 × 5 with 4 kernels of 3 × 3.
        Case(
            "conv2d_f32",
            launch(4, 32),
            words(&[180, 3, 4, 1, 0, 1, INFO, IN, OTHER, OUT]),
            vec![2, 3, 6, 5, 90, 30, 5, 1, 4, 3, 3, 3, 27, 9, 3, 1],
            vec![read(6, 128), read(7, 720), read(8, 432), full(9, 384)],
        ),
        Case(
            "conv_transpose1d_f64",
            launch(1, 64),
            words(&[12, 8, 1, 0, 0, 1, INFO, IN, OTHER, OUT]),
            vec![1, 2, 6, 12, 6, 1, 2, 4, 3, 12, 3, 1],
            vec![read(6, 96), read(7, 96), read(8, 192), full(9, 256)],
        ),
        Case(
            "im2col1d_f32",
            launch(1, 32),
            words(&[16, 4, 3, 1, 0, 1, INFO, IN, OUT]),
            vec![2, 2, 6, 12, 6, 1],
            vec![read(6, 48), read(7, 96), full(8, 192)],
        ),
        Case(
            "col2im1d_f32",
            launch(1, 64),
            words(&[48, 8, 4, 3, 2, 2, IN, OUT]),
            vec![],
            vec![read(6, 192), full(7, 192)],
        ),
        Case(
            "max_pool2d_bf16",
            launch(1, 64),
            words(&[60, 2, 2, 2, 2, INFO, IN, OUT]),
            vec![1, 2, 6, 5, 60, 30, 5, 1],
            vec![read(5, 64), read(6, 120), full(7, 24)],
        ),
        Case(
            "upsample_bilinear2d_f32",
            launch(4, 32),
            [words(&[8, 8]), vec![vec![1], vec![0]], words(&[0]), vec![vec![0]], words(&[0, INFO, IN, OUT])].concat(),
            vec![1, 2, 4, 4, 32, 16, 4, 1],
            vec![read(7, 64), read(8, 128), full(9, 512)],
        ),
    ];
    for Case(name, launch, arguments, info, expected) in cases {
        let all = decoded(name, launch, arguments.clone(), &info).unwrap_or_else(|| panic!("{name} is not known"));
        assert_eq!(reach(&all), expected, "{name}");
        assert_eq!(all.pointwise, None, "{name}");
        assert_eq!(decoded(name, launch, arguments[1..].to_vec(), &info), None, "{name}");
    }
}

#[test]
fn other_types_other_names_and_other_lengths_are_not_known() {
    let arguments = words(&[4, 1, 0, IN, OUT]);
    for name in ["uexp_f16", "uexp_fp8_e4m3", "ucopy_i32", "sum_f32", "uexp", "exp_f32"] {
        assert_eq!(decoded(name, launch(1, 32), arguments.clone(), &[]), None, "{name}");
    }
    let mut short = arguments;
    short[0].pop();
    assert_eq!(decoded("uexp_f32", launch(1, 32), short, &[]), None);
}
