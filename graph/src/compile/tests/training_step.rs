//! A recorded training step, with all that makes real ones hard to interpret: products of a library that share a work
//! space of 32 MiB, outputs of kernels that nothing is known of, and tensors that are put together from parts.

use super::filetests::is_as_in_file;
use super::recordings::{
    Device, PRODUCT, SUM_OF_PARTS, alloc, chain, free, kernel, launch, of_library, single, unary, word, words, zeros,
};
use crate::compile::{
    Culprit, DeclaredEffect, Lifetime, Pass, PassSet, Program, Recorded, RecordedKind, Unseen, bisect, compile, lift,
};

const INPUTS: u64 = 0x100_0000;
const TARGETS: u64 = 0x110_0000;
const TABLE: u64 = 0x120_0000;
const LOSS: u64 = 0x130_0000;
const FLAT: u64 = 0x140_0000;
/// Shapes and strides.
const LAYOUTS: u64 = 0x150_0000;
const WORKSPACE: u64 = 0x1000_0000;
const WORKSPACE_BYTES: usize = 32 << 20;
/// Parameters, and the two moments of each.
const STATE: u64 = 0x200_0000;
/// Memory of the graph.
const OWNED: u64 = 0x7000_0000;

const ROWS: u64 = 4;
const WIDTH: u64 = 6;
const LAYERS: u64 = 6;
const MATRIX: u64 = ROWS * WIDTH;
const PARAMETERS: u64 = WIDTH * WIDTH + WIDTH;

/// A perceptron of [`LAYERS`] square layers: forward, loss, backward, flat gradient, update.
struct Recording {
    kinds: Vec<RecordedKind>,
    declared: Vec<DeclaredEffect>,
    words: Vec<u64>,
    next: u64,
}

impl Recording {
    fn take(&mut self, elements: u64) -> u64 {
        let address = self.next;
        self.next += (4 * elements).next_multiple_of(256);
        self.kinds.push(alloc(address, 4 * usize::try_from(elements).unwrap()));
        address
    }

    fn launch(&mut self, kind: RecordedKind) {
        self.kinds.push(kind);
    }

    fn free(&mut self, address: u64) {
        self.kinds.push(free(address));
    }

    fn declare(&mut self, name: &str, reads: &[(u64, u64)], writes: &[(u64, u64)]) {
        let at = self.kinds.len();
        let bytes = |spans: &[(u64, u64)]| -> Vec<(u64, usize)> {
            spans.iter().map(|&(address, elements)| (address, 4 * usize::try_from(elements).unwrap())).collect()
        };
        self.declared.push(DeclaredEffect { nodes: at..at + 1, reads: bytes(reads), writes: bytes(writes) });
        let addresses: Vec<u64> = reads.iter().chain(writes).map(|(address, _)| *address).collect();
        self.launch(words(name, &addresses));
    }

    /// A product of the library: parts in the work space, then their sum.
    fn product(&mut self, left: u64, right: u64, elements: u64) -> u64 {
        let output = self.take(elements);
        self.launch(of_library(words(PRODUCT, &[left, right, output, WORKSPACE, elements])));
        self.launch(of_library(words(SUM_OF_PARTS, &[WORKSPACE + 4096, output, elements])));
        output
    }

    /// Address of dimensions and strides.
    fn layout(&mut self, words: &[u64]) -> u64 {
        let address = LAYOUTS + 8 * self.words.len() as u64;
        self.words.extend(words);
        address
    }

    fn binary(&mut self, name: &str, [left, right, output]: [u64; 3], elements: u64) {
        self.launch(kernel(name, [elements, 1, 0, left, right, output].map(word).to_vec()));
    }

    /// `output = input + bias` for each row.
    fn add_bias(&mut self, input: u64, bias: u64) -> u64 {
        let output = self.take(MATRIX);
        let info = self.layout(&[ROWS, WIDTH, WIDTH, 1, 0, 1]);
        self.launch(kernel("badd_f32", [MATRIX, 2, info, input, bias, output].map(word).to_vec()));
        output
    }

    fn sum_of_rows(&mut self, input: u64) -> u64 {
        let output = self.take(WIDTH);
        let info = self.layout(&[WIDTH, ROWS, 1, WIDTH]);
        let mut sum = kernel("fast_sum_f32", [MATRIX, ROWS, 2, info, input, output].map(word).to_vec());
        if let RecordedKind::Kernel { launch: of, .. } = &mut sum {
            *of = launch(u32::try_from(WIDTH).unwrap(), 32);
        }
        self.launch(sum);
        output
    }

    /// Two halves of the columns of `input`, side by side again.
    fn put_together(&mut self, input: u64) -> u64 {
        let output = self.take(MATRIX);
        for half in [0, 4 * WIDTH / 2] {
            let counts = [ROWS, WIDTH / 2, WIDTH, WIDTH].map(|count| u32::try_from(count).unwrap().to_le_bytes());
            let counts = counts.map(|bytes| bytes.to_vec()).to_vec();
            self.launch(kernel("copy2d_f32", [vec![word(input + half), word(output + half)], counts].concat()));
        }
        output
    }
}

fn weight(layer: u64) -> u64 {
    STATE + 0x1000 * layer
}

fn bias(layer: u64) -> u64 {
    weight(layer) + 0x800
}

fn recording() -> (Recorded, Device) {
    let mut of = Recording { kinds: Vec::new(), declared: Vec::new(), words: Vec::new(), next: OWNED };
    let mut layers = Vec::new();
    let mut input = INPUTS;
    for layer in 0..LAYERS {
        let product = of.product(input, weight(layer), MATRIX);
        let sum = of.add_bias(product, bias(layer));
        of.free(product);
        let output = of.take(MATRIX);
        if layer == 2 {
            // Nothing is known of it.
            of.launch(words("my_activation", &[sum, output]));
        } else {
            of.launch(unary("urelu_f32", MATRIX, sum, output));
        }
        let output = if layer == 3 { of.put_together(output) } else { output };
        layers.push((input, sum));
        input = output;
    }
    let loss = of.take(1);
    of.declare("cross_entropy_small", &[(input, MATRIX), (TARGETS, ROWS)], &[(loss, 1)]);
    let mut gradient = of.take(MATRIX);
    of.declare("cross_entropy_backward", &[(input, MATRIX), (TARGETS, ROWS), (loss, 1)], &[(gradient, MATRIX)]);
    for (layer, (input, sum)) in (0..LAYERS).rev().zip(layers.into_iter().rev()) {
        let (zero, mask, factor, masked) = (of.take(MATRIX), of.take(MATRIX), of.take(MATRIX), of.take(MATRIX));
        of.launch(zeros(zero, 4 * usize::try_from(MATRIX).unwrap()));
        of.binary("ge_f32", [sum, zero, mask], MATRIX);
        of.launch(unary("cast_u8_f32", MATRIX, mask, factor));
        of.binary("bmul_f32", [gradient, factor, masked], MATRIX);
        [zero, mask, factor, gradient].into_iter().for_each(|address| of.free(address));
        let of_bias = of.sum_of_rows(masked);
        let of_weight = of.product(input, masked, WIDTH * WIDTH);
        for (from, at, elements) in [(of_weight, 0, WIDTH * WIDTH), (of_bias, WIDTH * WIDTH, WIDTH)] {
            let destination = FLAT + 4 * (layer * PARAMETERS + at);
            let bytes = 4 * usize::try_from(elements).unwrap();
            of.launch(RecordedKind::Copy { source: from, destination, bytes });
            of.free(from);
        }
        gradient = of.product(masked, weight(layer), MATRIX);
        of.free(masked);
    }
    of.free(gradient);
    for layer in 0..LAYERS {
        for (parameter, at, elements) in [(weight(layer), 0, WIDTH * WIDTH), (bias(layer), WIDTH * WIDTH, WIDTH)] {
            let state = [parameter, parameter + 0x200, parameter + 0x400].map(|address| (address, elements));
            let slice = (FLAT + 4 * (layer * PARAMETERS + at), elements);
            of.declare("adam_w", &[(TABLE, 16), slice, state[0], state[1], state[2]], &state);
        }
    }
    let (scaled, result) = (of.take(1), of.take(1));
    let arguments = vec![word(1), word(1), word(0), word(loss), word(scaled), single(0.5), single(0.0)];
    of.launch(kernel("affine_f32", arguments));
    of.launch(unary("usqr_f32", 1, scaled, result));
    of.launch(RecordedKind::Copy { source: result, destination: LOSS, bytes: 4 });
    let held: Vec<u64> = {
        let freed = |address: &u64| of.kinds.iter().any(|kind| *kind == free(*address));
        let taken = of.kinds.iter().filter_map(|kind| match kind {
            RecordedKind::Alloc { address, .. } => Some(*address),
            _ => None,
        });
        taken.filter(|address| !freed(address)).collect()
    };
    held.into_iter().for_each(|address| of.free(address));
    let device = Device::with(&[
        (INPUTS, 4 * 24),
        (TARGETS, 16),
        (TABLE, 64),
        (LOSS, 4),
        (FLAT, 4 * 42 * 6),
        (LAYOUTS, 0x1000),
        (STATE, 0x6000),
        (WORKSPACE, WORKSPACE_BYTES),
    ]);
    (Recorded { declared: of.declared, ..chain(of.kinds) }, device.holding(LAYOUTS, &of.words))
}

fn program() -> Program {
    let (recorded, mut device) = recording();
    let lifted = lift(&recorded, &mut device).expect("a recording that can be lifted");
    assert_eq!(lifted.program.validate(), Ok(()));
    lifted.program
}

#[test]
fn the_step_is_as_large_and_as_hard_as_real_ones() {
    let (recorded, mut device) = recording();
    let lifted = lift(&recorded, &mut device).expect("a recording that can be lifted");
    assert!(lifted.program.nodes.len() > 200, "{} nodes", lifted.program.nodes.len());
    assert!(lifted.unknown_kernels.contains_key("my_activation"), "{:?}", lifted.unknown_kernels);
    let outside = lifted.program.blocks.iter().filter(|block| block.lifetime == Lifetime::External);
    assert!(outside.clone().any(|block| block.size_bytes == WORKSPACE_BYTES));
}

#[test]
fn a_wrong_rewrite_of_any_pass_in_a_training_step_is_found_without_a_device() {
    let program = program();
    assert_eq!(bisect(&program, &PassSet::all(), || true), Err(Unseen::NoDifference));
    let compiled = compile(&program, &PassSet::all()).expect("valid");
    let rewritten = compiled.reports.iter().filter(|report| report.num_rewrites > 0);
    let passes: Vec<(Pass, usize)> = rewritten.map(|report| (report.pass, report.num_rewrites)).collect();
    assert!(passes.len() >= 6, "{passes:?}");
    for (pass, rewrite) in passes.into_iter().map(|(pass, num)| (pass, num.div_ceil(2))).chain([(Pass::Fuse, 3)]) {
        let planted = PassSet::all().with_wrong_rewrite(pass, rewrite);
        let found = bisect(&program, &planted, || true).unwrap_or_else(|why| panic!("{pass:?} {rewrite}: {why}"));
        assert_eq!(found.culprit, Culprit { pass, rewrite, ..found.culprit });
        if (pass, rewrite) == (Pass::Fuse, 3) {
            is_as_in_file("filetests/reproducers/planted_in_training_step.program", &found.to_string());
        }
    }
}
