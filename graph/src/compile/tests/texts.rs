//! Programs as text, and texts that are none.

use proptest::prelude::*;

use super::programs::programs;
use crate::compile::{InterpretError, NodeIndex, PassSet, Program, Reproducer, Unseen, bisect, compile};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_program_and_what_is_made_of_it_print_and_parse_back(program in programs()) {
        let compiled = compile(&program, &PassSet::all()).expect("valid");
        for program in [&program, &compiled.program, &compiled.once] {
            let text = program.to_string();
            let parsed: Result<Program, _> = text.parse();
            prop_assert_eq!(parsed.as_ref(), Ok(program), "{}", text);
        }
    }
}

#[test]
fn every_form_of_a_node_prints_as_it_was_written() {
    let text = r#"# A comment.
blocks x0=48 g1=48 a2=1024
%0 alloc g1
%1 zero g1[0..48]
%2 fill a2[0..64] 0x3f800000 width 4 after []
%3 kernel "void gemm<float, 128>(\"x\")" from 7 known (x0 r[0..48], a2+64 w?[64..512] align 256, g1 rw[0..48]) grid [2 3 1] block [32 4 1] shared 16 words [0 0 0 255] bytes [8 8 8 4] after [1 2]
%4 kernel mystery unknown (g1+4 u[0..48] word 1, x0 word 0 value 0x7f)
%5 kernel act pointwise [3 4] (x0 r[0..48], g1 w[0..48]) 0:f32, 0:f32[1 3] -> 1:f32 { load 0; const f32 -0.0; max_number $0 $1; muladd $2 2.5 0xff800000; lt $0 $3; select $4 $0 $3; elu $5 1.0; convert f32 $6; power $7 0.5; gelu_erf $8 }
%6 fused 12 pending (x0 r[0..48], g1 w[0..48]) 0:f32(4:1 3:0) -> 1:f32=$1 { load 0; square $0 }
%7 copy g1[0..48] to x0[0..48]
%8 free g1
%9 empty after [0 8]
"#;
    let program: Program = text.parse().expect("a program");
    assert_eq!(program.to_string(), text.trim_start_matches("# A comment.\n"));
    assert_eq!(program.nodes[1].dependencies, [NodeIndex(0)]);
}

#[test]
fn a_text_that_is_no_program_is_refused_with_its_place_and_what_is_accepted() {
    let cases = [
        ("blocks x1=4", "line 1, column 8: found `x1`, expected `x0`, `a0` or `g0`"),
        ("blocks x0=four", "line 1, column 11: found `four`, expected a number of bytes"),
        (
            "%0 empty\n%2 empty",
            "line 2, column 4: found `empty`, expected after the number of the node, which is 1, its kind",
        ),
        (
            "%0 launch",
            "line 1, column 4: found `launch`, expected `alloc`, `free`, `empty`, `zero`, `fill`, `copy`, `kernel` or `fused`",
        ),
        ("blocks x0=4\n%0 zero g0[0..4]", "line 2, column 9: found `g0`, expected a block that `blocks` lists"),
        ("blocks x0=4\n%0 zero x0[0-4]", "line 2, column 13: found `-4`, expected `..`"),
        ("%0 empty after 3", "line 1, column 16: found `3`, expected `[`"),
        ("%0 kernel k (", "line 1, column 13: found `(`, expected `from`, `unknown`, `known`, `pointwise` or `fused`"),
        (
            "blocks x0=4\n%0 kernel k known (x0 q[0..4])",
            "line 2, column 24: found `[`, expected before this `r`, `w`, `w?`, `rw`, `u`, `align`, `word` or `value`",
        ),
        (
            "blocks x0=4\n%0 fused 1 (x0 w[0..4]) -> 0:f16=$0",
            "line 2, column 30: found `f16`, expected a type: `f32`, `f64`, `bf16`, `u8`, `u32`, `i64`",
        ),
        (
            "%0 fused 1 () -> { hop $0",
            "line 1, column 20: found `hop`, expected `load`, `const`, `muladd`, `select`, `convert`, `power`, `elu`, or the word of an operation",
        ),
        ("%0 fused 1 () -> { exp 0 }", "line 1, column 24: found `0`, expected `$`"),
        ("%0 kernel \"k", "line 1, column 11: found `\"k`, expected the name of a kernel"),
        ("%0 empty\nmore", "line 2, column 1: found `more`, expected `blocks`, `%` of a node, or the end"),
        ("%", "line 1, column 2: found the end, expected the number of the node"),
    ];
    for (text, expected) in cases {
        let error = text.parse::<Program>().expect_err(text);
        assert_eq!(error.to_string(), expected, "{text}");
    }
}

#[test]
fn a_reproducer_says_how_far_the_passes_go() {
    let error = "passes all found fuse 3\nblocks x0=4".parse::<Reproducer>().expect_err("no fuel");
    assert_eq!(
        error.to_string(),
        "line 1, column 12: found `found`, expected before this `fuel` and how many rewrites"
    );
}

#[test]
fn a_program_that_no_memory_holds_is_not_interpreted() {
    let program: Program = "blocks a0=1099511627776 x1=8\n%0 zero x1[0..8]".parse().expect("a program");
    let why = InterpretError::TooLarge { bytes: (1 << 40) + 8, most: 1 << 28 };
    assert_eq!(bisect(&program, &PassSet::all(), || true), Err(Unseen::Interpret(why)));
}
