//! Training by the trainer's own step: eager, captured, compiled.

use std::num::NonZeroUsize;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use candle_core::{DType, Device, Error, Result, Tensor};
use candle_zoo::Model;
use candle_zoo::check::Trial;
use leyline::error::BoxError;
use leyline::model::TrainableModel as _;
use leyline::region::Eager;
use leyline::seed::SeedManager as _;
use tolaria::batch::{BatchConfig, Dataset};
use tolaria::optim::ScheduleConfig;
use tolaria::plain::{NoPolicy, NoSeeds, PlainModel};
use tolaria::task::Classification;
use tolaria::trainer::report::EpochReport;
use tolaria::trainer::{ExecutionConfig, Flow, Observer, Parts, Splits, StepMode, StepReport, TrainConfig, Trainer};

use crate::found::Found;
use crate::{Setting, bits, differing, more};

/// Steps of an epoch, where its inputs are not too large.
const PER_EPOCH: usize = 50;
/// Numbers in the inputs of an epoch.
const MAX_NUMBERS: usize = 8_000_000;
/// Fewer steps show nothing of replays.
const MIN_STEPS: u64 = 24;
/// For the compiler.
const WAIT: Duration = Duration::from_secs(4);
/// Of steps that are waited for once.
const IN_GROUP: u64 = 8;

const WAYS: [(&str, StepMode); 3] =
    [("eager", StepMode::Eager), ("captured", StepMode::Graph), ("compiled", StepMode::Compiled)];

pub(crate) fn look(model: Model, setting: &Setting, eager: &mut Eager, found: &mut Found) -> Result<()> {
    let mut first: Option<Ran> = None;
    for (way, mode) in WAYS {
        let steps = first.as_ref().map(|ran| ran.steps);
        let ran = match Ran::of(model, mode, setting, steps, eager) {
            Ok(ran) => ran,
            // Without eager steps there is nothing to compare with.
            Err(error) if first.is_none() => return Err(error),
            Err(error) => {
                found.fails(&format!("step.{way}"), &error);
                continue;
            }
        };
        // Where steps were not replayed, they were eager ones.
        let is_taken = match mode {
            StepMode::Eager => true,
            StepMode::Graph => ran.replays > 0,
            StepMode::Compiled => ran.compiled > 0,
        };
        if is_taken {
            found.values(format!("step.{way}"), "us", ran.waited.clone());
            found.values(format!("step.{way}.pipelined"), "us", ran.pipelined.clone());
        }
        match &first {
            None => {
                found.value("steps", "count", ran.steps as f64);
                found.say(format!("step.{way}"), ran.about());
                first = Some(ran);
            }
            Some(first) => {
                let wrong = differing(&first.parameters, &ran.parameters) + differing(&first.last, &ran.last);
                let wrong = wrong + first.history.iter().zip(&ran.history).filter(|(a, b)| a != b).count();
                let is_same = wrong == 0 && first.history.len() == ran.history.len();
                let same = if is_same { "the same bits".to_owned() } else { format!("BROKEN: {wrong} numbers differ") };
                found.say(format!("step.{way}"), format!("{same}: {}", ran.about()));
                if let (Some(eager), Some(this)) = (found.median("step.eager"), found.median(&format!("step.{way}"))) {
                    found.value(&format!("step.eager_over_{way}"), "ratio", eager / this);
                }
            }
        }
    }
    Ok(())
}

/// What a run left behind.
struct Ran {
    steps: u64,
    /// Bits after the steps, and after those that were timed.
    parameters: Vec<u32>,
    last: Vec<u32>,
    /// Bits of losses, measures and norms of the epochs.
    history: Vec<u64>,
    moved: usize,
    replays: u64,
    compiled: u64,
    refusal: Option<String>,
    /// Of the compiled graph, before and after.
    nodes: Option<[usize; 2]>,
    /// Microseconds of a step that is waited for.
    waited: Vec<f64>,
    /// The same of one of eight.
    pipelined: Vec<f64>,
}

impl Ran {
    /// Takes `steps` steps, or as many as there is time for, and an epoch or two that are timed.
    fn of(model: Model, mode: StepMode, setting: &Setting, steps: Option<u64>, eager: &mut Eager) -> Result<Self> {
        let (mut trainer, per_epoch) = trainer(model, mode, setting)?;
        let mut watch = Watch { setting, until: 0, wait: Wait::No, last: None, times: Vec::new(), history: Vec::new() };
        let start = values(&trainer)?;
        watch.until = 2;
        trainer.run(eager, &mut watch).map_err(Error::wrap)?;
        let began = setting.clock.now();
        watch.until = 6;
        trainer.run(eager, &mut watch).map_err(Error::wrap)?;
        setting.device.synchronize()?;
        let one = (setting.clock.now() - began).as_secs_f64() / 4.0;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count of steps")]
        let affordable = (setting.seconds / one.max(1e-6)) as u64;
        let steps = steps.unwrap_or_else(|| affordable.clamp(MIN_STEPS.min(setting.steps), setting.steps));
        // Small networks take all of their steps in less time than it takes to compile one.
        let began = setting.clock.now();
        let is_awaited = mode == StepMode::Compiled && !matches!(setting.device, Device::Cpu);
        let pause = WAIT / u32::try_from(steps).unwrap_or(u32::MAX);
        while is_awaited && watch.until + 4 < steps && trainer.num_compiled_replays() == 0 {
            let is_refused = trainer.last_refusal().is_some() || trainer.last_compile_refusal().is_some();
            if is_refused || setting.clock.now() - began > WAIT {
                break;
            }
            watch.until += 1;
            trainer.run(eager, &mut watch).map_err(Error::wrap)?;
            if trainer.graph_stats().total.replays > 8 {
                std::thread::sleep(pause);
            }
        }
        watch.until = steps;
        trainer.run(eager, &mut watch).map_err(Error::wrap)?;
        let parameters = values(&trainer)?;
        let mut timed = Vec::new();
        let timed_steps = (per_epoch as u64).min(steps);
        for wait in [Wait::Each, Wait::Groups] {
            watch = Watch { wait, until: watch.until + timed_steps, last: None, times: Vec::new(), ..watch };
            trainer.run(eager, &mut watch).map_err(Error::wrap)?;
            timed.push(std::mem::take(&mut watch.times));
        }
        let refusal = trainer.last_refusal().or(trainer.last_compile_refusal());
        let total = trainer.graph_stats().total;
        Ok(Self {
            steps,
            last: values(&trainer)?,
            moved: differing(&start, &parameters),
            parameters,
            history: watch.history,
            replays: total.replays,
            compiled: trainer.num_compiled_replays(),
            refusal: refusal.map(|refusal| format!("refused as {}: {refusal}", refusal.name())),
            nodes: trainer.compile_report().map(|report| [report.nodes_before, report.nodes_after]),
            pipelined: timed.pop().unwrap_or_default(),
            waited: timed.pop().unwrap_or_default(),
        })
    }

    fn about(&self) -> String {
        let Self { steps, moved, replays, compiled, .. } = self;
        let elements = self.parameters.len();
        let mut text = format!(
            "{steps} steps, {moved} of {elements} elements moved, {replays} replays, {compiled} of them compiled"
        );
        if let Some([before, after]) = self.nodes {
            text += &format!(", {before} nodes became {after}");
        }
        if let Some(refusal) = &self.refusal {
            text += &format!("; {refusal}");
        }
        text
    }
}

type ZooTrainer = Trainer<NoSeeds<PlainModel>, NoPolicy>;

/// The trainer of a model that tells apart as many classes as a sample has outputs, and its steps per epoch.
fn trainer(model: Model, mode: StepMode, setting: &Setting) -> Result<(ZooTrainer, usize)> {
    let device = &setting.device;
    let mut trial = Trial::new(model, DType::F32, device)?;
    let gradients = trial.loss()?.backward()?;
    // What the outputs do not depend on is not trained.
    let named: Vec<_> = trial.trained().into_iter().filter(|(_, var)| gradients.get(var).is_some()).collect();
    drop(gradients);
    let inputs = trial.built.inputs.clone();
    let batch = inputs.dim(0)?;
    let width = trial.run()?.elem_count() / batch;
    if width < 2 {
        candle_core::bail!("one output per sample: nothing to tell apart");
    }
    let per_epoch = (MAX_NUMBERS / inputs.elem_count()).clamp(8, PER_EPOCH);
    let built = Mutex::new(trial.built);
    let network = PlainModel::new(named, move |x: &Tensor| {
        let outputs = built.lock().unwrap_or_else(PoisonError::into_inner).train(x)?;
        outputs.reshape((x.dim(0)?, ()))
    });
    let classes = |count: usize| {
        let class = |sample: usize| u32::try_from((7 * sample + 3) % width).map_err(Error::wrap);
        Tensor::from_vec((0..count).map(class).collect::<Result<Vec<_>>>()?, count, device)
    };
    let train = Dataset::new(more(&inputs, per_epoch)?, classes(batch * per_epoch)?).map_err(Error::wrap)?;
    let validation = Dataset::new(inputs, classes(batch)?).map_err(Error::wrap)?;
    let batch_size = NonZeroUsize::new(batch).ok_or_else(|| Error::msg("no samples"))?;
    let config = TrainConfig {
        batch: BatchConfig { batch_size, microbatches_per_step: NonZeroUsize::MIN },
        schedule: ScheduleConfig::constant(1e-3),
        eval_batch_size: batch_size,
        execution: ExecutionConfig { mode, ..ExecutionConfig::default() },
        ..TrainConfig::default()
    };
    let data = Splits { train, test: validation.clone(), validation };
    let parts = Parts::plain(Classification::new(width), network.map_err(Error::wrap)?, data);
    let clock = setting.clock.clone();
    let trainer = Trainer::new(config, Parts { num_epochs: u64::MAX, clock, ..parts }).map_err(Error::wrap)?;
    Ok((trainer, per_epoch))
}

/// Bits of all parameters.
fn values(trainer: &ZooTrainer) -> Result<Vec<u32>> {
    let parameters = trainer.seeds().model().parameters();
    let all = parameters.iter().map(|parameter| bits(parameter.var.as_tensor()));
    Ok(all.collect::<Result<Vec<_>>>()?.concat())
}

/// For which steps the device is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wait {
    No,
    Each,
    Groups,
}

/// Stops after a step, notes what the epochs come to, and takes times.
struct Watch<'a> {
    setting: &'a Setting,
    until: u64,
    wait: Wait,
    /// When, and after which step of the epoch.
    last: Option<(Duration, u64)>,
    times: Vec<f64>,
    history: Vec<u64>,
}

impl Watch<'_> {
    fn time(&mut self, step_of_epoch: u64) -> Result<()> {
        self.setting.device.synchronize()?;
        let now = self.setting.clock.now();
        // What is between two epochs is no step.
        if let Some((then, step)) = self.last.filter(|(_, step)| *step < step_of_epoch) {
            self.times.push((now - then).as_secs_f64() * 1e6 / (step_of_epoch - step) as f64);
        }
        self.last = Some((now, step_of_epoch));
        Ok(())
    }
}

impl Observer for Watch<'_> {
    fn step(&mut self, report: &StepReport<'_>) -> Flow {
        let is_due = match self.wait {
            Wait::No => false,
            Wait::Each => true,
            Wait::Groups => report.step_of_epoch % IN_GROUP == 1,
        };
        let is_timed = !is_due || self.time(report.step_of_epoch).is_ok();
        if report.step.0 >= self.until || !is_timed { Flow::Stop } else { Flow::Continue }
    }

    fn epoch_finished(&mut self, report: &EpochReport) -> std::result::Result<(), BoxError> {
        for score in report.train.iter().chain([&report.validation]) {
            self.history
                .extend(std::iter::once(&score.loss).chain(score.measures.values()).map(|value| value.to_bits()));
        }
        self.history.extend(report.gradient_norm.map(f64::to_bits));
        self.history.push(report.skipped_steps);
        Ok(())
    }
}
