//! Tokenizers of Hugging Face: a `tokenizer.json`, which becomes part of what a run keeps.

use std::fmt;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::format::MAX_VOCABULARY;
use super::{Error, unpack};

/// Largest document: those of the largest vocabularies in use come to half of it.
const LIMIT_BYTES: u64 = 1 << 24;

/// A `tokenizer.json` as it was read, and what it is told apart by.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenizerFile {
    /// `data.tokenizer` of the run that learned with it.
    pub source: String,
    /// BLAKE3 of `document`, hexadecimal.
    pub digest: String,
    /// The file.
    pub document: String,
}

impl TokenizerFile {
    /// Reads a `tokenizer.json`.
    ///
    /// # Errors
    /// [`Error::Config`] where it cannot be read; [`Error::Content`] for a file that is none, or is larger than 16 MiB.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let source = path.display().to_string();
        let bytes = unpack::read_file(path, LIMIT_BYTES).map_err(|error| match error {
            Error::Read { source: problem, .. } => {
                let problem = format!("cannot read {source}: {problem}; expected {EXPECTED}");
                Error::Config { key: "data.tokenizer", problem }
            }
            other => other,
        })?;
        let document = String::from_utf8(bytes).map_err(|error| Error::Content {
            place: source.clone(),
            found: format!("a byte that is no UTF-8 at {}", error.utf8_error().valid_up_to()),
            expected: EXPECTED.into(),
        })?;
        let digest = digest(&document);
        let file = Self { source, digest, document };
        file.open(&file.source).map(|_| file)
    }

    /// What it does. `place` is where it stands, for errors.
    ///
    /// # Errors
    /// [`Error::Content`] when it is none, was changed since it was read, or has too many tokens.
    pub fn open(&self, place: &str) -> Result<Tokenizer, Error> {
        let wrong = |found: String, expected: String| Error::Content { place: place.into(), found, expected };
        let found = digest(&self.document);
        if found != self.digest {
            return Err(wrong(
                format!("a tokenizer with the digest {found}"),
                format!("{}, that of {} as it was read", self.digest, self.source),
            ));
        }
        let growth = largest_growth(&self.document).ok_or_else(|| wrong("no JSON".to_owned(), EXPECTED.into()))?;
        if growth > MAX_GROWTH {
            let found = "a tokenizer that makes texts many times longer before it looks at them, or after".to_owned();
            return Err(wrong(
                found,
                format!("replacements that together make a text at most {MAX_GROWTH} times longer"),
            ));
        }
        let opened = guarded(|| tokenizers::Tokenizer::from_bytes(&self.document));
        let mut inner = opened.map_err(|problem| wrong(problem, EXPECTED.into()))?;
        // Either would change the text without a word.
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|error| wrong(error.to_string(), EXPECTED.into()))?;
        let largest = inner.get_vocab(true).into_values().max();
        let vocabulary = largest.map_or(0, |largest| largest as usize + 1);
        if !(1..=MAX_VOCABULARY).contains(&vocabulary) {
            let found = largest.map_or_else(|| "no tokens".to_owned(), |largest| format!("the token {largest}"));
            return Err(wrong(found, format!("tokens below {MAX_VOCABULARY}")));
        }
        Ok(Tokenizer { inner, vocabulary, place: place.into() })
    }
}

/// So many times longer may replacements make a text, and all of them together: those in use come to 12.
const MAX_GROWTH: usize = 256;

/// How many times longer texts may become by what is replaced in them and put before them: on the way to tokens, or back.
fn largest_growth(document: &str) -> Option<usize> {
    let document: Value = serde_json::from_str(document).ok()?;
    ["normalizer", "pre_tokenizer", "decoder"].into_iter().map(|part| growth(&document[part])).max()
}

/// Steps follow each other, so what each does multiplies.
fn growth(value: &Value) -> usize {
    let inner = match value {
        Value::Object(fields) => fields.values().map(growth).fold(1, usize::saturating_mul),
        Value::Array(values) => values.iter().map(growth).fold(1, usize::saturating_mul),
        _ => 1,
    };
    let len = |key: &str| value[key].as_str().map_or(0, str::len);
    let own = match (value["type"].as_str(), value["pattern"]["String"].as_str()) {
        (Some("Replace"), Some(pattern)) if !pattern.is_empty() => len("content").div_ceil(pattern.len()).max(1),
        // It may stand between all characters.
        (Some("Replace"), _) => len("content") + 1,
        (Some("Prepend"), _) => len("prepend") + 1,
        _ => 1,
    };
    own.saturating_mul(inner)
}

const EXPECTED: &str = "a tokenizer.json of Hugging Face tokenizers";

fn digest(document: &str) -> String {
    blake3::hash(document.as_bytes()).to_hex().to_string()
}

/// Words for whatever the library refuses; some of its documents make it panic.
fn guarded<T>(work: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    match panic::catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(_) => Err("a document that its library cannot work with".to_owned()),
    }
}

/// Turns text into tokens and back.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    vocabulary: usize,
    place: String,
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocabulary", &self.vocabulary)
            .field("place", &self.place)
            .finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// All tokens are below it.
    #[must_use]
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// The tokens of a text, none added around them.
    ///
    /// # Errors
    /// [`Error::Content`] for a text that has no tokens in this vocabulary.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, Error> {
        let encoded = guarded(|| self.inner.encode_fast(text, false));
        encoded.map(|encoded| encoded.get_ids().to_vec()).map_err(|problem| self.refused(&problem))
    }

    /// What `tokens` add to a text that begins with `before`.
    ///
    /// # Errors
    /// [`Error::Content`] for tokens that cannot be put together.
    pub fn text_after(&self, before: &[u32], tokens: &[u32]) -> Result<String, Error> {
        let decoded = |tokens: &[u32]| guarded(|| self.inner.decode(tokens, false));
        let all = decoded(&[before, tokens].concat()).map_err(|problem| self.refused(&problem))?;
        let first = decoded(before).map_err(|problem| self.refused(&problem))?;
        // A character whose bytes are not all there yet is told with the token that completes it.
        let same = first.chars().zip(all.chars()).take_while(|(first, all)| first == all);
        Ok(all[same.map(|(character, _)| character.len_utf8()).sum()..].to_owned())
    }

    fn refused(&self, problem: &str) -> Error {
        Error::Content {
            place: self.place.clone(),
            found: problem.to_owned(),
            expected: "a tokenizer that has tokens for this text".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words of two sentences, and what stands for all others.
    fn words() -> String {
        r#"{"version":"1.0","truncation":{"direction":"Right","max_length":2,"strategy":"LongestFirst","stride":0},"padding":null,
            "added_tokens":[],"normalizer":null,"pre_tokenizer":{"type":"Whitespace"},"post_processor":null,"decoder":null,
            "model":{"type":"WordLevel","vocab":{"?":0,"the":1,"cat":2,"sat":3,"on":4,"mat":5},"unk_token":"?"}}"#
            .to_owned()
    }

    fn file(document: String) -> TokenizerFile {
        TokenizerFile { source: "t.json".into(), digest: digest(&document), document }
    }

    #[track_caller]
    fn refused(file: &TokenizerFile, expected: &str) {
        let found = file.open("here").unwrap_err().to_string();
        assert!(found.starts_with("here: ") && found.contains(expected), "{found}");
    }

    #[test]
    fn text_becomes_tokens_that_nothing_cuts_and_tokens_become_text() {
        let tokenizer = file(words()).open("here").unwrap();
        assert_eq!(tokenizer.vocabulary(), 6);
        let tokens = tokenizer.encode("the cat sat on the dog").unwrap();
        assert_eq!(tokens, [1, 2, 3, 4, 1, 0]);
        assert_eq!(tokenizer.text_after(&tokens[..3], &tokens[3..5]).unwrap(), " on the");
        assert_eq!(tokenizer.text_after(&[], &tokens[..2]).unwrap(), "the cat");
    }

    #[test]
    fn a_character_of_several_tokens_is_told_once_it_is_whole() {
        let bytes = r#"{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":null,"pre_tokenizer":null,
            "post_processor":null,"decoder":{"type":"ByteFallback"},
            "model":{"type":"BPE","vocab":{"<0xC3>":0,"<0xA9>":1,"a":2},"merges":[],"byte_fallback":true}}"#;
        let tokenizer = file(bytes.to_owned()).open("here").unwrap();
        assert_eq!(tokenizer.text_after(&[2, 0], &[1]).unwrap(), "é");
    }

    #[test]
    fn a_document_that_makes_texts_many_times_longer_is_refused() {
        let with = |part: &str, what: &str| {
            file(words().replace(&format!(r#""{part}":null"#), &format!(r#""{part}":{what}"#)))
        };
        let replace =
            |pattern: &str, content: &str| format!(r#"{{"type":"Replace","pattern":{pattern},"content":"{content}"}}"#);
        let twice = vec![replace(r#"{"String":"a"}"#, "aa"); 40].join(",");
        let long = "b".repeat(1 << 20);
        for (part, what) in [
            ("normalizer", format!(r#"{{"type":"Sequence","normalizers":[{twice}]}}"#)),
            ("normalizer", replace(r#"{"Regex":""}"#, &long)),
            ("normalizer", format!(r#"{{"type":"Prepend","prepend":"{long}"}}"#)),
            ("decoder", format!(r#"{{"type":"Sequence","decoders":[{twice}]}}"#)),
        ] {
            refused(&with(part, &what), "times longer");
        }
        // As those in use have them.
        let spaces = replace(r#"{"String":" "}"#, "▁");
        let quotes = vec![replace(r#"{"String":"``"}"#, "'"); 30].join(",");
        let usual =
            format!(r#"{{"type":"Sequence","normalizers":[{{"type":"Prepend","prepend":"▁"}},{spaces},{quotes}]}}"#);
        with("normalizer", &usual).open("here").unwrap();
    }

    #[test]
    fn what_is_no_tokenizer_or_another_one_is_refused_by_place() {
        refused(&file("{}".to_owned()), "expected a tokenizer.json");
        refused(
            &file(words().replace(r#""mat":5"#, r#""mat":4000000000"#)),
            "the token 4000000000, expected tokens below",
        );
        refused(
            &file(words().replace(r#""vocab":{"?":0,"the":1,"cat":2,"sat":3,"on":4,"mat":5}"#, r#""vocab":{}"#)),
            "no tokens",
        );
        let changed = TokenizerFile { document: words().replace("cat", "dog"), ..file(words()) };
        refused(&changed, "that of t.json as it was read");
        let unknown = file(words().replace(r#","unk_token":"?""#, r#","unk_token":"!""#)).open("here").unwrap();
        let error = unknown.encode("dog").unwrap_err().to_string();
        assert!(error.starts_with("here: ") && error.contains("tokens for this text"), "{error}");
    }
}
