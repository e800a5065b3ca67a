//! The command: trains every arm and prints the table.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::Context as _;
use clap::Args;
use esper_layers::operations::counted;
use leyline::clock::{Clock, SystemClock};
use leyline::error::BoxError;
use leyline::id::{EpochIndex, RunId, SeedId, StepIndex};
use leyline::region::Eager;
use leyline::seed::{Confirming, SeedManager as _, SeedStage};
use leyline::state::Score;
use leyline::telemetry::NullRecorder;
use tamiyo::policy::PolicyKind;
use tamiyo::policy::learned::{Held, Networks};
use tolaria::trainer::report::EpochReport;
use tolaria::trainer::{Flow, Observer, RunEvent};

use super::arms::{Arm, Kind, arms, check_names, is_of_sweep, rounds, settled, swept};
use super::file::{Counted, Origin, Run, RunFile, build};
use super::page::page;
use super::result::{name, result};
use super::table::table;
use crate::bench::{BUILD, may_be_written};
use crate::config::DeviceName;
use crate::exit::{self, UsageError};
use crate::run::Interrupt;
use crate::signature::SignatureArgs;
use crate::wire::{Surroundings, answering_parameters, assemble, is_whole};
use crate::{data, output, policy};

/// Flags of `esper study`.
#[derive(Debug, Clone, Args)]
pub struct StudyArgs {
    /// Data sets, as for `esper train --data`.
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_value = "digits")]
    pub data: Vec<String>,
    /// Policies: every other one is compared with the last, and the first one with all. Some are none: `scratch` is the network of the host with
    /// wider layers, of the size that the first one grows to on the same data with the same random seed, for as many steps; `scratch-flops` and
    /// `scratch-seconds` the same for as many operations, or as long; `sweep` is the host in 1, 2, 4, 8 and 16 times its width, of which the one counts
    /// that is best on validation data, and the cost of all; `noise` is the first policy with nothing on offer but seeds that add noise;
    /// `untold` is the first policy without `policy.heuristic.earlier`; `random-equal` makes as many seeds permanent as the first one kept, with slot, blueprint and time drawn by dice and no evidence asked.
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_value = "heuristic,off")]
    pub policies: Vec<String>,
    /// Random seeds per arm.
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub seeds: usize,
    /// The first of them; the others follow.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub first_seed: u32,
    /// Any other setting, as for `esper train`; with DATA: before it, for that data set alone.
    #[arg(long = "set", value_name = "[DATA:]KEY=VALUE")]
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
    /// Also writes a page with plots: accuracy with intervals, and over what it cost.
    #[arg(long, value_name = "FILE")]
    pub page: Option<PathBuf>,
}

/// Stops a run when the user asks for it, counts the seeds that it tries, and keeps what their confirmations found and what the network is worth on validation data.
struct Watch<'a> {
    interrupt: &'a Interrupt,
    /// With the epochs after which they did.
    germinated: BTreeSet<(EpochIndex, SeedId)>,
    /// With the epochs after which they were read.
    p_values: BTreeMap<SeedId, (EpochIndex, f64)>,
    /// Accuracy and loss on the validation data, as they were evaluated last: at the end of the run, be it inside an epoch.
    validation: Option<(f64, f64)>,
}

impl Watch<'_> {
    fn evaluated(&mut self, validation: &Score) {
        self.validation = validation.accuracy().map(|accuracy| (accuracy, validation.loss));
    }
}

impl Observer for Watch<'_> {
    fn step_finished(&mut self, _step: StepIndex) -> Flow {
        if self.interrupt.asked() { Flow::Stop } else { Flow::Continue }
    }

    fn event(&mut self, event: &RunEvent<'_>) {
        match event {
            RunEvent::Evaluated(evaluation) => self.evaluated(&evaluation.validation),
            RunEvent::RolledBack { epoch, .. } => {
                self.germinated.retain(|(after, _)| after <= epoch);
                self.p_values.retain(|_, (after, _)| *after <= *epoch);
            }
            _ => {}
        }
    }

    fn epoch_finished(&mut self, report: &EpochReport) -> Result<(), BoxError> {
        let germinated = report.transitions.iter().filter(|change| change.to == SeedStage::Germinated);
        self.germinated.extend(germinated.map(|change| (report.epoch, change.seed)));
        // As the policy saw them: its orders may have ended them since.
        let seeds = report.asked.iter().flat_map(|asked| &asked.seeds).chain(&report.seeds);
        for (seed, read) in seeds.filter_map(|seed| Some((seed.seed_id, seed.confirmation?.measured.p_value))) {
            self.p_values.entry(seed).or_insert((report.epoch, read));
        }
        self.evaluated(&report.validation);
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
    check_names(args)?;
    may_be_written(args.result.as_deref(), BUILD)?;
    check_places(args)?;
    let arms = pinned(arms(args)?)?;
    let build = build();
    if let Some(dir) = &args.result {
        let made = fs::create_dir_all(dir);
        made.map_err(|error| UsageError(format!("--result {}: {error}; expected a folder", dir.display())))?;
    }
    if let Some(path) = args.page.as_deref().filter(|path| path.is_dir() || !folder_of(path).is_dir()) {
        let message = format!("--page {}: expected a file in a folder that exists", path.display());
        return Err(UsageError(message).into());
    }
    let interrupt = Interrupt::install()?;
    let trainer = |arm: &Arm| train(arm, build.as_deref(), &interrupt);
    let (mut runs, mut before, mut ended) = (Vec::new(), Vec::new(), Ok(true));
    for round in rounds(&arms) {
        let settle = |arm: Arm| settled(arm, args, &runs, &before);
        let round = match round.into_iter().map(settle).collect::<anyhow::Result<Vec<Arm>>>() {
            Ok(round) => round,
            Err(error) => {
                ended = Err(error);
                break;
            }
        };
        let (file, done) = opened(args, &round, build.as_deref())?;
        let keep = |runs: &[Run]| file.as_ref().map_or(Ok(()), |file| file.keep(runs));
        let trained = train_all(args.jobs, &round, done, &trainer, &keep);
        runs.extend(trained.runs);
        before.extend(round);
        ended = trained.ended;
        if !matches!(ended, Ok(true)) {
            break;
        }
    }
    let place = |run: &Run| arms.iter().position(|arm| run.has_name_of(arm));
    runs.sort_by_key(place);
    if runs.len() < arms.len() {
        output::tell(&format!("{} of {} runs were done\n", runs.len(), arms.len()));
    }
    runs.extend(swept(&runs));
    output::print(&table(args, &runs))?;
    if !ended? {
        return Ok(ExitCode::from(exit::INTERRUPTED));
    }
    if let Some(dir) = &args.result {
        result(args, &runs).write(dir)?;
    }
    if let Some(path) = &args.page {
        fs::write(path, page(args, &runs)?).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What is written must not overwrite what was written before it.
fn check_places(args: &StudyArgs) -> Result<(), UsageError> {
    let file_name = format!("{}.json", name(args));
    let result = args.result.as_deref();
    let files = [("--out", args.out.as_deref()), ("--page", args.page.as_deref()), ("--result", result)];
    let files: Vec<_> =
        files.into_iter().filter_map(|(flag, path)| path.map(|path| (flag, path, place(path)))).collect();
    for (index, (flag, path, at)) in files.iter().enumerate() {
        for (other_flag, other, other_at) in &files[index + 1..] {
            let is_within = *other_flag == "--result" && *at == other_at.join(&file_name);
            if is_within || at == other_at {
                let within = if is_within { format!(", {file_name}") } else { String::new() };
                let [path, other] = [path, other].map(|path| path.display());
                let message =
                    format!("{flag} {path} and {other_flag} {other}: one file{within}; expected another for each");
                return Err(UsageError(message));
            }
        }
    }
    Ok(())
}

/// Where a file is, or will be; links are followed as far as there are any.
fn place(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| match path.file_name() {
        Some(name) => place(folder_of(path)).join(name),
        None => path.to_owned(),
    })
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The file, where there is to be one, and what need not be trained again.
fn opened(args: &StudyArgs, arms: &[Arm], build: Option<&str>) -> anyhow::Result<(Option<RunFile>, Vec<Run>)> {
    match &args.out {
        Some(path) => RunFile::open(path, arms, build).map(|(file, done)| (Some(file), done)),
        None => Ok((None, Vec::new())),
    }
}

/// With the network of each arm that has one. Each is read once: what a folder holds later decides in another study.
fn pinned(mut arms: Vec<Arm>) -> anyhow::Result<Vec<Arm>> {
    let mut read: BTreeMap<PathBuf, Held> = BTreeMap::new();
    for arm in &mut arms {
        let learned = &arm.config.policy.learned.file;
        if let Some(held) = learned.as_ref().filter(|_| arm.is_learned()).and_then(|dir| read.get(dir)) {
            arm.network = Some(held.clone());
            continue;
        }
        arm.network = policy::network(&arm.config, SignatureArgs::default().of_policies()?.as_ref())?;
        read.extend(learned.clone().zip(arm.network.clone()));
    }
    Ok(arms)
}

/// A run has no files.
fn surroundings(arm: &Arm) -> anyhow::Result<Surroundings> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let (run_id, recorder) = (RunId::new(format!("study-{}", arm.seed))?, Arc::new(NullRecorder));
    let networks = arm.network.clone().map(|held| Box::new(policy::One(held)) as Box<dyn Networks>);
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

/// Trains an arm; `None` when the user ended it.
fn train(arm: &Arm, build: Option<&str>, interrupt: &Interrupt) -> anyhow::Result<Option<Run>> {
    let Arm { data, policy, seed, set, config, .. } = arm;
    let prepared = data::load(&config.data)?;
    let around = surroundings(arm)?;
    let clock = Arc::clone(&around.clock);
    let mut trainer = assemble(config, &prepared, around)?;
    let mut eager = Eager::acquire()?;
    let mut watch = Watch { interrupt, germinated: BTreeSet::new(), p_values: BTreeMap::new(), validation: None };
    let began = clock.now();
    let (outcome, operations) = counted(|| trainer.run(&mut eager, &mut watch));
    if !is_whole(outcome?)? {
        return Ok(None);
    }
    let seconds = (clock.now() - began).as_secs_f64();
    // What a GPU replays is not seen.
    let operations = (config.run.device == DeviceName::Cpu).then(|| Counted::from(operations));
    let test = trainer.test(&eager)?.score;
    let states = trainer.seeds().export_seed_states(&eager)?;
    let num_fossilized = states.iter().filter(|state| state.stage == SeedStage::Fossilized).count();
    let (kind, drawn) = (Kind::of(policy), config.policy.fixed.germinations.len());
    // A sweep chooses by it, and one that had none would be missing from the table.
    if is_of_sweep(policy) {
        watch.validation.context("the accuracy of the validation data")?;
    }
    if kind == Kind::RandomEqual && num_fossilized != drawn {
        anyhow::bail!(
            "{num_fossilized} seeds became permanent, and {drawn} were to; expected as many: does anything end a run early?"
        );
    }
    // Where nothing grows, or grows without evidence, there is nothing to confirm.
    let is_confirmed = config.policy.policy != PolicyKind::Off && kind != Kind::RandomEqual;
    let confirming = trainer.seeds().confirming(&eager)?.filter(|_| is_confirmed);
    Ok(Some(Run {
        data: data.clone(),
        policy: policy.clone(),
        seed: *seed,
        test_accuracy: test.accuracy().context("the accuracy of the test data")?,
        test_loss: test.loss,
        steps: trainer.progress().1.0,
        seconds: Some(seconds),
        operations,
        validation: watch.validation,
        parameters: answering_parameters(&trainer),
        num_fossilized,
        num_germinated: Some(watch.germinated.len() as u64),
        num_confirmations: confirming.map(|next| next.num_read),
        p_values: watch.p_values.into_values().map(|(_, p_value)| p_value).collect(),
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

#[cfg(test)]
mod tests {
    use clap::Parser;
    use esper_disk::StdFs;
    use tamiyo::policy::learned::{NUM_FEATURES, NUM_OUTPUTS, Network, Parts};
    use tolaria::trainer::report::TransitionRecord;

    use super::*;
    use crate::report::testing::epoch;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        study: StudyArgs,
    }

    fn write(dir: &Path, bias: f32) -> String {
        let network = Network::new(Parts {
            mean: vec![0.0; NUM_FEATURES],
            scale: vec![1.0; NUM_FEATURES],
            hidden_weight: vec![0.0; NUM_FEATURES],
            hidden_bias: vec![0.0],
            output_weight: vec![0.0; NUM_OUTPUTS],
            output_bias: vec![bias; NUM_OUTPUTS],
        });
        policy::write(&StdFs, dir, &network.unwrap(), policy::Training::default(), None).unwrap();
        policy::read(dir, None).unwrap().0.digest
    }

    #[test]
    fn a_study_decides_by_the_network_that_it_began_with_and_says_so_whatever_comes_later() {
        let dir = tempfile::tempdir().unwrap();
        let set = format!("policy.learned.file=\"{}\"", dir.path().display());
        let line = ["study", "--policies", "learned,noise,off", "--seeds", "1", "--set", &set];
        let first = write(dir.path(), 0.0);
        let arms = pinned(arms(&Line::parse_from(line).study).unwrap()).unwrap();
        assert_ne!(write(dir.path(), 1.0), first);
        for arm in &arms {
            let looked = surroundings(arm).unwrap().networks.map(|mut networks| {
                let found = networks.look(EpochIndex(1), None).unwrap().unwrap().digest;
                assert!(networks.look(EpochIndex(2), Some(&found)).is_none());
                found
            });
            let expected = (arm.policy != "off").then(|| first.clone());
            let prepared = data::load(&arm.config.data).unwrap();
            let origin = serde_json::to_value(Origin::of(Some("build"), arm, &prepared).unwrap()).unwrap();
            let stamped = origin.get("network").map(|digest| digest.as_str().unwrap().to_owned());
            assert_eq!((&looked, &stamped), (&expected, &expected), "{}", arm.policy);
        }
    }

    #[test]
    fn seeds_that_a_run_went_back_from_are_not_counted() {
        let interrupt = Interrupt::default();
        let mut watch =
            Watch { interrupt: &interrupt, germinated: BTreeSet::new(), p_values: BTreeMap::new(), validation: None };
        let germinates = |number, seed| {
            let [from, to] = [SeedStage::Dormant, SeedStage::Germinated];
            let change = TransitionRecord { seed: SeedId(seed), from, to, reason: String::new() };
            EpochReport { transitions: vec![change], ..epoch(number) }
        };
        for (number, seed) in [(7, 1), (9, 2)] {
            watch.epoch_finished(&germinates(number, seed)).unwrap();
        }
        watch.p_values.extend([(SeedId(1), (EpochIndex(8), 0.01)), (SeedId(2), (EpochIndex(9), 0.9))]);
        let [from, to] = [90, 80].map(StepIndex);
        watch.event(&RunEvent::RolledBack { from, to, epoch: EpochIndex(8), culprit: "the loss", rate_factor: 1.0 });
        assert_eq!(watch.germinated.iter().map(|(_, seed)| seed.0).collect::<Vec<_>>(), [1]);
        assert_eq!(watch.p_values.keys().map(|seed| seed.0).collect::<Vec<_>>(), [1]);
        // The number is used again.
        watch.epoch_finished(&germinates(10, 2)).unwrap();
        assert_eq!(watch.germinated.len(), 2);
    }
}
