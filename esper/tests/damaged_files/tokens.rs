//! Text and tokens: any bytes are a text, so what can be wrong is how many there are, how they are packed, and how large tokens are.

use crate::check::{Case, Content, check, of_any_format};
use crate::make::{gzip, gzip_bomb};

const OF_BYTES: &[&str] = &["tokens (data.window) of 256 different ones"];
const OF_NUMBERS: &[&str] = &["15 windows of 64 tokens (data.window) of 1000 different ones"];
const TOO_MANY_BYTES: &[&str] = &["found 21474836480 bytes, expected at most 268435456"];

#[test]
fn damaged_and_odd_texts_and_files_of_tokens() {
    let text = "all work and no play ".repeat(100);
    let tokens = |count: u16| (0..count).flat_map(u16::to_le_bytes).collect::<Vec<u8>>();
    let bytes = Content::Bytes;
    let mut cases = of_any_format("a.txt");
    cases.extend([
        Case::refused("a.txt", "", &["found 0 tokens, expected 65 or more: a window of 64 (data.window)"]),
        Case::trains("a.txt", text.clone(), OF_BYTES),
        Case::trains("a.txt", "\u{feff}".to_owned() + &text, OF_BYTES),
        Case::trains("a.txt", bytes(vec![0xff; 1000]), OF_BYTES),
        Case::trains("a.txt.gz", bytes(gzip(text.as_bytes())), OF_BYTES),
        Case::refused("a.txt.gz", text, &["damaged or cut short while unpacking: invalid gzip header"]),
        Case::refused("a.txt.gz", bytes(vec![0x1f, 0x8b]), &["damaged or cut short while unpacking"]),
        Case::refused("a.txt.gz", bytes(gzip_bomb(b"")), &["after unpacking, the most that is accepted"]),
        Case::trains("a.u16", bytes(tokens(1000)), OF_NUMBERS),
        Case::refused("a.u16", bytes(vec![1; 401]), &["found 401 bytes, expected tokens of 2 bytes each"]),
        Case::refused("a.u16", Content::Sparse(tokens(1000), 20 << 30), TOO_MANY_BYTES),
        Case::refused(
            "a.u32",
            bytes(u32::MAX.to_le_bytes().repeat(100)),
            &["found the token 4294967295, expected tokens below 1048576"],
        ),
        Case::refused("a.u32", bytes(vec![1; 402]), &["found 402 bytes, expected tokens of 4 bytes each"]),
        Case::trains("./a.bin", bytes(tokens(1000)), OF_NUMBERS).set("data.format=tokens_u16"),
        Case::refused("./a.bin", tokens(1000), &["data.format", "expected one of csv, npy, npz, safetensors"]),
    ]);
    check(None, cases);
}
