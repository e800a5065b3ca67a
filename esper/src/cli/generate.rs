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
use crate::data::TargetKind;
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
    let prompt = prompt(args, target.is_text, target.num_outputs())?;
    let sampling = Sampling { temperature: args.temperature, top_k: args.top_k, seed: args.seed };
    let generation = Generation::new(&subject.model, &prompt, sampling).map_err(unusable)?;
    let mut tokens = Vec::with_capacity(args.tokens.min(1 << 20));
    let mut text = Utf8::default();
    if !args.json {
        output::print(&if target.is_text { shown(&args.prompt) } else { args.prompt.clone() })?;
    }
    for token in generation.take(args.tokens) {
        let token = token.map_err(unusable)?;
        tokens.push(token);
        if args.json {
            continue;
        }
        let more = if target.is_text { shown(&text.push(token)) } else { format!(" {token}") };
        if !output::wrote(&more)? {
            // Nobody reads on.
            return Ok(ExitCode::SUCCESS);
        }
    }
    if args.json {
        let bytes: Option<Vec<u8>> = tokens.iter().map(|&token| u8::try_from(token).ok()).collect();
        let text = bytes.filter(|_| target.is_text).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        output::print(&format!("{}\n", json!({ "text": text, "tokens": tokens })))?;
    } else {
        output::print(&format!("{}\n", shown(&text.rest())))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The tokens of the prompt.
fn prompt(args: &GenerateArgs, is_text: bool, vocabulary: usize) -> anyhow::Result<Vec<u32>> {
    if is_text {
        return Ok(args.prompt.bytes().map(u32::from).collect());
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

/// Bytes that become text as soon as a character is whole.
#[derive(Debug, Default)]
struct Utf8 {
    waiting: Vec<u8>,
}

impl Utf8 {
    /// What is whole now; bytes that can never be are replaced.
    fn push(&mut self, token: u32) -> String {
        self.waiting.extend(u8::try_from(token));
        let whole = match std::str::from_utf8(&self.waiting) {
            Ok(text) => text.len(),
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            Err(_) => self.waiting.len(),
        };
        let whole: Vec<u8> = self.waiting.drain(..whole).collect();
        String::from_utf8_lossy(&whole).into_owned()
    }

    /// What is left at the end.
    fn rest(self) -> String {
        String::from_utf8_lossy(&self.waiting).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_come_when_they_are_whole_and_wrong_bytes_are_replaced() {
        let mut text = Utf8::default();
        let pieces: Vec<String> = "aé€".bytes().map(|byte| text.push(byte.into())).collect();
        assert_eq!(pieces, ["a", "", "é", "", "", "€"]);
        assert_eq!(text.push(0xc3), "");
        assert_eq!(text.push(u32::from(b'x')), "\u{fffd}x");
        assert_eq!(text.push(0xe2), "");
        assert_eq!(text.rest(), "\u{fffd}");
    }

    #[test]
    fn a_terminal_is_not_told_what_to_do() {
        assert_eq!(shown("a\u{1b}[2J\r\n\tb"), "a\u{fffd}[2J\u{fffd}\n\tb");
    }
}
