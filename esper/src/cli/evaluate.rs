//! `esper evaluate`: how good a trained network is, on the test part of its run or on another file.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use candle_core::Device;
use clap::Args;
use esper_export::Prediction;
use leyline::region::Eager;
use leyline::state::Score;
use serde::Serialize;
use tolaria::batch::Dataset;
use tolaria::host_read::{HostReads, read_vec_u32};
use tolaria::task::Task;
use tolaria::trainer::{HeldOut, evaluate};

use crate::bench::device_name;
use crate::config::DeviceName;
use crate::data::TargetKind;
use crate::exit::UsageError;
use crate::report::{count, decimal, is_ratio, percent, printable};
use crate::signature::SignatureArgs;
use crate::trained::{Confusion, Origin, Subject, Trained, data_of_run};
use crate::{output, wire};

/// Flags of `esper evaluate`.
#[derive(Debug, Clone, Args)]
pub(super) struct EvaluateArgs {
    /// Folder that `esper train` wrote or, with --data, that `esper export` wrote.
    dir: PathBuf,
    /// File with the columns of the training data, the target among them. Default: the test part of the run.
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// `cpu`, or `cuda:N` in a build with the `cuda` feature. Default: where the run was.
    #[arg(long, value_name = "DEVICE", value_parser = device_name)]
    device: Option<DeviceName>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    signature: SignatureArgs,
}

/// What was measured.
#[derive(Debug, Serialize)]
struct Evaluated {
    /// What of.
    data: String,
    samples: u64,
    /// Of the task that the network was trained for; absent where nobody knows which.
    #[serde(skip_serializing_if = "Option::is_none")]
    loss: Option<f64>,
    /// By name.
    measures: BTreeMap<String, f64>,
    /// Of classes.
    #[serde(flatten)]
    confusion: Option<Confusion>,
}

/// Runs the sub-command.
///
/// # Errors
/// [`UsageError`] when the folder has no network, or its data are not what they were; when the device fails.
pub(super) fn command(args: &EvaluateArgs) -> anyhow::Result<ExitCode> {
    let device = |trained: Option<&Trained>| {
        on(args.device.or_else(|| trained.map(|trained| trained.config.run.device)).unwrap_or(DeviceName::Cpu))
    };
    let subject = Subject::open(&args.dir, &args.signature, &device)?;
    let (name, dataset) = match (&args.data, &subject.origin) {
        (Some(path), _) => file(&subject, path)?,
        (None, Origin::Run(trained)) => test_part(trained)?,
        (None, Origin::Export) => {
            let shown = args.dir.display();
            return Err(UsageError(format!(
                "{shown} is an export, which has no data of its own; expected --data FILE"
            ))
            .into());
        }
    };
    let evaluated = measure(&subject, name, &dataset)?;
    let text = if args.json { serde_json::to_string(&evaluated)? + "\n" } else { evaluated.render() };
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// The device of this name.
pub(super) fn on(name: DeviceName) -> anyhow::Result<Device> {
    wire::device(name).map_err(|problem| UsageError(format!("--device {problem}")).into())
}

/// The rows of a file, with their targets.
fn file(subject: &Subject, path: &Path) -> anyhow::Result<(String, Dataset)> {
    let applied = subject.preparation.apply(path)?;
    output::tell(&applied.notes.iter().map(|note| format!("data: {note}\n")).collect::<String>());
    let Some(targets) = &applied.targets else {
        let names: Vec<String> = subject
            .preparation
            .columns
            .iter()
            .flat_map(|plan| &plan.targets)
            .map(|(name, _)| format!("`{}`", printable(name)))
            .collect();
        let names = if names.is_empty() { "the target behind the features".to_owned() } else { names.join(", ") };
        return Err(UsageError(format!(
            "--data {}: there are no targets to compare with; expected a file with {names}",
            path.display()
        ))
        .into());
    };
    let inputs = applied.to_tensor(&Device::Cpu)?.flatten_from(1)?;
    let dataset = Dataset::new(inputs, targets.to_tensor(&Device::Cpu)?)?;
    Ok((path.display().to_string(), dataset))
}

/// The test part of a run, which must be what it was.
fn test_part(trained: &Trained) -> anyhow::Result<(String, Dataset)> {
    let prepared = data_of_run(&trained.config, &trained.record)?;
    let dataset = wire::dataset(&prepared.splits.test, &Device::Cpu)?;
    Ok((format!("test part of {}", trained.record.data.name), dataset))
}

/// What the network was trained for; where an export does not say it, what its targets ask for.
fn task(subject: &Subject) -> anyhow::Result<Arc<dyn Task>> {
    let config = subject.task.clone().unwrap_or_default();
    let task = config.task(&wire::facts(&subject.preparation.target), subject.model.device());
    task.map_err(|issue| UsageError(format!("`task.{}` {}", issue.key, issue.message)).into())
}

fn measure(subject: &Subject, data: String, dataset: &Dataset) -> anyhow::Result<Evaluated> {
    let (model, mut reads) = (&subject.model, HostReads::default());
    let task = task(subject)?;
    let (Some(inputs), Some(targets)) = (dataset.inputs(), dataset.targets()) else {
        anyhow::bail!("the data of {data} are not in memory");
    };
    let checked = task.check_targets(targets);
    checked.map_err(|error| UsageError(format!("the targets of {data} cannot be measured: {error}")))?;
    // Batches of the size of the run's evaluations: the same products, and so the same bits.
    let batch_size = match &subject.origin {
        Origin::Run(trained) => trained.config.train.eval_batch_size.get(),
        Origin::Export => 512,
    };
    let held_out =
        HeldOut { data: dataset, device: model.device(), batch_size, task: &*task, measures: task.measures() };
    let score = evaluate(&Eager::acquire()?, model, &held_out, &[], &mut reads).context("evaluating")?.score;
    let plan = &subject.preparation.target;
    let confusion = if plan.kind == TargetKind::Classes {
        let targets = read_vec_u32(targets, "targets", &mut reads)?;
        let predictions = Prediction::of(plan, &subject.outputs(inputs)?)?;
        let pairs = targets.into_iter().zip(predictions).filter_map(|(target, prediction)| match prediction {
            Prediction::Class { class, .. } => Some((target as usize, class)),
            Prediction::Values(_) | Prediction::Flags(_) => None,
        });
        Some(Confusion::of(&plan.names, pairs))
    } else {
        None
    };
    let Score { loss, num_samples: samples, measures, .. } = score;
    if !loss.is_finite() {
        return Err(UsageError(format!(
            "the loss over {data} is {loss}, expected a finite number: inputs or targets may be far from all that were learned"
        ))
        .into());
    }
    let loss = subject.task.is_some().then_some(loss);
    if loss.is_none() {
        output::tell(
            "the loss is left out: an earlier version wrote this export, which does not say what the network was trained for\n",
        );
    }
    Ok(Evaluated { data, samples, loss, measures, confusion })
}

impl Evaluated {
    fn render(&self) -> String {
        let mut text = format!("{}, {} samples\n", self.data, count(self.samples));
        if let Some(loss) = self.loss {
            writeln!(text, "  {:<20} {:>12}", "loss", decimal(loss)).expect("writing to a string does not fail");
        }
        for (name, &value) in &self.measures {
            let value = if is_ratio(name) { percent(value) } else { decimal(value) };
            writeln!(text, "  {name:<20} {value:>12}").expect("writing to a string does not fail");
        }
        self.confusion.iter().fold(text, |text, confusion| text + "\n" + &confusion.render())
    }
}
