//! The command: trains every arm and prints the table.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use clap::Args;
use leyline::clock::{Clock, SystemClock};
use leyline::error::BoxError;
use leyline::id::{RunId, StepIndex};
use leyline::model::TrainableModel as _;
use leyline::region::Eager;
use leyline::seed::{SeedManager as _, SeedStage};
use leyline::telemetry::NullRecorder;
use serde::Serialize;
use tolaria::trainer::report::EpochReport;
use tolaria::trainer::{Flow, Observer, Outcome};

use super::paired::{PairedDifference, mean_and_deviation};
use super::result::result;
use crate::bench::{BUILD, may_be_written};
use crate::check::Checked;
use crate::config::{ConfigError, Diagnostic, EsperConfig, Issue, Layer};
use crate::exit::{self, UsageError};
use crate::run::Interrupt;
use crate::wire::{Surroundings, assemble};
use crate::{check, data, output};

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

/// One training of the study, confirmed to be possible.
struct Arm {
    data: String,
    policy: String,
    seed: u64,
    config: EsperConfig,
}

/// Stops a run when the user asks for it.
struct StopWhenAsked<'a>(&'a Interrupt);

impl Observer for StopWhenAsked<'_> {
    fn step_finished(&mut self, _step: StepIndex) -> Flow {
        if self.0.asked() { Flow::Stop } else { Flow::Continue }
    }

    fn epoch_finished(&mut self, _report: &EpochReport) -> Result<(), BoxError> {
        Ok(())
    }
}

/// Runs `esper study`.
///
/// # Errors
/// Everything that makes an arm impossible, before any is trained; then the first run that fails, after the table of those
/// that were done.
pub fn command(args: &StudyArgs) -> anyhow::Result<ExitCode> {
    if args.policies.is_empty() || args.seeds == 0 {
        return Err(UsageError("--policies, --seeds: expected at least one of each".to_owned()).into());
    }
    may_be_written(args.result.as_deref(), BUILD)?;
    let arms = arms(args)?;
    if let Some(path) = &args.out {
        let writable = OpenOptions::new().append(true).create(true).open(path);
        writable.map_err(|error| UsageError(format!("--out {}: {error}; expected a file", path.display())))?;
    }
    if let Some(dir) = &args.result {
        let made = fs::create_dir_all(dir);
        made.map_err(|error| UsageError(format!("--result {}: {error}; expected a folder", dir.display())))?;
    }
    let interrupt = Interrupt::install()?;
    let (mut runs, mut ended) = (Vec::new(), Ok(true));
    for arm in &arms {
        let Arm { data, policy, seed, .. } = arm;
        let trained = train(arm, &interrupt).with_context(|| format!("{data}, {policy}, seed {seed}"));
        ended = trained.and_then(|run| {
            let Some(run) = run else { return Ok(false) };
            output::tell(&format!(
                "{data} {policy} seed {seed}: {:.2} % test accuracy, {} parameters, {} seeds fossilized\n",
                100.0 * run.test_accuracy,
                run.parameters,
                run.num_fossilized
            ));
            runs.push(run);
            keep(args, &runs).map(|()| true)
        });
        if !matches!(ended, Ok(true)) {
            break;
        }
    }
    if runs.len() < arms.len() {
        output::tell(&format!("{} of {} runs were done\n", runs.len(), arms.len()));
    }
    output::print(&table(args, &runs))?;
    if !ended? {
        return Ok(ExitCode::from(exit::INTERRUPTED));
    }
    if let Some(dir) = &args.result {
        result(args, &runs).write(dir)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes what was done so far, where a file is given.
fn keep(args: &StudyArgs, runs: &[Run]) -> anyhow::Result<()> {
    let Some(path) = &args.out else { return Ok(()) };
    fs::write(path, serde_json::to_string_pretty(runs)? + "\n").with_context(|| format!("writing {}", path.display()))
}

/// Every training of the study, in order.
///
/// A random seed changes neither what is read nor what fits, so each policy on each data set is looked at once.
fn arms(args: &StudyArgs) -> Result<Vec<Arm>, ConfigError> {
    let (mut arms, mut mistakes, mut warnings) = (Vec::new(), Vec::new(), Vec::new());
    for data in &args.data {
        let mut configs = Vec::new();
        for policy in &args.policies {
            match config(args, data, policy) {
                Ok((config, doubts)) => {
                    configs.push((policy, config));
                    warnings.extend(doubts);
                }
                Err(ConfigError::Invalid(found)) => mistakes.extend(found),
                Err(other) => return Err(other),
            }
        }
        for seed in (u64::from(args.first_seed)..).take(args.seeds) {
            arms.extend(configs.iter().map(|(policy, config)| {
                let (mut config, policy) = (config.clone(), (*policy).clone());
                (config.run.seed, config.data.split_seed) = (seed, seed);
                Arm { data: data.clone(), policy, seed, config }
            }));
        }
    }
    // Arms have their mistakes in common.
    let once = |told: Vec<Diagnostic>| {
        let new = |index: &usize| !told[..*index].contains(&told[*index]);
        (0..told.len()).filter(new).map(|index| told[index].clone()).collect::<Vec<_>>()
    };
    if !mistakes.is_empty() {
        return Err(ConfigError::Invalid(once(mistakes)));
    }
    check::warn(&once(warnings));
    Ok(arms)
}

/// The configuration of a policy on a data set with the first random seed, and what is doubtful about it.
fn config(args: &StudyArgs, data: &str, policy: &str) -> Result<(EsperConfig, Vec<Diagnostic>), ConfigError> {
    let first = u64::from(args.first_seed);
    let flags = |seed: u64| {
        let (seed, seeds) = (seed.to_string(), format!("--first-seed {first} --seeds {}", args.seeds));
        let named = [
            (format!("--data {data}"), "data.name", data),
            (format!("--policies {policy}"), "policy.policy", policy),
            (seeds.clone(), "run.seed", &seed),
            (seeds, "data.split_seed", &seed),
        ];
        let named = named.iter().filter_map(|(shown, key, value)| Layer::flag(shown, key, value));
        Layer::flags(named.collect(), &args.set)
    };
    // A setting may say the same as the first seed, but then not as the last one.
    flags(first + args.seeds as u64 - 1)?;
    let Checked { loaded, warnings, .. } = check::check(None, flags(first)?)?;
    if loaded.config.run.out.is_some() {
        let issue = Issue::new("run.out", "is of no use: a study has no run folders; expected no such key");
        return Err(ConfigError::Invalid(vec![loaded.locate(issue)]));
    }
    Ok((loaded.config, warnings))
}

/// Trains an arm; `None` when the user ended it.
fn train(arm: &Arm, interrupt: &Interrupt) -> anyhow::Result<Option<Run>> {
    let Arm { data, policy, seed, config } = arm;
    let prepared = data::load(&config.data)?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let run_id = RunId::new(format!("study-{seed}"))?;
    let recorder = Arc::new(NullRecorder);
    let around = Surroundings { run_id, checkpoints: None, command_journal: None, recorder, clock };
    let mut trainer = assemble(config, &prepared, around)?;
    let mut eager = Eager::acquire()?;
    if trainer.run(&mut eager, &mut StopWhenAsked(interrupt))? == Outcome::Interrupted {
        return Ok(None);
    }
    let test = trainer.test(&eager)?.score;
    let states = trainer.seeds().export_seed_states(&eager)?;
    Ok(Some(Run {
        data: data.clone(),
        policy: policy.clone(),
        seed: *seed,
        test_accuracy: test.accuracy().context("the accuracy of the test data")?,
        test_loss: test.loss,
        steps: trainer.progress().1.0,
        parameters: trainer.seeds().model().layout().num_elements(),
        num_fossilized: states.iter().filter(|state| state.stage == SeedStage::Fossilized).count(),
    }))
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
        for policy in args.policies.iter().filter(|policy| !arm(policy).is_empty()) {
            let (mean, deviation) = mean_and_deviation(&accuracies(policy));
            let count = |of: fn(&Run) -> f64| {
                let (mean, _) = mean_and_deviation(&arm(policy).into_iter().map(of).collect::<Vec<f64>>());
                mean
            };
            // Pairs go in order: of a study that ended early, the first of both arms belong together.
            let (treated, control_values) = (accuracies(policy), accuracies(control));
            let pairs = treated.len().min(control_values.len());
            let difference = PairedDifference::of(&treated[..pairs], &control_values[..pairs])
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
