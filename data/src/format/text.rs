//! Text as its bytes or as the tokens of a tokenizer, and files of token numbers: windows of tokens, each to be followed by the next.

use std::path::Path;

use super::{Features, Format, Reading, Records};
use crate::{Error, Inputs, Targets, Tokenizer, unpack};

/// A text: its bytes are the tokens, unless there is a tokenizer.
pub(super) const TEXT: Format = Format {
    name: "text",
    endings: &[".txt", ".txt.gz"],
    starts: &[],
    keys: super::TEXTS,
    read: |path, reading| match reading.tokenizer {
        Some(tokenizer) => encoded(path, reading, tokenizer),
        None => read(path, reading, |[byte]: [u8; 1]| u32::from(byte), Some(256)),
    },
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
pub(in super::super) const MAX_VOCABULARY: usize = 1 << 20;
/// Largest text for a tokenizer, which needs some hundred bytes for each token while it works.
const ENCODED_BYTES: u64 = 1 << 26;

fn encoded(path: &Path, reading: &Reading<'_>, tokenizer: &Tokenizer) -> Result<Records, Error> {
    let (bytes, place) = (unpack::read_file(path, ENCODED_BYTES)?, path.display().to_string());
    let text = std::str::from_utf8(&bytes).map_err(|error| Error::Content {
        place: place.clone(),
        found: format!("a byte that is no UTF-8 at {}", error.valid_up_to()),
        expected: "text in UTF-8, which data.tokenizer takes; without it any bytes".into(),
    })?;
    let tokens = tokenizer.encode(text)?;
    let bytes_per_token = text.len() as f64 / tokens.len().max(1) as f64;
    let mut records = windows(place, reading, tokens, Some(tokenizer.vocabulary()))?;
    records.bytes_per_token = Some(bytes_per_token);
    records.notes.push(format!("{bytes_per_token:.3} bytes per token of data.tokenizer"));
    Ok(records)
}

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
    windows(place, reading, chunks.iter().map(|chunk| token(*chunk)).collect(), vocabulary)
}

fn windows(
    place: String,
    reading: &Reading<'_>,
    mut tokens: Vec<u32>,
    vocabulary: Option<usize>,
) -> Result<Records, Error> {
    let wrong = |found: String, expected: String| Error::Content { place: place.clone(), found, expected };
    let (window, num_tokens) = (reading.config.window.get(), tokens.len());
    let num_windows = num_tokens.saturating_sub(1) / window;
    if num_windows == 0 {
        let found = format!("{num_tokens} tokens");
        return Err(wrong(
            found,
            format!("{} or more: a window of {window} (data.window) and what follows", window + 1),
        ));
    }
    let needed = tokens.iter().max().map_or(0, |&largest| largest as usize + 1);
    if needed > MAX_VOCABULARY {
        return Err(wrong(format!("the token {}", needed - 1), format!("tokens below {MAX_VOCABULARY}")));
    }
    let vocabulary = vocabulary.unwrap_or(needed);
    let covered = num_windows * window;
    let notes = vec![format!(
        "{num_windows} windows of {window} tokens (data.window) of {vocabulary} different ones; the last {} tokens fill none",
        num_tokens - 1 - covered
    )];
    let following = tokens[1..=covered].to_vec();
    tokens.truncate(covered);
    let inputs = Inputs::Tokens(tokens);
    let mut records = Records::new(Features::Whole(inputs, vec![window]), notes);
    records.following = Some(Targets::Tokens { tokens: following, window, vocabulary });
    Ok(records)
}
