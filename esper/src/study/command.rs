//! The command: trains every arm and prints the table.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::Context as _;
use clap::Args;
use leyline::clock::{Clock, SystemClock};
use leyline::error::BoxError;
use leyline::id::{RunId, SeedId, StepIndex};
use leyline::model::TrainableModel as _;
use leyline::region::Eager;
use leyline::seed::{Confirming, SeedManager as _, SeedStage};
use leyline::telemetry::NullRecorder;
use tamiyo::policy::PolicyKind;
use tolaria::trainer::report::EpochReport;
use tolaria::trainer::{Flow, Observer, Outcome};

use super::file::{Origin, Run, RunFile, build};
use super::paired::{PairedDifference, mean_and_deviation, upper_bound};
use super::result::result;
use crate::bench::{BUILD, may_be_written};
use crate::check::Checked;
use crate::config::{ConfigError, Diagnostic, EsperConfig, Issue, Layer};
use crate::exit::{self, UsageError};
use crate::run::Interrupt;
use crate::signature::SignatureArgs;
use crate::wire::{Surroundings, assemble};
use crate::{check, data, output, policy};

/// Flags of `esper study`.
#[derive(Debug, Clone, Args)]
pub struct StudyArgs {
    /// Data sets, as for `esper train --data`.
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_value = "digits")]
    pub data: Vec<String>,
    /// Policies; every other one is compared with the last. `scratch` is no policy: the network of the host with wider layers, of the size that the
    /// first one grows to on the same data with the same random seed, for as many steps.
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
    /// Also writes the runs as JSON. Those that the same build made with the same configuration on the same data are not trained again; all others
    /// stay in the file.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Runs that are trained at the same time.
    #[arg(long, value_name = "N", default_value_t = NonZeroUsize::MIN)]
    pub jobs: NonZeroUsize,
    /// Also writes the table as a benchmark result, `study-FIRST.json`, into this folder.
    #[arg(long, value_name = "DIR")]
    pub result: Option<PathBuf>,
}

/// What stands in the place of a policy for a network that has its size from the beginning.
const SCRATCH: &str = "scratch";
/// Widths grow in such parts of those of the host, and to at most so many times of them.
const PARTS: usize = 64;
const MOST_TIMES: usize = 256;

/// One training of the study, confirmed to be possible.
#[derive(Clone)]
pub(super) struct Arm {
    pub(super) data: String,
    pub(super) policy: String,
    pub(super) seed: u64,
    pub(super) set: Vec<String>,
    pub(super) config: EsperConfig,
}

/// Stops a run when the user asks for it, and counts the seeds that it tries.
struct Watch<'a> {
    interrupt: &'a Interrupt,
    germinated: BTreeSet<SeedId>,
}

impl Observer for Watch<'_> {
    fn step_finished(&mut self, _step: StepIndex) -> Flow {
        if self.interrupt.asked() { Flow::Stop } else { Flow::Continue }
    }

    fn epoch_finished(&mut self, report: &EpochReport) -> Result<(), BoxError> {
        let germinated = report.transitions.iter().filter(|change| change.to == SeedStage::Germinated);
        self.germinated.extend(germinated.map(|change| change.seed));
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
    if args.policies.first().is_some_and(|policy| policy == SCRATCH) {
        let problem = "--policies: `scratch` is as large as what the first policy grows; expected a policy before it";
        return Err(UsageError(problem.to_owned()).into());
    }
    may_be_written(args.result.as_deref(), BUILD)?;
    let arms = arms(args)?;
    let build = build();
    let (wide, grow): (Vec<Arm>, Vec<Arm>) = arms.iter().cloned().partition(|arm| arm.policy == SCRATCH);
    let (file, done) = opened(args, &grow, build.as_deref())?;
    if let Some(dir) = &args.result {
        let made = fs::create_dir_all(dir);
        made.map_err(|error| UsageError(format!("--result {}: {error}; expected a folder", dir.display())))?;
    }
    let interrupt = Interrupt::install()?;
    let trainer = |arm: &Arm| train(arm, build.as_deref(), &interrupt);
    let keep = |file: &Option<RunFile>, runs: &[Run]| file.as_ref().map_or(Ok(()), |file| file.keep(runs));
    let Trained { mut runs, mut ended } = train_all(args.jobs, &grow, done, &trainer, &|runs| keep(&file, runs));
    if !wide.is_empty() && matches!(ended, Ok(true)) {
        let wide = wide.into_iter().map(|arm| widened(arm, args, &runs)).collect::<anyhow::Result<Vec<Arm>>>()?;
        let (file, done) = opened(args, &wide, build.as_deref())?;
        let trained = train_all(args.jobs, &wide, done, &trainer, &|runs| keep(&file, runs));
        runs.extend(trained.runs);
        ended = trained.ended;
    }
    let place = |run: &Run| arms.iter().position(|arm| run.has_name_of(arm));
    runs.sort_by_key(place);
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

/// The file, where there is to be one, and what need not be trained again.
fn opened(args: &StudyArgs, arms: &[Arm], build: Option<&str>) -> anyhow::Result<(Option<RunFile>, Vec<Run>)> {
    match &args.out {
        Some(path) => RunFile::open(path, arms, build).map(|(file, done)| (Some(file), done)),
        None => Ok((None, Vec::new())),
    }
}

/// The arm with the least network of the host's form that has as many parameters as the one that was grown beside it.
fn widened(arm: Arm, args: &StudyArgs, runs: &[Run]) -> anyhow::Result<Arm> {
    let (host, grown) = (arm.config.host.clone(), args.policies.first().map_or("", String::as_str));
    let beside = runs.iter().find(|run| run.data == arm.data && run.seed == arm.seed && run.policy == grown);
    let wanted = beside.context("the run beside it")?.parameters;
    let prepared = data::load(&arm.config.data)?;
    let of = |times: usize| Arm {
        config: EsperConfig { host: host.scaled(times, PARTS), ..arm.config.clone() },
        ..arm.clone()
    };
    let is_enough = |times: usize| -> anyhow::Result<bool> {
        let trainer = assemble(&of(times).config, &prepared, surroundings(&arm)?)?;
        Ok(trainer.seeds().model().layout().num_elements() >= wanted)
    };
    let (mut less, mut enough) = (PARTS - 1, PARTS);
    while !is_enough(enough)? {
        (less, enough) = (enough, 2 * enough);
        anyhow::ensure!(enough <= MOST_TIMES * PARTS, "{}: {SCRATCH}: no host of {wanted} parameters", arm.data);
    }
    while enough - less > 1 {
        let middle = usize::midpoint(less, enough);
        *(if is_enough(middle)? { &mut enough } else { &mut less }) = middle;
    }
    Ok(of(enough))
}

/// A run has no files.
fn surroundings(arm: &Arm) -> anyhow::Result<Surroundings> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let (run_id, recorder) = (RunId::new(format!("study-{}", arm.seed))?, Arc::new(NullRecorder));
    let networks = policy::networks(&arm.config, SignatureArgs::default().of_policies()?, None)?;
    Ok(Surroundings { run_id, checkpoints: None, command_journal: None, networks, recorder, clock })
}

/// What was done.
struct Trained {
    runs: Vec<Run>,
    /// Whether all was done: not when the user ended it.
    ended: anyhow::Result<bool>,
}

/// Trains every arm that is not done.
fn train_all(
    jobs: NonZeroUsize,
    arms: &[Arm],
    done: Vec<Run>,
    train: &(dyn Fn(&Arm) -> anyhow::Result<Option<Run>> + Sync),
    keep: &(dyn Fn(&[Run]) -> anyhow::Result<()> + Sync),
) -> Trained {
    let left: Vec<&Arm> = arms.iter().filter(|arm| !done.iter().any(|run| run.has_name_of(arm))).collect();
    let (next, trained) = (AtomicUsize::new(0), Mutex::new(Trained { runs: done, ended: Ok(true) }));
    let work = || {
        while let Some(arm) = left.get(next.fetch_add(1, Ordering::Relaxed)) {
            let Arm { data, policy, seed, .. } = arm;
            let found = train(arm).with_context(|| format!("{data}, {policy}, seed {seed}"));
            let mut trained = trained.lock().unwrap_or_else(PoisonError::into_inner);
            let kept = found.and_then(|run| {
                let Some(run) = run else { return Ok(false) };
                output::tell(&format!(
                    "{data} {policy} seed {seed}: {:.2} % test accuracy, {} parameters, {} seeds fossilized\n",
                    100.0 * run.test_accuracy,
                    run.parameters,
                    run.num_fossilized
                ));
                trained.runs.push(run);
                keep(&trained.runs).map(|()| true)
            });
            if !matches!(kept, Ok(true)) {
                next.store(left.len(), Ordering::Relaxed);
                // The first reason is the one to tell.
                if matches!(trained.ended, Ok(true)) {
                    trained.ended = kept;
                }
                return;
            }
        }
    };
    thread::scope(|scope| {
        for _ in 1..jobs.get() {
            scope.spawn(work);
        }
        work();
    });
    trained.into_inner().unwrap_or_else(PoisonError::into_inner)
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
                Arm { data: data.clone(), policy, seed, set: args.set.clone(), config }
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
    let policy = if policy == SCRATCH { PolicyKind::Off.name() } else { policy };
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
fn train(arm: &Arm, build: Option<&str>, interrupt: &Interrupt) -> anyhow::Result<Option<Run>> {
    let Arm { data, policy, seed, set, config } = arm;
    let prepared = data::load(&config.data)?;
    let around = surroundings(arm)?;
    let clock = Arc::clone(&around.clock);
    let mut trainer = assemble(config, &prepared, around)?;
    let mut eager = Eager::acquire()?;
    let mut watch = Watch { interrupt, germinated: BTreeSet::new() };
    let began = clock.now();
    if trainer.run(&mut eager, &mut watch)? == Outcome::Interrupted {
        return Ok(None);
    }
    let seconds = (clock.now() - began).as_secs_f64();
    let test = trainer.test(&eager)?.score;
    let states = trainer.seeds().export_seed_states(&eager)?;
    // Where nothing grows there is nothing to confirm.
    let confirming = trainer.seeds().confirming(&eager)?.filter(|_| config.policy.policy != PolicyKind::Off);
    Ok(Some(Run {
        data: data.clone(),
        policy: policy.clone(),
        seed: *seed,
        test_accuracy: test.accuracy().context("the accuracy of the test data")?,
        test_loss: test.loss,
        steps: trainer.progress().1.0,
        seconds: Some(seconds),
        parameters: trainer.seeds().model().layout().num_elements(),
        num_fossilized: states.iter().filter(|state| state.stage == SeedStage::Fossilized).count(),
        num_germinated: Some(watch.germinated.len() as u64),
        num_confirmations: confirming.map(|next| next.num_read),
        unconfirmable: unconfirmable(confirming),
        set: set.clone(),
        origin: Origin::of(build, arm, &prepared),
    }))
}

/// Why a run that ended like this could not have confirmed the gain of any seed.
fn unconfirmable(at_the_end: Option<Confirming>) -> Option<String> {
    let Confirming { num_samples, needed_samples, num_read, .. } = at_the_end?;
    (num_read == 0 && num_samples < needed_samples).then(|| {
        format!("{num_samples} samples to confirm a gain on, the smallest that matters needs {needed_samples}")
    })
}

/// Runs that could not have confirmed a gain, with why: `2 runs: …`; empty where all could, or it is not known.
pub(super) fn unconfirmable_runs(runs: &[&Run]) -> String {
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    for why in runs.iter().filter_map(|run| run.unconfirmable.as_deref()) {
        *reasons.entry(why).or_default() += 1;
    }
    let told = reasons.iter().map(|(why, n)| format!("{n} {}: {why}", if *n == 1 { "run" } else { "runs" }));
    told.collect::<Vec<_>>().join("; ")
}

/// The sum over the runs, where it is known of all of them.
pub(super) fn total(runs: &[&Run], of: fn(&Run) -> Option<u64>) -> Option<u64> {
    runs.iter().map(|run| of(run)).sum()
}

/// Mean time of training, where it is known of all runs.
pub(super) fn mean_seconds(runs: &[&Run]) -> Option<f64> {
    let seconds: Option<Vec<f64>> = runs.iter().map(|run| run.seconds).collect();
    seconds.filter(|seconds| !seconds.is_empty()).map(|seconds| mean_and_deviation(&seconds).0)
}

/// Differences of one outcome that a call looks at: of every policy but the last to the last one, on each data set.
pub(super) fn num_comparisons(args: &StudyArgs) -> usize {
    args.data.len() * args.policies.len().saturating_sub(1)
}

/// How many of the runs have a permanent seed.
pub(super) fn num_that_keep(runs: &[&Run]) -> usize {
    runs.iter().filter(|run| run.num_fossilized > 0).count()
}

/// The difference of two arms over the seeds that both have.
pub(super) fn paired(treated: &[&Run], control: &[&Run], of: fn(&Run) -> f64) -> Option<PairedDifference> {
    let partner = |run: &&&Run| control.iter().find(|other| other.seed == run.seed).map(|other| (of(run), of(other)));
    let (treated, control): (Vec<f64>, Vec<f64>) = treated.iter().filter_map(|run| partner(&run)).unzip();
    PairedDifference::of(&treated, &control)
}

/// The runs as a Markdown table: accuracy per arm, and the paired difference to the last policy.
fn table(args: &StudyArgs, runs: &[Run]) -> String {
    let comparisons = num_comparisons(args);
    let intervals = if comparisons > 1 {
        format!("95 % interval of each, of all {comparisons} together")
    } else {
        "95 % interval".to_owned()
    };
    let mut text = format!(
        "| data | policy | runs | steps | seconds | parameters | seeds germinated, in all | confirmations read, in all | seeds kept | runs that keep a seed, bound | test accuracy, mean ± s.d. | difference, {intervals} | difference of the loss, {intervals} |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    let mut notes = String::new();
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
            let against = |of: fn(&Run) -> f64, digits: usize| {
                let difference = paired(&arm(policy), &arm(control), of).filter(|_| policy != control);
                difference.map_or_else(
                    || "–".to_owned(),
                    |d| {
                        let of_each = format!("{:+.digits$} [{:+.digits$}, {:+.digits$}]", d.mean, d.low, d.high);
                        let (low, high) = d.of_all(comparisons);
                        if comparisons > 1 { format!("{of_each} [{low:+.digits$}, {high:+.digits$}]") } else { of_each }
                    },
                )
            };
            let difference = against(|run| 100.0 * run.test_accuracy, 2);
            let loss = against(|run| run.test_loss, 4);
            let (num_runs, num_keep) = (arm(policy).len(), num_that_keep(&arm(policy)));
            let (share, bound) = (num_keep as f64 / num_runs as f64, upper_bound(num_keep, num_runs));
            let (steps, parameters) = (count(|run| run.steps as f64), count(|run| run.parameters as f64));
            let kept = count(|run| run.num_fossilized as f64);
            let seconds = mean_seconds(&arm(policy)).map_or_else(|| "–".to_owned(), |mean| format!("{mean:.1}"));
            let known = |of| total(&arm(policy), of).map_or_else(|| "–".to_owned(), |sum| sum.to_string());
            let (germinated, read) = (known(|run| run.num_germinated), known(|run| run.num_confirmations));
            let unconfirmable = unconfirmable_runs(&arm(policy));
            if !unconfirmable.is_empty() {
                writeln!(notes, "{data}, {policy}: no gain could be confirmed in {unconfirmable}")
                    .expect("a string takes any text");
            }
            writeln!(
                text,
                "| {data} | {policy} | {num_runs} | {steps:.0} | {seconds} | {parameters:.0} | {germinated} | {read} | {kept:.1} | {:.1} %, < {:.1} % | {mean:.2} ± {deviation:.2} % | {difference} | {loss} |",
                100.0 * share,
                100.0 * bound
            )
            .expect("a string takes any text");
        }
    }
    text + if notes.is_empty() { "" } else { "\n" } + &notes
}
