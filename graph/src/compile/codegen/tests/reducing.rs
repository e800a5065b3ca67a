//! Kernels that reduce: their additions against those of candle's threads, one by one, and their source on the processor
//! against the interpreter.

mod columns;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use columns::columns_of_halves;

use crate::compile::codegen::columns::ColumnsPlan;
use crate::compile::codegen::helpers::BF16_ROUND;
use crate::compile::codegen::rows::RowsPlan;
use crate::compile::fused::{Access, Body};
use crate::compile::{
    BlockId, Code, Effect, ElementType, Kernel, Lifetime, Node, NodeKind, Pass, PassSet, Program, Reduction, Step,
    compile, interpret,
};

const HOST: &str = include_str!("host.cpp");
/// Every number that is not one has these bits on the device.
const NOT_A_NUMBER: u32 = 0x7FFF_FFFF;

/// Numbers whose sums depend on their order, with all that is special among them now and then.
fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let special =
        [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0, 0.0, f32::from_bits(1), -f32::MIN_POSITIVE, f32::MAX];
    let rare = [0, 40, 4000][usize::try_from(seed % 3).unwrap()];
    let mut number = |_| match rng.random_range(0..rare.max(1) + 40) {
        pick if pick < 8 && rare > 0 => special[pick],
        pick if pick % 5 == 1 => -0.0,
        _ => (rng.random::<f32>() - 0.5) * 10_f32.powi(rng.random_range(-6..6)),
    };
    (0..count).map(&mut number).collect()
}

fn bits(value: f32) -> u32 {
    if value.is_nan() { NOT_A_NUMBER } else { value.to_bits() }
}

fn combined(reduction: Reduction, left: f32, right: f32) -> f32 {
    match reduction {
        _ if reduction.is_sum() => left + right,
        _ => f32::from_bits(u32::try_from(reduction.combined(left.to_bits().into(), right.to_bits().into())).unwrap()),
    }
}

/// All lanes at once exchange with the lane at a distance, which halves.
fn exchanged(reduction: Reduction, lanes: &mut [f32]) {
    for offset in [16, 8, 4, 2, 1] {
        let before = lanes.to_vec();
        for (lane, value) in lanes.iter_mut().enumerate() {
            *value = combined(reduction, before[lane], before[lane ^ offset]);
        }
    }
}

/// `fast_sum_f32`, thread by thread, of the row `row` of a contiguous tensor at an address that is a multiple of 16, or of
/// one that is not contiguous.
fn candle_sum(values: &[f32], row: usize, columns: usize, is_contiguous: bool) -> f32 {
    let threads = columns.min(1024).next_power_of_two();
    let (start, stop) = (row * columns, (row + 1) * columns);
    let mut local = vec![0.0_f32; threads];
    for (thread, local) in local.iter_mut().enumerate() {
        if is_contiguous {
            let (first, last) = (start.div_ceil(4), stop / 4);
            assert_eq!((4 * first, 4 * last), (start, stop), "no elements before and after fours");
            for four in (first + thread..last).step_by(threads) {
                let [x, y, z, w] = [0, 1, 2, 3].map(|of| values[4 * four + of]);
                *local += x + y + z + w;
            }
        } else {
            for element in (start + thread..stop).step_by(threads) {
                *local += values[element];
            }
        }
    }
    let mut shared = [0.0_f32; 32];
    for (warp, lanes) in local.chunks_mut(32).enumerate() {
        exchanged(Reduction::Sum, lanes);
        shared[warp] = lanes[0];
    }
    exchanged(Reduction::Sum, &mut shared);
    shared[0]
}

/// `fast_max_f32` and `fast_min_f32`.
fn candle_extreme(reduction: Reduction, row: &[f32]) -> f32 {
    let threads = row.len().min(1024).next_power_of_two();
    let mut shared = vec![reduction.identity(); threads];
    for (index, value) in row.iter().enumerate() {
        shared[index % threads] = combined(reduction, shared[index % threads], *value);
    }
    let mut half = threads / 2;
    while half > 0 {
        for thread in 0..half {
            shared[thread] = combined(reduction, shared[thread], shared[thread + half]);
        }
        half /= 2;
    }
    shared[0]
}

/// `fast_sum_bf16` of a contiguous row at an address that is a multiple of 16; the sum is rounded after that.
fn candle_sum_of_halves(row: &[f32]) -> f32 {
    let threads = row.len().min(1024).next_power_of_two();
    let mut local = vec![0.0_f32; threads];
    for (thread, local) in local.iter_mut().enumerate() {
        for eight in (thread..row.len() / 8).step_by(threads) {
            row[8 * eight..8 * eight + 8].iter().for_each(|value| *local += value);
        }
    }
    let mut shared = [0.0_f32; 32];
    for (warp, lanes) in local.chunks_mut(32).enumerate() {
        exchanged(Reduction::EightsSum, lanes);
        shared[warp] = lanes[0];
    }
    exchanged(Reduction::EightsSum, &mut shared);
    shared[0]
}

fn candle(reduction: Reduction, row: &[f32]) -> u32 {
    bits(match reduction {
        Reduction::EightsSum => candle_sum_of_halves(row),
        Reduction::Sum => candle_sum(row, 0, row.len(), true),
        Reduction::StridedSum => candle_sum(row, 0, row.len(), false),
        Reduction::OrderedSum => row.iter().fold(0.0, |sum, value| sum + value),
        _ => candle_extreme(reduction, row),
    })
}

#[test]
fn a_row_is_reduced_as_candles_threads_do() {
    for columns in
        [2, 3, 31, 33, 36, 63, 64, 100, 128, 512, 513, 516, 1000, 1023, 1024, 1025, 1028, 2048, 4096, 5000, 9000]
    {
        for seed in 0..6 {
            let row = numbers(columns, seed + 10 * u64::try_from(columns).unwrap());
            let words: Vec<u64> = row.iter().map(|value| value.to_bits().into()).collect();
            // candle sums up to 32 elements by another kernel.
            let is_summed = columns > 32;
            let is_in_fours = is_summed && columns.is_multiple_of(4);
            let sums = [
                (Reduction::Sum, is_in_fours),
                (Reduction::StridedSum, is_summed),
                (Reduction::EightsSum, is_summed && columns.is_multiple_of(8)),
                (Reduction::OrderedSum, !is_summed),
            ];
            let extremes = [Reduction::Maximum, Reduction::Minimum, Reduction::MaximumOrNan, Reduction::MinimumOrNan];
            let extremes = extremes.map(|reduction| (reduction, true));
            for (reduction, _) in sums.into_iter().chain(extremes).filter(|(_, is_possible)| *is_possible) {
                let found = u32::try_from(reduction.of(&words)).unwrap();
                assert_eq!(found, candle(reduction, &row), "{reduction:?} of {columns}, seed {seed}");
            }
        }
    }
    // Whatever row it is: fours start at each.
    let values = numbers(36 * 40, 1);
    for row in 0..40 {
        let found = candle_sum(&values, row, 36, true);
        assert_eq!(bits(found), candle(Reduction::Sum, &values[36 * row..36 * (row + 1)]));
    }
}

/// Blocks with one reduction after the other of what was computed of a matrix.
fn softmax(rows: usize, columns: usize) -> String {
    let (all, row, elements) = (4 * rows * columns, 4 * rows, rows * columns);
    format!(
        "blocks x0={all} x1={all} g2={row} g3={all} g4={all} g5={row}
        %0 alloc g2
        %1 kernel fast_max_f32 fused {elements} by {columns} (x0 r[0..{all}], g2 w[0..{row}]) 0:f32 -> 1:f32=row $1 {{ load 0; row_max $0 }}
        %2 alloc g3
        %3 kernel bsub_f32 pointwise [{rows} {columns}] (x0 r[0..{all}], g2 r[0..{row}], g3 w[0..{all}]) 0:f32, 1:f32[1 0] -> 2:f32 {{ load 0; load 1; sub $0 $1 }}
        %4 free g2
        %5 alloc g4
        %6 kernel uexp_f32 pointwise [{rows} {columns}] (g3 r[0..{all}], g4 w[0..{all}]) 0:f32 -> 1:f32 {{ load 0; exp $0 }}
        %7 free g3
        %8 alloc g5
        %9 kernel fast_sum_f32 fused {elements} by {columns} (g4 r[0..{all}], g5 w[0..{row}]) 0:f32 -> 1:f32=row $1 {{ load 0; row_sum $0 }}
        %10 kernel bdiv_f32 pointwise [{rows} {columns}] (g4 r[0..{all}], g5 r[0..{row}], x1 w[0..{all}]) 0:f32, 1:f32[1 0] -> 2:f32 {{ load 0; load 1; div $0 $1 }}
        %11 free g4
        %12 free g5"
    )
}

/// The same with the mean and the variance of rows, both of which are read by others too, and a scale per column.
fn layer_norm(rows: usize, columns: usize) -> String {
    let (all, row, column, elements) = (4 * rows * columns, 4 * rows, 4 * columns, rows * columns);
    format!(
        "blocks x0={all} x1={all} x2={column} x3={row} x4={row} g5={row} g6={all} g7={all} g8={row}
        %0 alloc g5
        %1 kernel fast_sum_f32 fused {elements} by {columns} (x0 r[0..{all}], g5 w[0..{row}]) 0:f32 -> 1:f32=row $1 {{ load 0; row_sum $0 }}
        %2 kernel affine_f32 pointwise [{rows}] (g5 r[0..{row}], x3 w[0..{row}]) 0:f32 -> 1:f32 {{ load 0; muladd $0 0.03 0.0 }}
        %3 alloc g6
        %4 kernel bsub_f32 pointwise [{rows} {columns}] (x0 r[0..{all}], x3 r[0..{row}], g6 w[0..{all}]) 0:f32, 1:f32[1 0] -> 2:f32 {{ load 0; load 1; sub $0 $1 }}
        %5 alloc g7
        %6 kernel usqr_f32 pointwise [{rows} {columns}] (g6 r[0..{all}], g7 w[0..{all}]) 0:f32 -> 1:f32 {{ load 0; square $0 }}
        %7 alloc g8
        %8 kernel fast_sum_f32 fused {elements} by {columns} (g7 r[0..{all}], g8 w[0..{row}]) 0:f32 -> 1:f32=row $1 {{ load 0; row_sum $0 }}
        %9 kernel root pointwise [{rows}] (g8 r[0..{row}], x4 w[0..{row}]) 0:f32 -> 1:f32 {{ load 0; muladd $0 0.03 0.00001; sqrt $1 }}
        %10 kernel bdiv_f32 pointwise [{rows} {columns}] (g6 r[0..{all}], x4 r[0..{row}], x1 w[0..{all}]) 0:f32, 1:f32[1 0] -> 2:f32 {{ load 0; load 1; div $0 $1 }}
        %11 kernel bmul_f32 pointwise [{rows} {columns}] (x1 r[0..{all}], x2 r[0..{column}], x1 w[0..{all}]) 0:f32, 1:f32[0 1] -> 2:f32 {{ load 0; load 1; mul $0 $1 }}
        %12 free g5
        %13 free g6
        %14 free g7
        %15 free g8"
    )
}

/// A reduction of a product, with a number per row and one per column from memory; the result is written where an operand was,
/// and so are the smallest of its rows.
fn gradient(rows: usize, columns: usize) -> String {
    let (all, row, column, elements) = (4 * rows * columns, 4 * rows, 4 * columns, rows * columns);
    format!(
        "blocks x0={all} x1={all} x2={row} x3={column} x4={row} g5={all} g6={row}
        %0 alloc g5
        %1 kernel bmul_f32 pointwise [{rows} {columns}] (x0 r[0..{all}], x1 r[0..{all}], g5 w[0..{all}]) 0:f32, 1:f32 -> 2:f32 {{ load 0; load 1; mul $0 $1 }}
        %2 alloc g6
        %3 kernel fast_sum_f32 fused {elements} by {columns} (g5 r[0..{all}], g6 w[0..{row}]) 0:f32 -> 1:f32=row $1 {{ load 0; row_sum $0 }}
        %4 kernel bsub_f32 pointwise [{rows} {columns}] (x0 r[0..{all}], g6 r[0..{row}], g5 w[0..{all}]) 0:f32, 1:f32[1 0] -> 2:f32 {{ load 0; load 1; sub $0 $1 }}
        %5 kernel bmul_f32 pointwise [{rows} {columns}] (g5 r[0..{all}], x2 r[0..{row}], g5 w[0..{all}]) 0:f32, 1:f32[1 0] -> 2:f32 {{ load 0; load 1; mul $0 $1 }}
        %6 kernel badd_f32 pointwise [{rows} {columns}] (g5 r[0..{all}], x3 r[0..{column}], x0 w[0..{all}]) 0:f32, 1:f32[0 1] -> 2:f32 {{ load 0; load 1; add $0 $1 }}
        %7 kernel fast_min_f32 fused {elements} by {columns} (x0 r[0..{all}], x4 w[0..{row}]) 0:f32 -> 1:f32=row $1 {{ load 0; row_min $0 }}
        %8 free g5
        %9 free g6"
    )
}

/// Rows of one type that are reduced as another and left as a third, on the device alone.
fn converted(rows: usize, columns: usize) -> String {
    let (all, row, half, elements) = (4 * rows * columns, 4 * rows, 2 * rows * columns, rows * columns);
    format!(
        "blocks x0={half} x1={half} x2={elements} g3={all} g4={row}
        %0 alloc g3
        %1 kernel cast_bf16_f32 pointwise [{rows} {columns}] (x0 r[0..{half}], g3 w[0..{all}]) 0:bf16 -> 1:f32 {{ load 0; convert f32 $0 }}
        %2 alloc g4
        %3 kernel fast_max_f32 fused {elements} by {columns} (g3 r[0..{all}], g4 w[0..{row}]) 0:f32 -> 1:f32=row $1 {{ load 0; row_max $0 }}
        %4 kernel eq_f32 pointwise [{rows} {columns}] (g3 r[0..{all}], g4 r[0..{row}], x2 w[0..{elements}]) 0:f32, 1:f32[1 0] -> 2:u8 {{ load 0; load 1; eq $0 $1 }}
        %5 kernel bsub_f32 pointwise [{rows} {columns}] (g3 r[0..{all}], g4 r[0..{row}], x1 w[0..{half}]) 0:f32, 1:f32[1 0] -> 2:bf16 {{ load 0; load 1; sub $0 $1; convert bf16 $2 }}
        %6 free g3
        %7 free g4"
    )
}

/// Rows of 16 bits: the distance of each element to the largest of its row, times the sum of all of them.
fn of_halves(rows: usize, columns: usize) -> String {
    let (all, row, elements) = (2 * rows * columns, 2 * rows, rows * columns);
    let sum = if columns > 32 { "row_sum_eights" } else { "row_sum_ordered" };
    format!(
        "blocks x0={all} x1={all} x2={row} g3={row} g4={all}
        %0 alloc g3
        %1 kernel fast_max_bf16 fused {elements} by {columns} (x0 r[0..{all}], g3 w[0..{row}]) 0:bf16 -> 1:bf16=row $3 {{ load 0; convert f32 $0; row_max_nan $1; convert bf16 $2 }}
        %2 alloc g4
        %3 kernel bsub_bf16 pointwise [{rows} {columns}] (x0 r[0..{all}], g3 r[0..{row}], g4 w[0..{all}]) 0:bf16, 1:bf16[1 0] -> 2:bf16 {{ load 0; load 1; sub $0 $1 }}
        %4 kernel fast_sum_bf16 fused {elements} by {columns} (g4 r[0..{all}], x2 w[0..{row}]) 0:bf16 -> 1:bf16=row $3 {{ load 0; convert f32 $0; {sum} $1; convert bf16 $2 }}
        %5 kernel bmul_bf16 pointwise [{rows} {columns}] (g4 r[0..{all}], x2 r[0..{row}], x1 w[0..{all}]) 0:bf16, 1:bf16[1 0] -> 2:bf16 {{ load 0; load 1; mul $0 $1 }}
        %6 free g3
        %7 free g4"
    )
}

/// Matrices that are read across, one of two types, and a third as it lies; what they come to is left in both types.
fn transposed(matrices: usize, rows: usize, columns: usize) -> String {
    let elements = matrices * rows * columns;
    let (all, half, shape) =
        (4 * elements, 2 * elements, format!("{matrices}:{} {rows}:1 {columns}:{rows}", rows * columns));
    let shape = if matrices == 1 { format!("{rows}:1 {columns}:{rows}") } else { shape };
    format!(
        "blocks x0={all} x1={all} x2={half} x3={half} x4={half}
        %0 fused {elements} (x0 r[0..{all}], x2 r[0..{half}], x1 w[0..{all}], x3 w[0..{half}], x4 r[0..{half}]) 0:f32({shape}), 1:bf16({shape}), 4:bf16 -> 2:f32=$4, 3:bf16=$6 {{ load 0; load 1; load 2; convert f32 $2; add $0 $3; mul $1 $2; add $5 $1 }}"
    )
}

/// The program with its reductions in one kernel.
fn compiled(text: &str) -> (Program, Kernel) {
    let program: Program = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
    let passes = PassSet::none().with(Pass::Reductions).with(Pass::Fuse);
    let compiled = compile(&program, &passes).expect("it is valid");
    let kernels = compiled.program.nodes.iter().filter_map(|node| match &node.kind {
        NodeKind::Kernel(kernel) => Some(kernel.clone()),
        _ => None,
    });
    let kernels: Vec<Kernel> = kernels.collect();
    let [kernel] = &kernels[..] else { panic!("{} kernels of\n{}", kernels.len(), compiled.program) };
    (program, kernel.clone())
}

fn cases() -> Vec<String> {
    let mut cases = Vec::new();
    for (rows, columns) in
        [(32, 4), (33, 36), (37, 128), (33, 132), (32, 512), (35, 516), (32, 1024), (33, 1028), (32, 4096)]
    {
        cases.push(softmax(rows, columns));
        cases.push(layer_norm(rows, columns));
        cases.push(gradient(rows, columns));
    }
    for (rows, columns) in [(12, 16), (1, 8), (33, 32), (300, 4), (7, 12), (5, 128)] {
        let of_few = |text: String| if columns <= 32 { text.replace("row_sum", "row_sum_ordered") } else { text };
        cases.push(of_few(softmax(rows, columns)));
        cases.push(of_few(layer_norm(rows, columns)));
        cases.push(of_few(gradient(rows, columns)));
    }
    // Rows that share a warp.
    cases.extend([
        softmax(4099, 64),
        layer_norm(8193, 28),
        of_halves(8195, 64),
        of_halves(16_387, 24),
        softmax(65_539, 4).replace("row_max", "row_min"),
    ]);
    for (rows, wide) in [(12, 16), (32, 300), (2, 2), (6, 7)] {
        cases.push(columns::columns("row_sum_ordered", rows, wide));
    }
    cases.push(columns::columns("row_sum_ordered", 6, 40).replace("(40:1 6:40)", ""));
    for (rows, columns) in [(33, 40), (32, 128), (35, 264), (37, 512), (33, 2056), (32, 4096), (5, 64), (7, 16)] {
        cases.push(of_halves(rows, columns));
    }
    cases.push(columns_of_halves("row_sum_ordered", 12, 16));
    cases.extend(columns::cases());
    for (matrices, rows, columns) in
        [(1, 128, 160), (1, 33, 513), (3, 70, 90), (40, 16, 64), (1, 2000, 17), (2, 520, 516), (1, 640, 832)]
    {
        cases.push(transposed(matrices, rows, columns));
    }
    cases
}

fn source(kernel: &Kernel) -> &str {
    match &kernel.code {
        Code::Generated(source) => source,
        Code::Recorded(_) => panic!("a generated kernel"),
    }
}

#[test]
fn threads_share_rows_and_columns_out_without_a_rest() {
    for (rows, columns, members, quads) in [
        (32, 4, 32, 1),
        (4095, 64, 32, 1),
        (4096, 64, 16, 1),
        (65536, 4, 1, 1),
        (40, 128, 32, 1),
        (40, 132, 64, 1),
        (32, 1024, 256, 1),
        (32, 1028, 256, 2),
    ] {
        let (_, kernel) = compiled(&softmax(rows, columns));
        let plan = RowsPlan::of(&Body::of(&kernel).expect("it is told"), columns).expect("there is a plan");
        assert_eq!((plan.members, plan.quads), (members, quads), "{columns}");
        assert!(plan.warps() * 32 * 4 >= columns && plan.warps() <= 32);
    }
    for (text, has_plan) in columns::planned() {
        let program: Program = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
        let NodeKind::Kernel(kernel) = &program.nodes[0].kind else { panic!("a kernel") };
        assert_eq!(ColumnsPlan::of(&Body::of(kernel).unwrap()).is_some(), has_plan, "{text}");
    }
}

#[test]
fn another_order_of_additions_is_found() {
    for columns in [128, 516, 1028] {
        let (program, mut kernel) = compiled(&layer_norm(33, columns));
        let inputs = inputs(&program, 0);
        let mut fused = Program { blocks: program.blocks.clone(), nodes: Vec::new() };
        let mut run = |kernel: &Kernel| {
            fused.nodes = vec![Node::new(NodeKind::Kernel(kernel.clone()), [])];
            interpret(&fused, None, &inputs)
        };
        let expected = interpret(&program, None, &inputs);
        assert_eq!(run(&kernel), expected);
        let Effect::Fused(of) = &mut kernel.effect else { panic!("a fused kernel") };
        let sum = of.steps.iter_mut().find_map(|step| match step {
            Step::Reduce(reduction @ Reduction::Sum, _) => Some(reduction),
            _ => None,
        });
        *sum.expect("there is a sum") = Reduction::StridedSum;
        assert_ne!(run(&kernel), expected, "{columns}");
    }
}

/// Bytes of external blocks by their number.
type Blocks = BTreeMap<BlockId, Vec<u8>>;

/// A kernel and its blocks as a name space with `run`, which reads the blocks from a file and writes them to another one.
fn unit(number: usize, kernel: &Kernel, inputs: &Blocks) -> String {
    let mut text = format!("namespace unit_{number} {{\n{}", source(kernel).replace(BF16_ROUND, ""));
    for (id, bytes) in inputs {
        text.push_str(&format!("alignas(256) static unsigned char block{}[{}];\n", id.0, bytes.len()));
    }
    let of_all = |call: &str, file: &str| -> String {
        inputs.keys().map(|id| format!("  (void)!{call}(block{0}, 1, sizeof block{0}, {file});\n", id.0)).collect()
    };
    let pointers = kernel.pointers.iter().map(|pointer| format!("&block{}[{}]", pointer.block.0, pointer.offset_bytes));
    let arguments: Vec<String> = pointers.collect();
    let launch = format!("launch({}, [] {{ {}({}); }});", kernel.launch.grid[0], kernel.name, arguments.join(", "));
    let (read, write) = (of_all("fread", "from"), of_all("fwrite", "to"));
    text + &format!("static void run(FILE *from, FILE *to) {{\n{read}  {launch}\n{write}}}\n}}\n")
}

/// What external blocks hold after the source of each kernel was run on the processor.
fn run_on_host(folder: &Path, kernels: &[(Kernel, Blocks)]) -> Vec<Blocks> {
    let mut text = HOST.to_owned();
    let mut calls = String::new();
    for (number, (kernel, inputs)) in kernels.iter().enumerate() {
        text.push_str(&unit(number, kernel, inputs));
        calls.push_str(&format!("  unit_{number}::run(from, to);\n"));
    }
    let files = "  FILE *from = fopen(\"before\", \"rb\"), *to = fopen(\"after\", \"wb\");\n";
    text.push_str(&format!("int main() {{\n{files}{calls}  return fclose(to);\n}}\n"));
    std::fs::write(folder.join("kernels.cpp"), text).expect("a file");
    let before: Vec<u8> = kernels.iter().flat_map(|(_, inputs)| inputs.values().flatten().copied()).collect();
    std::fs::write(folder.join("before"), before).expect("a file");
    let mut compiler = Command::new("c++");
    compiler.current_dir(folder).args(["-std=c++17", "-w", "-ffp-contract=off", "-o", "kernels", "kernels.cpp"]);
    let result = compiler.output().expect("the compiler runs");
    assert!(result.status.success(), "{}", String::from_utf8_lossy(&result.stderr));
    assert!(Command::new(folder.join("kernels")).current_dir(folder).status().expect("it runs").success());
    let after = std::fs::read(folder.join("after")).expect("a file");
    let mut rest = after.as_slice();
    let mut take = |bytes: &Vec<u8>| {
        let (block, others) = rest.split_at(bytes.len());
        rest = others;
        block.to_vec()
    };
    kernels.iter().map(|(_, inputs)| inputs.iter().map(|(id, bytes)| (*id, take(bytes))).collect()).collect()
}

/// What external blocks hold before, by the type that they are read as.
fn inputs(program: &Program, seed: u64) -> Blocks {
    let bodies = program.nodes.iter().filter_map(|node| match &node.kind {
        NodeKind::Kernel(kernel) => Body::of(kernel),
        _ => None,
    });
    let read: Vec<Access> = bodies.flat_map(|body| body.operands).collect();
    let external = program.blocks.iter().enumerate().filter(|(_, block)| block.lifetime == Lifetime::External);
    external
        .map(|(id, block)| {
            let seed = seed + 3 * u64::try_from(id).unwrap();
            let as_read = read.iter().find(|access| access.region.block == BlockId(id));
            let element = as_read.map_or(ElementType::U8, |access| access.element);
            let numbers = numbers(block.size_bytes / element.size_bytes(), seed).into_iter();
            let bytes = match element {
                ElementType::Bf16 => numbers.flat_map(|value| ((value.to_bits() >> 16) as u16).to_le_bytes()).collect(),
                ElementType::F32 => numbers.flat_map(f32::to_le_bytes).collect(),
                _ => numbers.map(|value| u8::from(value > 0.0)).collect(),
            };
            (BlockId(id), bytes)
        })
        .collect()
}

fn words(bytes: &[u8]) -> Vec<u32> {
    let word = |bytes: &[u8]| bits(f32::from_le_bytes(bytes.try_into().unwrap()));
    bytes.chunks_exact(4).map(word).collect()
}

#[test]
fn sources_give_the_bits_of_the_interpreter_on_the_processor() {
    if Command::new("c++").arg("--version").output().is_err() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let cases: Vec<(String, Program, Kernel)> = cases()
        .into_iter()
        .map(|text| {
            let (program, kernel) = compiled(&text);
            (text, program, kernel)
        })
        .collect();
    let seeded = cases.iter().enumerate();
    let kernels: Vec<(Kernel, Blocks)> = seeded
        .map(|(number, (_, program, kernel))| (kernel.clone(), inputs(program, u64::try_from(number).unwrap())))
        .collect();
    let found = run_on_host(folder.path(), &kernels);
    for (((text, program, kernel), (_, inputs)), found) in cases.iter().zip(&kernels).zip(&found) {
        let expected = interpret(program, None, inputs).expect("it is interpreted");
        for (block, expected) in &expected {
            assert_eq!(words(&found[block]), words(expected), "{block} of\n{text}\n{}", source(kernel));
        }
    }
}

#[test]
fn a_compiler_for_the_device_takes_every_source_where_there_is_one() {
    if Command::new("nvcc").arg("--version").output().is_err() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mut text = String::new();
    let of_types = [36, 512, 1028].map(|columns| converted(33, columns));
    for (number, case) in cases().iter().chain(&of_types).enumerate() {
        let (_, kernel) = compiled(case);
        text.push_str(&format!("namespace unit_{number} {{\n{}}}\n", source(&kernel)));
    }
    let (input, output) = (folder.path().join("kernels.cu"), folder.path().join("kernels.cubin"));
    std::fs::write(&input, text).expect("a file");
    let mut compiler = Command::new("nvcc");
    compiler.args([
        "-arch=sm_90a",
        "-std=c++17",
        "--fmad=false",
        "-Werror",
        "all-warnings",
        "-Xptxas",
        "-v",
        "-cubin",
        "-o",
    ]);
    let result = compiler.arg(&output).arg(&input).output().expect("the compiler runs");
    let said = String::from_utf8_lossy(&result.stderr);
    assert!(result.status.success(), "{said}");
    let spills = said.lines().filter(|line| line.contains("spill stores") && !line.contains(" 0 bytes spill stores"));
    assert_eq!(spills.collect::<Vec<_>>(), Vec::<&str>::new());
}
