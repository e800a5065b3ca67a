//! Text and tokens, which are read, and which no host of the command predicts.

use crate::check::{Case, Content, check, of_any_format};
use crate::make::{gzip, gzip_bomb};

const READ: &[&str] = &["data.target_kind", "target tokens, which no `[host]` predicts; expected `classes`"];
const CUT: &[&str] = &["damaged or cut short while unpacking"];

#[test]
fn damaged_and_odd_texts() {
    let text = |count| "all work and no play ".repeat(count);
    let mut cases = of_any_format("a.txt");
    cases.extend([
        Case::refused("a.txt", "", &["found 0 tokens, expected 65 or more: a window of 64 (data.window)"]),
        Case::refused("a.txt", "x".repeat(64), &["found 64 tokens, expected 65 or more"]),
        Case::refused("a.txt", "x".repeat(65), &["1 rows are to be split, expected at least 3"]),
        Case::refused("a.txt", "x".repeat(129), &["2 rows are to be split, expected at least 3"]),
        Case::refused("a.txt", text(100), READ),
        Case::refused("a.txt", "\u{feff}".to_owned() + &text(100), READ),
        Case::refused("a.txt", vec![0xff; 1000], READ),
        Case::refused("a.txt", text(10), &["found 210 tokens, expected 1001 or more"]).set("data.window=1000"),
        Case::refused("a.txt", Content::Sparse(Vec::new(), 1 << 30), &["1073741824 bytes, expected at most 268435456"]),
        Case::refused("a.txt.gz", gzip(text(100).as_bytes()), READ),
        Case::refused("a.txt.gz", text(100), CUT),
        Case::refused("a.txt.gz", vec![0x1f, 0x8b], CUT),
        Case::refused("a.txt.gz", gzip(text(100).as_bytes())[..60].to_vec(), CUT),
        Case::refused("a.txt.gz", gzip_bomb(b""), &["larger than ", "after unpacking"]),
    ]);
    check(None, cases);
}

#[test]
fn damaged_and_odd_files_of_tokens() {
    let tokens = |count: u16| (0..count).flat_map(u16::to_le_bytes).collect::<Vec<u8>>();
    let mut cases = of_any_format("a.u16");
    cases.extend([
        Case::refused("a.u16", "", &["found 0 tokens, expected 65 or more"]),
        Case::refused("a.u16", vec![1; 401], &["found 401 bytes, expected tokens of 2 bytes each"]),
        Case::refused("a.u16", tokens(50), &["found 50 tokens, expected 65 or more"]),
        Case::refused("a.u16", tokens(65), &["1 rows are to be split"]),
        Case::refused("a.u16", tokens(1000), READ),
        Case::refused("a.u16", Content::Sparse(tokens(1000), 1 << 30), &["expected at most 268435456"]),
        Case::refused("a.u32", "", &["found 0 tokens"]),
        Case::refused("a.u32", vec![1; 402], &["found 402 bytes, expected tokens of 4 bytes each"]),
        Case::refused(
            "a.u32",
            u32::MAX.to_le_bytes().repeat(100),
            &["the token 4294967295, expected tokens below 1048576"],
        ),
        Case::refused("a.u32", tokens(1000), &["expected tokens below 1048576"]),
        Case::refused("a.u32", [7, 0, 0, 0].repeat(1000), READ),
        Case::refused("./a.bin", tokens(1000), &["data.format", "expected one of csv, npy, npz, safetensors, images"]),
    ]);
    check(None, cases);
}
