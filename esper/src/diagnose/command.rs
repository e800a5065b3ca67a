//! The flags of `esper diagnose`, its sections in their order, and where its result goes.

use std::env;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use baselines::result::BenchResult;
use clap::Args;
use leyline::region::Eager;

use super::execution::{Ablation, Execution};
use super::lab::Lab;
use super::network::Plant;
use super::sizes::Sizes;
use super::{checked, dispatch, modes, parts, varying};
use crate::bench::{BUILD, DEFAULT_DEVICE, device_name, may_be_written};
use crate::config::DeviceName;
use crate::exit::{self, UsageError};
use crate::{output, wire};

const NOTES: &str = "modes.MODE and ABLATION.MODE: .step: a step that is waited for (ms); .first_step: the first of all; .over_eager: median eager over median of this mode; .compile: of the compiled \
    graph; .memory: most device memory during timed steps, of tensors and of graphs. latency.PART: .capture: recorded and made executable (ms); .compile with its kernels, which are generated once for \
    all parts and once for the whole; latency.parts: all parts together. dispatch: host time of the key, of the look-up among 8 graphs, of a whole call on an idle device (us). varying.*: \
    graphs of all sizes. checked.step: a step with a wait after each part (ms). check.*: 1 where all bits are the same";

/// Flags of `esper diagnose`.
#[derive(Debug, Clone, Args)]
#[expect(clippy::struct_excessive_bools, reason = "flags, each of which leaves out one thing")]
pub(crate) struct DiagnoseArgs {
    /// `cpu`, or `cuda:N` in a build with the `cuda` feature; most is measured on a GPU only.
    #[arg(long, value_name = "DEVICE", default_value = DEFAULT_DEVICE, value_parser = device_name)]
    device: DeviceName,
    /// About 30 million parameters instead of about 5 million.
    #[arg(long, conflicts_with = "quick")]
    large_scale: bool,
    /// A tiny network and few steps: whether all of it works, not how fast.
    #[arg(long)]
    quick: bool,
    /// Settings of execution that are switched one by one, with `;` between them: compile, graphs, overlap, recompute, tf32, each alone or with `=true` or `=false`.
    #[arg(long, value_name = "A;B=false", value_delimiter = ';', value_parser = Ablation::parse)]
    ablate_config: Vec<Ablation>,
    /// Does not wait for the device after each part of a step, which names the part where an error shows.
    #[arg(long)]
    skip_checked_steps: bool,
    /// Does not look for what cannot be captured.
    #[arg(long)]
    skip_graph_check: bool,
    /// No cost of captures, no captured and compiled steps, no dispatch.
    #[arg(long)]
    skip_capture_bench: bool,
    /// Does not time eager steps.
    #[arg(long)]
    skip_baseline: bool,
    /// Samples of the batches of varying size, in their order.
    #[arg(long, value_name = "SIZES", value_delimiter = ',', num_args = 0..=1, conflicts_with = "skip_vary_batch")]
    vary_batch: Vec<usize>,
    /// Does not vary the batch.
    #[arg(long)]
    skip_vary_batch: bool,
    /// Tokens of the sequences of varying length, in their order.
    #[arg(long, value_name = "LENGTHS", value_delimiter = ',', num_args = 0..=1, conflicts_with = "skip_vary_sequence")]
    vary_sequence: Vec<usize>,
    /// Does not vary the sequence.
    #[arg(long)]
    skip_vary_sequence: bool,
    /// After so many seconds nothing new is begun, and no section takes more than twice its share of them; what was left out is named.
    #[arg(long, value_name = "SECONDS", default_value_t = 50)]
    seconds: u64,
    /// The result as JSON.
    #[arg(long, value_name = "FILE.json")]
    out: Option<PathBuf>,
    /// Puts something wrong into a part: `host_read:PART` or `failure:PART:STEP`.
    #[arg(long, value_name = "WHAT", value_parser = Plant::parse, hide = true)]
    plant: Option<Plant>,
}

/// Runs it. A result that differs or an error of a step: exit code 1, after all was looked at. What cannot be captured is no failure.
///
/// # Errors
/// Usage errors, and when a result cannot be printed or written.
pub(crate) fn command(args: &DiagnoseArgs) -> anyhow::Result<ExitCode> {
    let place = args.out.as_deref().map(place).transpose()?;
    may_be_written(place.map(|(folder, _)| folder), BUILD)?;
    let sections = args.sections()?;
    let mut lab = args.lab()?;
    let mut eager = Eager::acquire()?;
    let num_parameters = lab.sizes.num_parameters();
    output::print(&format!("{num_parameters} parameters on {}, {} s at most\n", args.device, args.seconds))?;
    for (num_left, (name, work)) in (1..=u32::try_from(sections.len())?).rev().zip(sections) {
        let text = if lab.begins(num_left) {
            output::tell(&format!("{name} …\n"));
            work(&mut lab, &mut eager).unwrap_or_else(|error| {
                lab.failures.push(format!("{name}: {error:#}"));
                format!("{name}: failed\n")
            })
        } else {
            lab.told.insert(name.clone(), "not looked at".to_owned());
            format!("{name}: not looked at, the {} s of --seconds are over\n", args.seconds)
        };
        output::print(&text)?;
    }
    lab.failures.iter().for_each(|failure| output::tell(&format!("error: {failure}\n")));
    let code = if lab.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(exit::FAILED) };
    if let Some((folder, name)) = place {
        output::print(&format!("written to {}\n", result(lab, name).write(folder)?.display()))?;
    }
    Ok(code)
}

/// Folder and name of a result.
fn place(path: &Path) -> Result<(&Path, &str), UsageError> {
    let name = path.extension().filter(|extension| *extension == "json").and(path.file_stem());
    let folder = path.parent().map(|folder| if folder.as_os_str().is_empty() { Path::new(".") } else { folder });
    name.and_then(|name| name.to_str())
        .zip(folder)
        .map(|(name, folder)| (folder, name))
        .ok_or_else(|| UsageError(format!("--out {}: expected the name of a file that ends in .json", path.display())))
}

fn result(lab: Lab, name: &str) -> BenchResult {
    let plain = BenchResult::new(name, NOTES, lab.clock());
    let environment = plain.environment.clone().built_from(BUILD);
    let environment = match &lab.session {
        Some(session) => environment.on_gpu(&session.facts()),
        None => environment,
    };
    let settings = [
        ("parameters", lab.sizes.num_parameters().to_string()),
        ("sizes", format!("{:?}", lab.sizes)),
        ("samples", lab.num_samples.to_string()),
        ("steps", lab.num_steps.to_string()),
    ];
    let features = if cfg!(feature = "cuda") { " --features cuda" } else { "" };
    // Wherever the result goes, it is that of the same command.
    let named = |asked: String| match asked.strip_prefix("--out=") {
        Some(_) => "--out=FILE.json".to_owned(),
        None if asked.ends_with(".json") => "FILE.json".to_owned(),
        None => asked,
    };
    let asked: Vec<String> = env::args().skip(1).map(named).collect();
    BenchResult {
        command: format!("cargo run --release -p esper{features} -- {}", asked.join(" ")),
        environment,
        config: settings.map(|(name, value)| (name.to_owned(), value)).into_iter().chain(lab.told).collect(),
        measurements: lab.measurements,
        ..plain
    }
}

type Work<'a> = Box<dyn FnOnce(&mut Lab, &mut Eager) -> anyhow::Result<String> + 'a>;

impl DiagnoseArgs {
    fn sizes(&self) -> Sizes {
        match (self.quick, self.large_scale) {
            (true, _) => Sizes::QUICK,
            (_, true) => Sizes::LARGE,
            _ => Sizes::DEBUG,
        }
    }

    fn lab(&self) -> anyhow::Result<Lab> {
        let device = wire::device(self.device).map_err(|problem| UsageError(format!("--device {problem}")))?;
        let mut lab = Lab::new(device, self.sizes(), self.seconds);
        if self.quick {
            (lab.num_samples, lab.num_steps) = (2, 3);
        }
        // A plant for a part that there is not is told before anything runs.
        lab.network(self.plant.clone()).map_err(|error| UsageError(format!("--plant: {error}")))?;
        Ok(lab)
    }

    /// The sections that are wanted, in their order.
    fn sections(&self) -> Result<Vec<(String, Work<'_>)>, UsageError> {
        let sizes = self.sizes();
        let tokens = sizes.tokens();
        let (least, most) = (*tokens.start(), *tokens.end());
        let or = |given: &[usize], usual: [usize; 5]| if given.is_empty() { usual.to_vec() } else { given.to_vec() };
        let batches = or(&self.vary_batch, [2, 32, 8, 2, 32]);
        if batches.contains(&0) {
            return Err(UsageError("--vary-batch 0: expected 1 or more samples".to_owned()));
        }
        // Text of 2 and of 32 tokens beside the picture, and as much as there is room for.
        let long = sizes.num_patches + 32;
        let sequences = or(&self.vary_sequence, [least, long, most, least, long]);
        if let Some(wrong) = sequences.iter().find(|length| !tokens.contains(length)) {
            return Err(UsageError(format!("--vary-sequence {wrong}: expected {least} to {most} tokens")));
        }
        let (captures, skips_baseline) = (!self.skip_capture_bench, self.skip_baseline);
        let [to_read, to_fail] =
            [true, false].map(|reads| self.plant.clone().filter(|plant| matches!(plant, Plant::HostRead(_)) == reads));
        let asked = parts::Asked { breaks: !self.skip_graph_check, costs: captures };
        let usual = Execution { graphs: captures, ..Execution::usual() };
        let mut sections: Vec<(bool, String, Work<'_>)> = vec![
            (!self.skip_checked_steps, "checked".to_owned(), Box::new(|lab, _| checked::section(lab, to_fail))),
            (
                asked.breaks || asked.costs,
                "parts".to_owned(),
                Box::new(move |lab, eager| parts::section(lab, eager, asked, to_read)),
            ),
            (
                captures || !skips_baseline,
                "modes".to_owned(),
                Box::new(move |lab, eager| modes::section(lab, eager, ("modes", usual), skips_baseline)),
            ),
            (
                !self.skip_vary_batch,
                "varying batch".to_owned(),
                Box::new(move |lab, eager| {
                    let shapes: Vec<_> = batches.iter().map(|samples| [*samples, most]).collect();
                    varying::section(lab, eager, "batch", &shapes)
                }),
            ),
            (
                !self.skip_vary_sequence,
                "varying sequence".to_owned(),
                Box::new(move |lab, eager| {
                    let shapes: Vec<_> = sequences.iter().map(|tokens| [lab.num_samples, *tokens]).collect();
                    varying::section(lab, eager, "sequence", &shapes)
                }),
            ),
            (captures, "dispatch".to_owned(), Box::new(dispatch::section)),
        ];
        sections.extend(self.ablate_config.iter().map(|ablation| -> (bool, String, Work<'_>) {
            let (label, execution) = ablation.applied();
            let name = label.clone();
            let work = move |lab: &mut Lab, eager: &mut Eager| {
                if lab.session.is_none() && ablation.needs_gpu() {
                    return Ok(lab.needs_gpu(&label));
                }
                modes::section(lab, eager, (&label, execution), skips_baseline)
            };
            (true, name, Box::new(work))
        }));
        Ok(sections.into_iter().filter(|(is_wanted, ..)| *is_wanted).map(|(_, name, work)| (name, work)).collect())
    }
}
