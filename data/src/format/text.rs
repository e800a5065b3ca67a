//! Text as its bytes, and files of token numbers: windows of tokens, each to be followed by the next.

use std::path::Path;

use super::{Features, Format, Reading, Records};
use crate::{Error, Inputs, Targets, unpack};

/// A text: its bytes are the tokens.
pub(super) const TEXT: Format = Format {
    name: "text",
    endings: &[".txt", ".txt.gz"],
    starts: &[],
    keys: super::TOKENS,
    read: |path, reading| read(path, reading, |[byte]: [u8; 1]| u32::from(byte), Some(256)),
};
/// Tokens of two bytes, the lower first.
pub(super) const TOKENS_U16: Format = Format {
    name: "tokens_u16",
    endings: &[".u16"],
    starts: &[],
    keys: super::TOKENS,
    read: |path, reading| read(path, reading, |bytes| u32::from(u16::from_le_bytes(bytes)), None),
};
/// Tokens of four bytes, the lowest first.
pub(super) const TOKENS_U32: Format = Format {
    name: "tokens_u32",
    endings: &[".u32"],
    starts: &[],
    keys: super::TOKENS,
    read: |path, reading| read(path, reading, u32::from_le_bytes, None),
};

/// Largest file, after unpacking; a token is 4 bytes as an input, and 4 as what follows.
const LIMIT_BYTES: u64 = 1 << 28;
/// Largest vocabulary: each token is an output of the network.
const MAX_VOCABULARY: usize = 1 << 20;

fn read<const N: usize>(
    path: &Path,
    reading: &Reading<'_>,
    token: impl Fn([u8; N]) -> u32,
    vocabulary: Option<usize>,
) -> Result<Records, Error> {
    let (bytes, place) = (unpack::read_file(path, LIMIT_BYTES)?, path.display().to_string());
    let wrong = |found: String, expected: String| Error::Content { place: place.clone(), found, expected };
    let (chunks, rest) = bytes.as_chunks::<N>();
    if !rest.is_empty() {
        return Err(wrong(format!("{} bytes", bytes.len()), format!("tokens of {N} bytes each")));
    }
    let window = reading.config.window.get();
    let num_windows = chunks.len().saturating_sub(1) / window;
    if num_windows == 0 {
        let found = format!("{} tokens", chunks.len());
        return Err(wrong(
            found,
            format!("{} or more: a window of {window} (data.window) and what follows", window + 1),
        ));
    }
    let mut tokens: Vec<u32> = chunks.iter().map(|chunk| token(*chunk)).collect();
    let needed = tokens.iter().max().map_or(0, |&largest| largest as usize + 1);
    if needed > MAX_VOCABULARY {
        return Err(wrong(format!("the token {}", needed - 1), format!("tokens below {MAX_VOCABULARY}")));
    }
    let vocabulary = vocabulary.unwrap_or(needed);
    let covered = num_windows * window;
    let notes = vec![format!(
        "{num_windows} windows of {window} tokens (data.window) of {vocabulary} different ones; the last {} tokens fill none",
        chunks.len() - 1 - covered
    )];
    let following = tokens[1..=covered].to_vec();
    tokens.truncate(covered);
    let inputs = Inputs::Tokens(tokens);
    let mut records = Records::new(Features::Whole(inputs, vec![window]), notes);
    records.following = Some(Targets::Tokens { tokens: following, window, vocabulary });
    Ok(records)
}
