//! Each case of `compile_fail` differs from the twin before it in one line, so nothing else can be what is refused.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

/// Lines that are code: no comments, no blank lines, no imports.
fn code_lines(text: &str) -> usize {
    let is_code = |line: &&str| !(line.is_empty() || line.starts_with("//") || line.starts_with("use "));
    text.lines().map(str::trim).filter(is_code).count()
}

#[test]
fn a_manager_fits_on_a_screen_and_one_without_seeds_in_a_paragraph() {
    let contract = include_str!("../../src/seed/mod.rs").replace("//! ", "");
    let example = contract.split("```").find(|block| block.contains("struct NoSeeds")).unwrap();
    assert!(code_lines(example) <= 25, "{} lines", code_lines(example));
    let fake = include_str!("../src/fake_seed_manager.rs");
    assert!(fake.lines().count() <= 120, "{} lines", fake.lines().count());
}

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
