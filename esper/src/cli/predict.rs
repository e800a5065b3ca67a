//! `esper predict`: what a trained network answers to the rows of a file.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use esper_disk::{StdFs, replace_file};
use esper_export::Prediction;
use serde_json::{Map, Value, json};

use super::evaluate::on;
use crate::bench::device_name;
use crate::config::DeviceName;
use crate::data::{TargetKind, TargetPlan};
use crate::exit::UsageError;
use crate::output;
use crate::signature::SignatureArgs;
use crate::trained::Subject;

/// Flags of `esper predict`.
#[derive(Debug, Clone, Args)]
pub(super) struct PredictArgs {
    /// Folder that `esper train` or `esper export` wrote.
    dir: PathBuf,
    /// File with the columns of the training data, in any order; the target may be missing.
    #[arg(long, value_name = "FILE")]
    data: PathBuf,
    /// File to write; standard output without it.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Replace a file that is there.
    #[arg(long, requires = "out")]
    force: bool,
    /// One JSON object per row instead of CSV.
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
/// [`UsageError`] when the folder has no network or the file does not fit it, with the place; when nothing can be written, or
/// would replace what it must not.
pub(super) fn command(args: &PredictArgs) -> anyhow::Result<ExitCode> {
    if let Some(out) = &args.out {
        expect_free(out, args)?;
    }
    let subject = Subject::open(&args.dir, &args.signature, &|_| on(args.device))?;
    let target = &subject.preparation.target;
    if target.kind == TargetKind::Tokens {
        let shown = args.dir.display();
        return Err(UsageError(format!(
            "{shown} predicts tokens, as `esper generate` does; expected a network of classes, values or flags"
        ))
        .into());
    }
    let applied = subject.preparation.apply(&args.data)?;
    output::tell(&applied.notes.iter().map(|note| format!("data: {note}\n")).collect::<String>());
    let inputs = applied.to_tensor(&candle_core::Device::Cpu)?.flatten_from(1)?;
    let predictions = Prediction::of(target, &subject.outputs(&inputs)?)?;
    let text = if args.json { lines(target, &predictions)? } else { table(target, &predictions)? };
    match &args.out {
        None => output::print(&text)?,
        Some(path) => {
            replace_file(&StdFs, path, text.as_bytes()).with_context(|| format!("writing {}", path.display()))?;
            output::print(&format!("{} rows in {}\n", predictions.len(), path.display()))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Confirms that nothing is lost where the answers go: before they are worked out.
fn expect_free(out: &Path, args: &PredictArgs) -> Result<(), UsageError> {
    let shown = out.display();
    if matches!((out.canonicalize(), args.data.canonicalize()), (Ok(out), Ok(data)) if out == data) {
        return Err(UsageError(format!("--out {shown} is the file of --data; expected another one")));
    }
    if out.exists() && !args.force {
        return Err(UsageError(format!("--out {shown} is there; expected a new file, or --force to replace it")));
    }
    Ok(())
}

/// Rows of the file from 1, what is predicted, and the probability of each class, or of each flag that it is set.
fn table(target: &TargetPlan, predictions: &[Prediction]) -> anyhow::Result<String> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let is_class = target.kind == TargetKind::Classes;
    let column =
        |name: &String| if target.kind == TargetKind::Values { name.clone() } else { format!("probability of {name}") };
    let head = ["row", "class"].into_iter().take(1 + usize::from(is_class)).map(str::to_owned);
    writer.write_record(head.chain(target.names.iter().map(column)))?;
    for (row, prediction) in (1_u64..).zip(predictions) {
        let (class, values) = match prediction {
            Prediction::Class { class, probabilities } => (target.names.get(*class).cloned(), probabilities),
            Prediction::Values(values) | Prediction::Flags(values) => (None, values),
        };
        let cells = [row.to_string()].into_iter().chain(class).chain(values.iter().map(f64::to_string));
        writer.write_record(cells)?;
    }
    Ok(String::from_utf8(writer.into_inner().context("writing CSV")?)?)
}

/// The same as an object per line.
fn lines(target: &TargetPlan, predictions: &[Prediction]) -> anyhow::Result<String> {
    let mut text = String::new();
    for (row, prediction) in (1_u64..).zip(predictions) {
        let named = |values: &[f64]| -> Map<String, Value> {
            target.names.iter().zip(values).map(|(name, &value)| (name.clone(), json!(value))).collect()
        };
        let object = match prediction {
            Prediction::Class { class, probabilities } => {
                json!({ "row": row, "class": target.names.get(*class), "probabilities": named(probabilities) })
            }
            Prediction::Values(values) => json!({ "row": row, "values": named(values) }),
            Prediction::Flags(probabilities) => json!({ "row": row, "probabilities": named(probabilities) }),
        };
        text += &(serde_json::to_string(&object)? + "\n");
    }
    Ok(text)
}
