//! Each case of `compile_fail` differs from the twin before it in one line, so nothing else can be what is refused.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

#[test]
fn every_failing_case_differs_from_its_compiling_twin_in_one_line() {
    let documentation = include_str!("../src/compile_fail.rs").replace("//! ", "");
    let blocks: Vec<Vec<&str>> =
        documentation.split("```").skip(1).step_by(2).map(|block| block.lines().collect()).collect();
    assert_eq!(blocks.len(), 10, "five cases with a twin each");
    for pair in blocks.chunks_exact(2) {
        let (twin, case) = (&pair[0], &pair[1]);
        assert_eq!(twin[0], "", "the twin must compile and run");
        assert!(case[0].starts_with("compile_fail,E"), "`{}` names no error code", case[0]);
        assert_eq!(twin.len(), case.len());
        let differing: Vec<_> = twin[1..].iter().zip(&case[1..]).filter(|(a, b)| a != b).collect();
        assert_eq!(differing.len(), 1, "{differing:#?}");
        let (before, inside) = differing.first().unwrap();
        assert!(!before.contains("record") && inside.contains("eager.record("), "{differing:#?}");
    }
}
