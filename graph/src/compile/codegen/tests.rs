//! Sources of kernels, and that a compiler takes them where there is one.

mod functions;
mod reducing;

use std::process::Command;

use super::expression::expression;
use super::{can_generate, generate};
use crate::compile::block::{BlockId, Region};
use crate::compile::fused::{Access, Body, Store};
use crate::compile::kernel::{Code, Kernel};
use crate::compile::pointwise::{BinaryOp, Comparison, ElementType, Step, UnaryOp};

const ALL_TYPES: [ElementType; 6] =
    [ElementType::F32, ElementType::F64, ElementType::Bf16, ElementType::U8, ElementType::U32, ElementType::I64];

fn all_steps() -> Vec<Step> {
    use BinaryOp::{Add, Divide, Maximum, MaximumNumber, Minimum, MinimumNumber, Multiply, Subtract};
    use Comparison::{Equal, Greater, GreaterOrEqual, Less, LessOrEqual, NotEqual};
    use UnaryOp::{
        Abs, Ceil, Cos, Erf, Exp, Floor, Gelu, GeluErf, Log, Negate, NormalCdf, Reciprocal, Relu, Round, Sigmoid, Sign,
        Silu, Sin, Sqrt, Square, Tanh,
    };
    let unary =
        [Abs, Cos, Erf, Exp, Gelu, GeluErf, Log, Negate, Reciprocal, Relu, Sigmoid, Silu, Sin, Sqrt, Square, Tanh];
    let mut steps: Vec<Step> = unary.map(|op| Step::Unary(op, 0)).to_vec();
    let binary = [Add, Divide, Maximum, MaximumNumber, Minimum, MinimumNumber, Multiply, Subtract];
    steps.extend(binary.map(|op| Step::Binary(op, [0, 1])));
    let comparisons = [Equal, Greater, GreaterOrEqual, Less, LessOrEqual, NotEqual];
    steps.extend(comparisons.map(|comparison| Step::Compare(comparison, [0, 1])));
    for (factor, term) in [(2.5_f32, 0.0_f32), (1.0, 3.0), (2.5, 3.0)] {
        steps.push(Step::MultiplyAdd { value: 0, factor: factor.to_bits(), term: term.to_bits() });
    }
    steps.push(Step::Power(0, 2.5_f32.to_bits()));
    steps.push(Step::Elu(0, 1.5_f32.to_bits()));
    steps.extend([Ceil, Floor, NormalCdf, Round, Sign].map(|op| Step::Unary(op, 0)));
    steps.extend(ALL_TYPES.map(|to| Step::Convert(to, 0)));
    steps.extend(ALL_TYPES.map(|of| Step::Constant(of, 3.0_f64.to_bits())));
    steps
}

/// A kernel that stores the result of every step for which there is code.
fn kernel(element: ElementType, elements: usize) -> Kernel {
    let size_bytes = element.size_bytes();
    let access = |start: usize, dims: &[(usize, usize)]| {
        let len = super::super::fused::extent(dims) * size_bytes;
        Access { region: Region::new(BlockId(0), start, start + len), element, dims: dims.to_vec() }
    };
    // Contiguous, a row for all, a number for all, transposed.
    let operands = vec![
        access(0, &[(elements, 1)]),
        access(0, &[(elements / 8, 0), (8, 1)]),
        access(0, &[(elements, 0)]),
        access(0, &[(elements / 8, 1), (8, elements / 8)]),
    ];
    let mut body =
        Body { elements, columns: 1, operands, outputs: Vec::new(), steps: (0..4).map(Step::Load).collect() };
    let known = [element; 4];
    for step in all_steps().into_iter().filter(|step| expression(step, &known).is_some()) {
        body.steps.push(step);
    }
    if element.is_integer() {
        body.steps.push(Step::Select([0, 2, 3]));
    }
    let types = body.types().expect("the types fit");
    for (step, &element) in types.iter().enumerate() {
        let len = elements * element.size_bytes();
        body.outputs.push(Store { region: Region::new(BlockId(step + 1), 0, len), element, step, is_per_row: false });
    }
    assert!(can_generate(&body));
    let mut kernel = body.into_kernel();
    generate(&mut kernel);
    kernel
}

fn source(kernel: &Kernel) -> &str {
    match &kernel.code {
        Code::Generated(source) => source,
        Code::Recorded(_) => panic!("a generated kernel"),
    }
}

#[test]
fn equal_kernels_share_a_source_and_others_have_another_name() {
    let small = kernel(ElementType::F32, 64);
    assert_eq!(small, kernel(ElementType::F32, 64));
    assert_ne!(small.name, kernel(ElementType::F32, 72).name);
    assert_eq!((small.launch.grid, small.launch.block), ([1, 1, 1], [256, 1, 1]));
    let large = kernel(ElementType::F32, 1 << 23);
    assert_eq!(large.launch.grid, [4096, 1, 1]);
    assert!(source(&large).contains("float4") && source(&large).contains("unit += 1048576u"));
    assert!(!source(&small).contains("float4"));
}

#[test]
fn what_the_recorded_kernels_contract_is_contracted_by_name_and_nothing_else() {
    let types = [ElementType::F32];
    let text = |step| expression(&step, &types).expect("there is code");
    let affine = Step::MultiplyAdd { value: 0, factor: 2.0_f32.to_bits(), term: 1.0_f32.to_bits() };
    assert_eq!(text(affine), "__fmaf_rn(s0, __uint_as_float(0x40000000u), __uint_as_float(0x3F800000u))");
    assert_eq!(text(Step::Binary(BinaryOp::Multiply, [0, 0])), "__fmul_rn(s0, s0)");
    assert_eq!(text(Step::Unary(UnaryOp::Sigmoid, 0)), "__frcp_rn(exp_plus(-s0, 1.0f))");
    let unknown = Step::MultiplyAdd { value: 0, factor: 2.5_f32.to_bits(), term: 1.0_f32.to_bits() };
    assert_eq!(expression(&unknown, &[ElementType::Bf16]), None);
}

#[test]
fn a_compiler_takes_every_source_where_there_is_one() {
    if Command::new("nvcc").arg("--version").output().is_err() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mut text = String::new();
    for (index, element) in ALL_TYPES.into_iter().enumerate() {
        for elements in [64, 1 << 15, 1 << 23] {
            // Each source is a unit of its own; here they share one file.
            let kernel = kernel(element, elements);
            text.push_str(&format!("namespace unit_{index}_{elements} {{\n{}}}\n", source(&kernel)));
        }
    }
    let (input, output) = (folder.path().join("kernels.cu"), folder.path().join("kernels.ptx"));
    std::fs::write(&input, text).expect("a file");
    let mut compiler = Command::new("nvcc");
    compiler.args(["-arch=sm_90a", "-std=c++17", "--fmad=false", "-Werror", "all-warnings", "-ptx", "-o"]);
    let result = compiler.arg(&output).arg(&input).output().expect("the compiler runs");
    assert!(result.status.success(), "{}", String::from_utf8_lossy(&result.stderr));
    let found = std::fs::read_to_string(&output).expect("a file");
    assert_eq!(found.matches(".visible .entry esper_pw_").count(), 18);
}
