//! `esper generate`: a language model goes on with a text.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use esper_export::{Generation, Sampling};
use leyline::error::{Error as _, ErrorKind};
use serde_json::json;

use super::evaluate::on;
use crate::bench::device_name;
use crate::config::DeviceName;
use crate::data::{Preparation, TargetKind, Tokenizer};
use crate::exit::UsageError;
use crate::output;
use crate::signature::SignatureArgs;
use crate::trained::Subject;

/// Flags of `esper generate`.
#[derive(Debug, Clone, Args)]
pub(super) struct GenerateArgs {
    /// Folder that `esper train` or `esper export` wrote, of a language model.
    dir: PathBuf,
    /// What to go on with: a text or, for a model of other tokens, their numbers with spaces between them.
    #[arg(long, value_name = "TEXT")]
    prompt: String,
    /// Tokens to add; of a model of texts, bytes.
    #[arg(long, value_name = "N", default_value = "200", allow_negative_numbers = true)]
    tokens: usize,
    /// What logits are divided by, from 0 on: 0 takes the likeliest token, 1 draws as the model says, more draws more evenly.
    #[arg(long, value_name = "T", default_value = "0.8", allow_negative_numbers = true)]
    temperature: f64,
    /// Draw from the likeliest K tokens only.
    #[arg(long, value_name = "K")]
    top_k: Option<NonZeroUsize>,
    /// Seed of the draws.
    #[arg(long, value_name = "N", default_value = "1", allow_negative_numbers = true)]
    seed: u64,
    /// Print one JSON object when all is done: the text or absent, and the tokens, without the prompt.
    #[arg(long)]
    json: bool,
    /// `cpu`, or `cuda:N` in a build with the `cuda` feature.
    #[arg(long, value_name = "DEVICE", value_parser = device_name, default_value = "cpu")]
    device: DeviceName,
    #[command(flatten)]
    signature: SignatureArgs,
}

/// Runs the sub-command.
///
/// # Errors
/// [`UsageError`] when the folder has no language model, or a flag cannot be used, with what is accepted; when the device fails.
pub(super) fn command(args: &GenerateArgs) -> anyhow::Result<ExitCode> {
    let subject = Subject::open(&args.dir, &args.signature, &|_| on(args.device))?;
    let target = &subject.preparation.target;
    if target.kind != TargetKind::Tokens {
        let (shown, kind) = (args.dir.display(), target.kind);
        let problem = format!("{shown} predicts {kind}; expected a language model, as `--data text:FILE` trains it");
        return Err(UsageError(problem).into());
    }
    let speech = Speech::of(&subject.preparation)?;
    let prompt = speech.prompt(args, target.num_outputs())?;
    let sampling = Sampling { temperature: args.temperature, top_k: args.top_k, seed: args.seed };
    let generation = Generation::new(&subject.model, &prompt, sampling).map_err(unusable)?;
    let mut said = Said::new(&speech, prompt);
    if !args.json {
        output::print(&if matches!(speech, Speech::Numbers) { args.prompt.clone() } else { shown(&args.prompt) })?;
    }
    for token in generation.take(args.tokens) {
        let more = shown(&said.push(token.map_err(unusable)?)?);
        if !args.json && !output::wrote(&more)? {
            // Nobody reads on.
            return Ok(ExitCode::SUCCESS);
        }
    }
    if args.json {
        let (text, tokens) = (said.text()?, said.tokens());
        output::print(&format!("{}\n", json!({ "text": text, "tokens": tokens })))?;
    } else {
        output::print(&format!("{}\n", shown(&said.rest()?)))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What tokens are.
enum Speech {
    /// Bytes of a text.
    Bytes,
    /// Those of a tokenizer.
    Tokenizer(Box<Tokenizer>),
    /// Numbers that mean nothing here.
    Numbers,
}

impl Speech {
    fn of(preparation: &Preparation) -> anyhow::Result<Self> {
        Ok(match preparation.open_tokenizer()? {
            Some(tokenizer) => Self::Tokenizer(Box::new(tokenizer)),
            None if preparation.target.is_text => Self::Bytes,
            None => Self::Numbers,
        })
    }

    /// The tokens of the prompt.
    fn prompt(&self, args: &GenerateArgs, vocabulary: usize) -> anyhow::Result<Vec<u32>> {
        match self {
            Self::Bytes => return Ok(args.prompt.bytes().map(u32::from).collect()),
            Self::Tokenizer(tokenizer) => {
                return tokenizer.encode(&args.prompt).map_err(|error| UsageError(format!("--prompt: {error}")).into());
            }
            Self::Numbers => {}
        }
        let number = |word: &str| {
            let token = word.parse::<u32>().ok().filter(|&token| (token as usize) < vocabulary);
            let shown = word.escape_debug();
            token.ok_or_else(|| {
                let last = vocabulary.saturating_sub(1);
                UsageError(format!(
                    "--prompt: `{shown}` is no token; expected numbers from 0 to {last} with spaces between them"
                ))
                .into()
            })
        };
        args.prompt.split_whitespace().map(number).collect()
    }
}

/// What was said so far, and what of it can be told: characters are told when they are whole.
struct Said<'a> {
    speech: &'a Speech,
    num_prompt: usize,
    tokens: Vec<u32>,
    /// Tokens that are told.
    num_told: usize,
    /// Bytes of the text of the others that are told: the first of them ended characters and began one.
    ahead: usize,
    /// The first token that a decoder is shown again.
    shown_from: usize,
}

impl<'a> Said<'a> {
    fn new(speech: &'a Speech, prompt: Vec<u32>) -> Self {
        Self { speech, num_prompt: prompt.len(), num_told: prompt.len(), ahead: 0, shown_from: 0, tokens: prompt }
    }

    /// Tokens behind the prompt.
    fn tokens(&self) -> &[u32] {
        &self.tokens[self.num_prompt..]
    }

    /// Takes a token; what can be told now that could not before.
    fn push(&mut self, token: u32) -> anyhow::Result<String> {
        self.tokens.push(token);
        let waiting = &self.tokens[self.num_told..];
        let (told, whole) = match self.speech {
            Speech::Numbers => (format!(" {token}"), 1),
            Speech::Bytes => {
                let whole = whole_bytes(&bytes_of(waiting));
                (text_of(&waiting[..whole]), whole)
            }
            Speech::Tokenizer(tokenizer) => {
                let text = self.waiting_text(tokenizer)?;
                let num_finished = finished(&text);
                // A character has four bytes at most: what is not whole after three more tokens never will be.
                let (end, whole) = if num_finished == text.len() || waiting.len() > 3 {
                    (text.len(), waiting.len())
                } else if num_finished > self.ahead {
                    // The last token ends a character and begins another.
                    (num_finished, waiting.len() - 1)
                } else {
                    return Ok(String::new());
                };
                (text[self.told_of(&text).min(end)..end].to_owned(), whole)
            }
        };
        if whole > 0 && self.num_told - self.shown_from >= LOOKED_AT {
            self.shown_from = self.num_told;
        }
        self.num_told += whole;
        if let Speech::Tokenizer(tokenizer) = self.speech {
            self.ahead = finished(&self.waiting_text(tokenizer)?);
        }
        Ok(told)
    }

    /// As much of what was told as a decoder may look back at.
    fn before(&self) -> &[u32] {
        &self.tokens[self.shown_from..self.num_told]
    }

    /// What the tokens that are not told, or not in full, add to those before.
    fn waiting_text(&self, tokenizer: &Tokenizer) -> anyhow::Result<String> {
        let waiting = &self.tokens[self.num_told..];
        Ok(if waiting.is_empty() { String::new() } else { tokenizer.text_after(self.before(), waiting)? })
    }

    /// How many bytes of this text are told. More tokens may have changed it, so that a character goes over the end of what was told.
    fn told_of(&self, text: &str) -> usize {
        text.ceil_char_boundary(self.ahead)
    }

    /// What is left at the end.
    fn rest(&self) -> anyhow::Result<String> {
        Ok(match self.speech {
            Speech::Numbers => String::new(),
            Speech::Bytes => text_of(&self.tokens[self.num_told..]),
            Speech::Tokenizer(tokenizer) => {
                let text = self.waiting_text(tokenizer)?;
                text[self.told_of(&text)..].to_owned()
            }
        })
    }

    /// All of it, where it is text.
    fn text(&self) -> anyhow::Result<Option<String>> {
        let (prompt, tokens) = self.tokens.split_at(self.num_prompt);
        match self.speech {
            Speech::Numbers => Ok(None),
            Speech::Bytes => Ok(Some(text_of(tokens))),
            Speech::Tokenizer(tokenizer) => Ok(Some(tokenizer.text_after(prompt, tokens)?)),
        }
    }
}

/// Tokens before new ones that their text may depend on, or more.
const LOOKED_AT: usize = 16;

fn bytes_of(tokens: &[u32]) -> Vec<u8> {
    tokens.iter().filter_map(|&token| u8::try_from(token).ok()).collect()
}

fn text_of(tokens: &[u32]) -> String {
    String::from_utf8_lossy(&bytes_of(tokens)).into_owned()
}

/// How many bytes of what a decoder says more tokens cannot change: those before replacements at its end.
fn finished(text: &str) -> usize {
    text.trim_end_matches(char::REPLACEMENT_CHARACTER).len()
}

/// How many bytes from the start on are whole characters, or can never be any.
fn whole_bytes(bytes: &[u8]) -> usize {
    let mut whole = 0;
    while let Err(error) = std::str::from_utf8(&bytes[whole..]) {
        whole += error.valid_up_to();
        let Some(wrong) = error.error_len() else { return whole };
        whole += wrong;
    }
    bytes.len()
}

/// What a flag is to blame for.
fn unusable(error: esper_export::Error) -> anyhow::Error {
    match &error {
        esper_export::Error::Sampling { field: "prompt" | "temperature", .. } => {
            UsageError(format!("--{error}").replace('`', "")).into()
        }
        other if other.kind() == ErrorKind::LayoutMismatch => UsageError(error.to_string()).into(),
        _ => error.into(),
    }
}

/// Without what could move the cursor of a terminal or change its colors.
fn shown(text: &str) -> String {
    let is_harmless = |c: char| !c.is_control() || matches!(c, '\n' | '\t');
    text.chars().map(|c| if is_harmless(c) { c } else { char::REPLACEMENT_CHARACTER }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::TokenizerFile;

    #[test]
    fn characters_come_when_they_are_whole_and_wrong_bytes_are_replaced() {
        let mut said = Said::new(&Speech::Bytes, vec![0xe2]);
        let mut push = |bytes: &[u8]| bytes.iter().map(|&byte| said.push(byte.into()).unwrap()).collect::<Vec<_>>();
        assert_eq!(push("aé€".as_bytes()), ["a", "", "é", "", "", "€"]);
        assert_eq!(push(&[0xc3, b'x']), ["", "\u{fffd}x"]);
        assert_eq!(push(&[0xe2, 0xc3, 0xa9]), ["", "\u{fffd}", "é"], "a wrong byte takes no right one with it");
        assert_eq!(push(&[0xe2]), [""]);
        assert_eq!(said.rest().unwrap(), "\u{fffd}");
        assert_eq!(said.text().unwrap().unwrap(), "aé€\u{fffd}x\u{fffd}é\u{fffd}");
        assert_eq!(said.tokens().len(), 12);
    }

    fn tokenizer(decoder: &str, vocabulary: &[String]) -> Speech {
        let tokens: Vec<String> =
            vocabulary.iter().enumerate().map(|(id, token)| format!("\"{token}\":{id}")).collect();
        let document = format!(
            r#"{{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":null,"pre_tokenizer":null,"post_processor":null,
            "decoder":{decoder},"model":{{"type":"BPE","vocab":{{{}}},"merges":[],"byte_fallback":true}}}}"#,
            tokens.join(",")
        );
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), document).unwrap();
        Speech::Tokenizer(Box::new(TokenizerFile::read(file.path()).unwrap().open("here").unwrap()))
    }

    /// Whose tokens are bytes, which become characters in runs of any length, or none of a run does.
    fn tokenizer_of_bytes() -> Speech {
        let bytes: Vec<String> = (0..256).map(|byte| format!("<0x{byte:02X}>")).collect();
        tokenizer(r#"{"type":"ByteFallback"}"#, &bytes)
    }

    #[test]
    fn what_is_told_by_and_by_is_the_text() {
        let (speech, text) = (tokenizer_of_bytes(), "語言模型 “é” 😀, ".repeat(4));
        for prompt in ["", "a", "語言模型語言模型語言模型"] {
            let mut said = Said::new(&speech, prompt.bytes().map(u32::from).collect());
            let mut told: String = text.bytes().map(|byte| said.push(byte.into()).unwrap()).collect();
            told += &said.rest().unwrap();
            assert_eq!((&told, said.text().unwrap().unwrap()), (&text, text.clone()), "after `{prompt}`");
        }
        let mut said = Said::new(&speech, Vec::new());
        let told: Vec<String> = [0xff; 5].map(|byte| said.push(byte).unwrap()).into();
        assert_eq!(told, ["", "", "", &"\u{fffd}".repeat(4), ""], "what was told is not told again");
    }

    #[test]
    fn a_token_that_ends_a_character_and_begins_the_next_tells_what_it_ends() {
        let decoder = r#"{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true}"#;
        // As that decoder spells the bytes e0, b8 81 e0, b8 81, and ff.
        let speech = tokenizer(decoder, &["à", "¸ģà", "¸ģ", "ÿ"].map(str::to_owned));
        let check = |tokens: &[u32], expected: &[&str], rest: &str| {
            let mut said = Said::new(&speech, Vec::new());
            let told: Vec<String> = tokens.iter().map(|&token| said.push(token).unwrap()).collect();
            assert_eq!((told.iter().map(|told| &**told).collect(), &*said.rest().unwrap()), (expected.to_vec(), rest));
            assert_eq!(told.concat() + rest, said.text().unwrap().unwrap());
        };
        check(&[0, 1, 1, 1, 1, 1, 2, 0, 2], &["", "ก", "ก", "ก", "ก", "ก", "ก", "", "ก"], "");
        check(&[[0].as_slice(), &[1; 40]].concat(), &[[""].as_slice(), &["ก"; 40]].concat(), "\u{fffd}");
        check(&[0, 1, 3, 1, 2], &["", "ก", "", "", "\u{fffd}\u{fffd}\u{fffd}\u{fffd}ก"], "");
        check(&[0, 1, 3, 3, 3, 2], &["", "ก", "", "", "\u{fffd}\u{fffd}\u{fffd}\u{fffd}", ""], "\u{fffd}\u{fffd}");
    }

    #[test]
    fn a_decoder_that_changes_what_was_told_goes_on_with_whole_characters() {
        // The second token ends ก and begins another, whose end makes é of the x that was told.
        let decoder = r#"{"type":"Sequence","decoders":[
            {"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true},
            {"type":"Replace","pattern":{"String":"xก"},"content":"éy"}]}"#;
        let speech = tokenizer(decoder, &["à", "¸ģxà", "¸ģ"].map(str::to_owned));
        let mut said = Said::new(&speech, Vec::new());
        assert_eq!([0, 1, 2].map(|token| said.push(token).unwrap()), ["", "กx", "y"]);
        assert_eq!((said.told_of("กx"), said.rest().unwrap()), (0, String::new()));
        said.ahead = 9;
        assert_eq!(said.told_of("กx"), 4, "all of what became shorter");
    }

    #[test]
    fn a_terminal_is_not_told_what_to_do() {
        assert_eq!(shown("a\u{1b}[2J\r\n\tb"), "a\u{fffd}[2J\u{fffd}\n\tb");
    }
}
