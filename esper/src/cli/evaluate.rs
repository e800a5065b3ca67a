//! `esper evaluate`: how good a trained network is, on the test part of its run.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use candle_core::Device;
use clap::Args;
use esper_export::Prediction;
use leyline::model::{Pass, TrainableModel as _};
use leyline::region::Eager;
use leyline::state::Score;
use serde::Serialize;
use tolaria::batch::Dataset;
use tolaria::host_read::{HostReads, read_vec, read_vec_u32};
use tolaria::measure::{ACCURACY, MEASURES, QualityMeasure};
use tolaria::trainer::{HeldOut, evaluate};

use crate::bench::device_name;
use crate::config::{DeviceName, EsperConfig};
use crate::exit::UsageError;
use crate::report::{count, decimal, is_ratio, percent};
use crate::trained::{Confusion, Origin, Subject, Trained};
use crate::{data, output, wire};

/// Flags of `esper evaluate`.
#[derive(Debug, Clone, Args)]
pub(super) struct EvaluateArgs {
    /// Folder that `esper train` wrote.
    run_dir: PathBuf,
    /// `cpu`, or `cuda:N` in a build with the `cuda` feature. Default: where the run was.
    #[arg(long, value_name = "DEVICE", value_parser = device_name)]
    device: Option<DeviceName>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// What was measured.
#[derive(Debug, Serialize)]
struct Evaluated {
    /// What of.
    data: String,
    samples: u64,
    loss: f64,
    /// By name.
    measures: BTreeMap<String, f64>,
    #[serde(flatten)]
    confusion: Confusion,
}

/// Runs the sub-command.
///
/// # Errors
/// [`UsageError`] when the folder has no network, or its data are not what they were; when the device fails.
pub(super) fn command(args: &EvaluateArgs) -> anyhow::Result<ExitCode> {
    let device = |trained: Option<&Trained>| {
        let name = args.device.or_else(|| trained.map(|trained| trained.config.run.device)).unwrap_or(DeviceName::Cpu);
        wire::device(name).map_err(|problem| anyhow::Error::from(UsageError(format!("--device {problem}"))))
    };
    let subject = Subject::open(&args.run_dir, &device)?;
    let Origin::Run(trained) = &subject.origin else {
        let shown = args.run_dir.display();
        return Err(
            UsageError(format!("{shown} is an export, which has no data of its own; expected a run folder")).into()
        );
    };
    let (name, dataset) = test_part(trained)?;
    let evaluated = measure(&subject, &trained.config, name, &dataset)?;
    let text = if args.json { serde_json::to_string(&evaluated)? + "\n" } else { evaluated.render() };
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// The test part of a run, which must be what it was.
fn test_part(trained: &Trained) -> anyhow::Result<(String, Dataset)> {
    let prepared = data::load(&trained.config.data)?;
    let (found, expected) = (prepared.digest.to_string(), &trained.record.data.digest);
    if found != *expected {
        return Err(UsageError(format!(
            "the data of the run are not what they were: `{}` had the digest {expected}, and has {found} now",
            trained.record.data.name
        ))
        .into());
    }
    let dataset = wire::dataset(&prepared.splits.test, &Device::Cpu)?;
    Ok((format!("test part of {}", trained.record.data.name), dataset))
}

fn measure(subject: &Subject, config: &EsperConfig, data: String, dataset: &Dataset) -> anyhow::Result<Evaluated> {
    let (model, mut reads) = (&subject.model, HostReads::default());
    let measures: Vec<QualityMeasure> = MEASURES.into_iter().filter(|measure| measure.name != ACCURACY.name).collect();
    // Batches of the size of the run's evaluations: the same products, and so the same bits.
    let batch_size = config.train.eval_batch_size.get();
    let held_out = HeldOut { data: dataset, device: model.device(), batch_size, measures: &measures };
    let score = evaluate(&Eager::acquire()?, model, &held_out, &[], &mut reads).context("evaluating")?.score;
    let mut pairs = Vec::with_capacity(dataset.len());
    for start in (0..dataset.len()).step_by(batch_size) {
        let batch = dataset.slice(start, batch_size.min(dataset.len() - start))?;
        let logits = model.forward(&batch.inputs.to_device(model.device())?, Pass::Evaluate { overrides: &[] })?.logits;
        let width = logits.dim(1)?;
        let logits = read_vec(&logits, "predictions", &mut reads)?;
        let targets = read_vec_u32(&batch.targets, "targets", &mut reads)?;
        let pair = |(target, row): (&u32, &[f32])| (*target as usize, Prediction::of(row).class);
        pairs.extend(targets.iter().zip(logits.chunks(width)).map(pair));
    }
    let Score { loss, num_samples: samples, measures, .. } = score;
    let confusion = Confusion::of(subject.task.names(), pairs);
    Ok(Evaluated { data, samples, loss, measures, confusion })
}

impl Evaluated {
    fn render(&self) -> String {
        let mut text =
            format!("{}, {} samples\n  {:<20} {:>12}\n", self.data, count(self.samples), "loss", decimal(self.loss));
        for (name, &value) in &self.measures {
            let value = if is_ratio(name) { percent(value) } else { decimal(value) };
            writeln!(text, "  {name:<20} {value:>12}").expect("writing to a string does not fail");
        }
        text + "\n" + &self.confusion.render()
    }
}
