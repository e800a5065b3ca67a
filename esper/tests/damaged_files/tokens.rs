//! Text and tokens: no host of the command predicts them, and so the file is not read, however damaged it is.

use crate::check::{Case, Content, check, of_any_format};
use crate::make::{gzip, gzip_bomb};

const UNREAD: &[&str] = &["whose target is the token that follows, which no `[host]` predicts; expected a target of"];

#[test]
fn damaged_and_odd_texts_and_files_of_tokens() {
    let text = "all work and no play ".repeat(100);
    let tokens = |count: u16| (0..count).flat_map(u16::to_le_bytes).collect::<Vec<u8>>();
    let refused = |name, content| Case::refused(name, content, UNREAD);
    let bytes = Content::Bytes;
    let mut cases = of_any_format("a.txt");
    // One is long, and that is not looked at.
    cases.remove(4);
    cases.extend([
        refused("a.txt", Content::Sparse(Vec::new(), 20 << 30)),
        refused("a.txt", Content::from("")),
        refused("a.txt", Content::from(text.clone())),
        refused("a.txt", Content::from("\u{feff}".to_owned() + &text)),
        refused("a.txt", bytes(vec![0xff; 1000])),
        refused("a.txt.gz", bytes(gzip(text.as_bytes()))),
        refused("a.txt.gz", Content::from(text)),
        refused("a.txt.gz", bytes(vec![0x1f, 0x8b])),
        refused("a.txt.gz", bytes(gzip_bomb(b""))),
        refused("a.u16", bytes(tokens(1000))),
        refused("a.u16", bytes(vec![1; 401])),
        refused("a.u16", Content::Sparse(tokens(1000), 20 << 30)),
        refused("a.u32", bytes(u32::MAX.to_le_bytes().repeat(100))),
        refused("a.u32", bytes(vec![1; 402])),
        refused("./a.bin", bytes(tokens(1000))).set("data.format=tokens_u16"),
        Case::refused("./a.bin", tokens(1000), &["data.format", "expected one of csv, npy, npz, safetensors"]),
    ]);
    check(None, cases);
}
