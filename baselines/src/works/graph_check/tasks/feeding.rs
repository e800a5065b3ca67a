//! Where samples come from, and what happens between steps: no bit of it depends on how steps run.

use std::num::{NonZeroU64, NonZeroUsize};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leyline::error::BoxError;
use leyline::id::StepIndex;
use leyline::model::TrainableModel as _;
use leyline::region::Eager;
use leyline::seed::SeedManager as _;
use leyline::source::{SampleSpec, SamplesMut, SourceError};
use tolaria::batch::source::{Element, TokenLayout, TokenSource};
use tolaria::batch::transform::{SampleRandom, Transform};
use tolaria::batch::{Dataset, LoaderConfig, SamplerConfig, WeighedBy};
use tolaria::checkpoint::{CheckpointStore, StdFs};
use tolaria::trainer::report::EpochReport;
use tolaria::trainer::{Checkpoints, Flow, NullObserver, Observer, Outcome, StepMode, TrainConfig, Trainer};

use super::problems::{LENGTH, Problem, SAMPLES, STEPS_PER_EPOCH, VOCABULARY, problems, token_text};
use super::{EPOCHS, Place, SHARE, STEPS, pause, ran};
use crate::error::Error;
use crate::gpu::growing::{differing, values_of};
use crate::gpu::ran::Ran;
use crate::gpu::report::{Broken, Report, promise};
use crate::trainer::PlainTrainer;

const MODES: [(&str, StepMode); 3] =
    [("eager", StepMode::Eager), ("graph", StepMode::Graph), ("compiled", StepMode::Compiled)];

/// A check of one way to run steps.
pub(super) type Check = Box<dyn Fn(&Place, &mut Eager, StepMode) -> Result<String, Broken>>;

pub(super) fn run(on: &Place, eager: &mut Eager, report: &mut Report) {
    for (name, check) in checks() {
        for (mode_name, mode) in MODES {
            report.check(format!("tasks.fed.{name}.{mode_name}"), |_| check(on, eager, mode));
        }
    }
}

/// The checks by name.
pub(super) fn checks() -> Vec<(String, Check)> {
    let mut checks: Vec<(String, Check)> = Vec::new();
    for (name, problem) in [("host", "classification"), ("tokens", "next_token")] {
        for workers in [0, 1, 4] {
            let check = move |on: &Place, eager: &mut Eager, mode| {
                from_the_host(on, eager, &named(on, problem)?, workers, mode)
            };
            checks.push((format!("{name}.workers{workers}"), Box::new(check)));
        }
    }
    let samplers = [
        ("sampler_weighted", SamplerConfig::Weighted { by: WeighedBy::Class, class_weights: None }),
        ("sampler_bucketed", SamplerConfig::Bucketed { pool: NonZeroUsize::MIN }),
    ];
    for (name, sampler) in samplers {
        let check = move |on: &Place, eager: &mut Eager, mode| {
            sampled(on, eager, &named(on, "classification")?, &sampler, mode)
        };
        checks.push((name.to_owned(), Box::new(check)));
    }
    let between: Check = Box::new(|on, eager, mode| between_steps(on, eager, &named(on, "multi_label")?, mode));
    let panics: Check = Box::new(|on, eager, mode| worker_panics(on, eager, &named(on, "classification")?, mode));
    checks.extend([("between_steps".to_owned(), between), ("worker_panics".to_owned(), panics)]);
    checks
}

/// The task of that name.
pub(super) fn named(on: &Place, name: &str) -> Result<Problem, Broken> {
    let problem = problems(&on.device)?.into_iter().find(|problem| problem.name == name);
    problem.ok_or_else(|| Broken(format!("there is no task {name}")))
}

fn io(error: &std::io::Error) -> Broken {
    Broken(error.to_string())
}

/// Samples that come from the host, tokens from a file, step by step: what resident ones give, run eagerly.
fn from_the_host(
    on: &Place,
    eager: &mut Eager,
    problem: &Problem,
    workers: usize,
    mode: StepMode,
) -> Result<String, Broken> {
    let folder = tempfile::tempdir().map_err(|error| io(&error))?;
    let resident = problem.data_on(&on.device)?;
    let expected = ran(on, eager, problem, problem.config(4, StepMode::Eager), resident)?;
    let data = if problem.is_of_tokens() { in_a_file(&folder.path().join("tokens"))? } else { problem.data.clone() };
    let loader = LoaderConfig { workers, ..LoaderConfig::default() };
    let config = TrainConfig { loader, ..problem.config(4, mode) };
    let found = ran(on, eager, problem, config, data)?;
    found.unrefused()?;
    expected.agrees(&found, STEPS)?;
    took_its_way(&found, mode)?;
    Ok(format!(
        "{STEPS} steps, {} replays, {} of them compiled: the bits of resident samples",
        found.replays, found.compiled
    ))
}

/// Orders that are no permutations, of resident samples: what samples from the host give in them, run eagerly.
fn sampled(
    on: &Place,
    eager: &mut Eager,
    problem: &Problem,
    sampler: &SamplerConfig,
    mode: StepMode,
) -> Result<String, Broken> {
    let lengths: Vec<u32> = (0..23).cycle().take(SAMPLES).collect();
    let mut run = |mode, workers, data: Dataset| {
        let loader = LoaderConfig { workers, ..LoaderConfig::default() };
        let config = TrainConfig { sampler: sampler.clone(), loader, ..problem.config(4, mode) };
        ran(on, eager, problem, config, data.with_lengths(lengths.clone())?)
    };
    let expected = run(StepMode::Eager, 2, problem.data.clone())?;
    let found = run(mode, 0, problem.data_on(&on.device)?)?;
    found.unrefused()?;
    expected.agrees(&found, STEPS)?;
    took_its_way(&found, mode)?;
    Ok(format!("{STEPS} steps, {} of them compiled: the bits of samples from the host", found.compiled))
}

/// Confirms that steps ran as they should, tails among them.
fn took_its_way(found: &Ran, mode: StepMode) -> Result<(), Broken> {
    let enough = |count: u64| count * 100 >= found.steps * SHARE;
    let as_expected = match mode {
        StepMode::Eager => found.replays == 0,
        StepMode::Graph => enough(found.replays) && found.compiled == 0,
        StepMode::Compiled => enough(found.compiled),
    };
    promise(as_expected, || {
        format!("{} of {} steps were replays, {} of them compiled", found.replays, found.steps, found.compiled)
    })
}

/// The samples of the task in memory, as a file.
fn in_a_file(path: &Path) -> Result<Dataset, Broken> {
    let bytes: Vec<u8> = token_text(SAMPLES * LENGTH + 1).iter().flat_map(|token| token.to_le_bytes()).collect();
    std::fs::write(path, bytes).map_err(|error| io(&error))?;
    let count = |n| NonZeroUsize::new(n).expect("above 0");
    let layout = TokenLayout { element: Element::U32, window: count(LENGTH), vocabulary: count(VOCABULARY) };
    let source = TokenSource::open(path, layout).map_err(|error| Broken(error.to_string()))?;
    Ok(Dataset::from_source(Arc::new(source))?)
}

/// A trainer with checkpoints in the middle of epochs.
fn saving(
    on: &Place,
    problem: &Problem,
    config: TrainConfig,
    data: Dataset,
    dir: &Path,
) -> Result<PlainTrainer, Broken> {
    let mut parts = problem.parts(data, EPOCHS, &on.device, &on.clock)?;
    let store = CheckpointStore::open(dir, NonZeroUsize::MIN, Arc::new(StdFs)).map_err(tolaria::Error::from)?;
    parts.checkpoints = Some(Checkpoints { every_steps: NonZeroU64::new(4), ..Checkpoints::new(store) });
    Ok(Trainer::new(config, parts)?)
}

/// Evaluations and checkpoints in the middle of epochs: the same measures as eagerly, parameters as without them, and a run that
/// is taken up from such a checkpoint ends as if it had never stopped.
fn between_steps(on: &Place, eager: &mut Eager, problem: &Problem, mode: StepMode) -> Result<String, Broken> {
    let knobs = |mode| TrainConfig { eval_every_steps: NonZeroU64::new(2), ..problem.config(1, mode) };
    let without = ran(on, eager, problem, problem.config(1, StepMode::Eager), problem.data_on(&on.device)?)?;
    let mut whole = |mode| {
        let folder = tempfile::tempdir().map_err(|error| io(&error))?;
        let trainer = saving(on, problem, knobs(mode), problem.data_on(&on.device)?, folder.path())?;
        Ran::of(trainer, eager, pause(mode))
    };
    let (expected, found) = (whole(StepMode::Eager)?, whole(mode)?);
    found.unrefused()?;
    expected.agrees(&found, STEPS)?;
    took_its_way(&found, mode)?;
    let wrong = differing(&without.parameters, &found.parameters);
    promise(wrong == 0, || format!("{wrong} parameters differ from a run without evaluations and checkpoints"))?;

    let folder = tempfile::tempdir().map_err(|error| io(&error))?;
    let stop = STEPS_PER_EPOCH * 20 + 2;
    let trainer = || saving(on, problem, knobs(mode), problem.data_on(&on.device)?, folder.path());
    let (mut first, mut until) = (trainer()?, Until { stop, mode });
    promise(first.run(eager, &mut until)? == Outcome::Interrupted, || "the run was not interrupted".to_owned())?;
    let compiled = first.num_compiled_replays();
    promise((compiled > 0) == (mode == StepMode::Compiled), || format!("{compiled} compiled steps before it stopped"))?;
    drop(first);
    let resumed = resumed(eager, trainer()?, stop)?;
    let wrong = differing(&without.parameters, &resumed);
    promise(wrong == 0, || format!("{wrong} parameters differ after a run was taken up"))?;
    Ok(format!(
        "{STEPS} steps, {} of them compiled, 0 of {} parameters and no measure differ",
        found.compiled,
        resumed.len()
    ))
}

/// Takes up what was saved after `step` steps, and trains to the end: the values of all parameters.
fn resumed(eager: &mut Eager, mut trainer: PlainTrainer, step: u64) -> Result<Vec<f32>, Broken> {
    let taken_up = trainer.resume(eager)?.map(|resumed| (resumed.step.0, resumed.skipped));
    promise(taken_up == Some((step, Vec::new())), || format!("taken up at {taken_up:?}, not {step}"))?;
    trainer.run(eager, &mut NullObserver)?;
    values_of(trainer.seeds().model().parameters())
}

/// Stops after a step, with time for the compiler on the way.
struct Until {
    stop: u64,
    mode: StepMode,
}

impl Observer for Until {
    fn step_finished(&mut self, step: StepIndex) -> Flow {
        std::thread::sleep(pause(self.mode)(step));
        if step.0 == self.stop { Flow::Stop } else { Flow::Continue }
    }

    fn epoch_finished(&mut self, _report: &EpochReport) -> Result<(), BoxError> {
        Ok(())
    }
}

/// Moves the inputs, and may panic once it has seen so many samples.
#[derive(Debug)]
struct Shifts {
    panics_at: Option<usize>,
    num_seen: AtomicUsize,
}

fn shifts(panics_at: Option<usize>) -> Arc<dyn Transform> {
    Arc::new(Shifts { panics_at, num_seen: AtomicUsize::new(0) })
}

impl Transform for Shifts {
    fn describe(&self) -> String {
        "shifts".to_owned()
    }

    fn apply(
        &self,
        sample: &mut SamplesMut<'_>,
        _spec: &SampleSpec,
        random: &mut SampleRandom,
    ) -> Result<(), SourceError> {
        let seen = self.num_seen.fetch_add(1, Ordering::Relaxed);
        assert!(self.panics_at.is_none_or(|at| seen < at), "a planted mistake");
        sample.inputs.as_f32()?.iter_mut().for_each(|input| *input += 0.1 * random.normal());
        Ok(())
    }
}

/// A worker that panics in the middle of a run: an error that says so, and a checkpoint before it with which the run goes on as
/// if nothing had happened.
fn worker_panics(on: &Place, eager: &mut Eager, problem: &Problem, mode: StepMode) -> Result<String, Broken> {
    let loader = LoaderConfig { workers: 2, ..LoaderConfig::default() };
    let config = |mode| TrainConfig { loader, ..problem.config(1, mode) };
    let expected = {
        let parts = problem.parts(problem.data.clone(), EPOCHS, &on.device, &on.clock)?;
        let trainer = Trainer::new(config(StepMode::Eager), parts)?.with_transform(shifts(None))?;
        Ran::of(trainer, eager, |_| Duration::ZERO)?
    };
    let folder = tempfile::tempdir().map_err(|error| io(&error))?;
    let trainer = |panics_at| -> Result<PlainTrainer, Broken> {
        let trainer = saving(on, problem, config(mode), problem.data.clone(), folder.path())?;
        Ok(trainer.with_transform(shifts(panics_at))?)
    };
    // In the middle of an epoch, with windows ahead of the steps.
    let mut first = trainer(Some(SAMPLES * 20 + SAMPLES / 2))?;
    let ended = first.run(eager, &mut Until { stop: u64::MAX, mode });
    let Err(error) = ended else { return Err(Broken(format!("the run ended as {ended:?}"))) };
    let text = Error::from(error).chain();
    promise(text.contains("panicked") && text.contains("a planted mistake"), || text.clone())?;
    let (step, stats) = (first.progress().1.0, first.graph_stats().total);
    let ran = [stats.replays > 0, stats.compiled > 0];
    promise(ran == [mode != StepMode::Eager, mode == StepMode::Compiled], || format!("{step} steps, {stats:?}"))?;
    drop(first);
    // The last multiple of four, or the end of an epoch.
    let saved = (step / 4 * 4).max(step / STEPS_PER_EPOCH * STEPS_PER_EPOCH);
    let found = resumed(eager, trainer(None)?, saved)?;
    let wrong = differing(&expected.parameters, &found);
    promise(wrong == 0, || format!("{wrong} of {} parameters differ after it was taken up", found.len()))?;
    Ok(format!("{text}; after {step} steps, taken up at {saved}: 0 of {} parameters differ", found.len()))
}
