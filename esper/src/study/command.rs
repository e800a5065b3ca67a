//! The command: trains every arm and prints the table.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use clap::Args;
use leyline::clock::{Clock, SystemClock};
use leyline::id::RunId;
use leyline::model::TrainableModel as _;
use leyline::region::Eager;
use leyline::seed::{SeedManager as _, SeedStage};
use leyline::telemetry::NullRecorder;
use serde::Serialize;
use tolaria::trainer::NullObserver;

use super::paired::{PairedDifference, mean_and_deviation};
use super::result::result;
use crate::bench::{BUILD, may_be_written};
use crate::config::{EsperConfig, Layer};
use crate::data;
use crate::exit::UsageError;
use crate::output;
use crate::wire::{Surroundings, assemble};

/// Flags of `esper study`.
#[derive(Debug, Clone, Args)]
pub struct StudyArgs {
    /// Data sets, as for `esper train --data`.
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_value = "digits")]
    pub data: Vec<String>,
    /// Policies; every other one is compared with the last.
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_value = "heuristic,off")]
    pub policies: Vec<String>,
    /// Random seeds per arm.
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub seeds: usize,
    /// The first of them; the others follow.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub first_seed: u32,
    /// Any other setting, as for `esper train`.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Also writes the runs as JSON.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Also writes the table as a benchmark result, `study-FIRST.json`, into this folder.
    #[arg(long, value_name = "DIR")]
    pub result: Option<PathBuf>,
}

/// One run of the study.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Run {
    pub(super) data: String,
    pub(super) policy: String,
    pub(super) seed: u64,
    pub(super) test_accuracy: f64,
    pub(super) test_loss: f64,
    pub(super) steps: u64,
    pub(super) parameters: usize,
    pub(super) num_fossilized: usize,
}

/// Runs `esper study`.
///
/// # Errors
/// The first run that fails.
pub fn command(args: &StudyArgs) -> anyhow::Result<ExitCode> {
    if args.policies.is_empty() || args.seeds == 0 {
        return Err(UsageError("--policies, --seeds: expected at least one of each".to_owned()).into());
    }
    may_be_written(args.result.as_deref(), BUILD)?;
    let mut runs = Vec::new();
    for data in &args.data {
        for seed in (u64::from(args.first_seed)..).take(args.seeds) {
            for policy in &args.policies {
                let run = train(args, data, policy, seed).with_context(|| format!("{data}, {policy}, seed {seed}"))?;
                output::tell(&format!(
                    "{data} {policy} seed {seed}: {:.2} % test accuracy, {} parameters, {} seeds fossilized\n",
                    100.0 * run.test_accuracy,
                    run.parameters,
                    run.num_fossilized
                ));
                runs.push(run);
            }
        }
    }
    output::print(&table(args, &runs))?;
    if let Some(path) = &args.out {
        let text = serde_json::to_string_pretty(&runs)? + "\n";
        std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
    }
    if let Some(dir) = &args.result {
        result(args, &runs).write(dir)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn train(args: &StudyArgs, data: &str, policy: &str, seed: u64) -> anyhow::Result<Run> {
    let mut flags = Vec::new();
    for setting in &args.set {
        flags.push(Layer::set(setting)?);
    }
    let seed_text = seed.to_string();
    for (name, key, value) in [
        ("data", "data.name", data),
        ("policies", "policy.policy", policy),
        ("seeds", "run.seed", &seed_text),
        ("seeds", "data.split_seed", &seed_text),
    ] {
        flags.extend(Layer::flag(&format!("--{name} {value}"), key, value));
    }
    let config = EsperConfig::load(None, flags)?.config;
    let prepared = data::load(&config.data)?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let run_id = RunId::new(format!("study-{seed}"))?;
    let recorder = Arc::new(NullRecorder);
    let around = Surroundings { run_id, checkpoints: None, command_journal: None, recorder, clock };
    let mut trainer = assemble(&config, &prepared.splits, around)?;
    let mut eager = Eager::acquire()?;
    trainer.run(&mut eager, &mut NullObserver)?;
    let test = trainer.test()?.score;
    let states = trainer.seeds().export_seed_states(&eager)?;
    Ok(Run {
        data: data.to_owned(),
        policy: policy.to_owned(),
        seed,
        test_accuracy: test.accuracy,
        test_loss: test.loss,
        steps: trainer.progress().1.0,
        parameters: trainer.seeds().model().layout().num_elements(),
        num_fossilized: states.iter().filter(|state| state.stage == SeedStage::Fossilized).count(),
    })
}

/// The runs as a Markdown table: accuracy per arm, and the paired difference to the last policy.
fn table(args: &StudyArgs, runs: &[Run]) -> String {
    let mut text = String::from(
        "| data | policy | steps | parameters | seeds kept | test accuracy, mean ± s.d. | difference, 95 % interval |\n\
         |---|---|---|---|---|---|---|\n",
    );
    let control = args.policies.last().map_or("", String::as_str);
    for data in &args.data {
        let arm = |policy: &str| -> Vec<&Run> {
            runs.iter().filter(|run| run.data == *data && run.policy == policy).collect()
        };
        let accuracies = |policy: &str| arm(policy).iter().map(|run| 100.0 * run.test_accuracy).collect::<Vec<f64>>();
        for policy in &args.policies {
            let (mean, deviation) = mean_and_deviation(&accuracies(policy));
            let count = |of: fn(&Run) -> f64| {
                let (mean, _) = mean_and_deviation(&arm(policy).into_iter().map(of).collect::<Vec<f64>>());
                mean
            };
            let difference = PairedDifference::of(&accuracies(policy), &accuracies(control))
                .filter(|_| policy != control)
                .map_or_else(|| "–".to_owned(), |d| format!("{:+.2} [{:+.2}, {:+.2}]", d.mean, d.low, d.high));
            let (steps, parameters) = (count(|run| run.steps as f64), count(|run| run.parameters as f64));
            let kept = count(|run| run.num_fossilized as f64);
            writeln!(
                text,
                "| {data} | {policy} | {steps:.0} | {parameters:.0} | {kept:.1} | {mean:.2} ± {deviation:.2} % | {difference} |"
            )
            .expect("a string takes any text");
        }
    }
    text
}
