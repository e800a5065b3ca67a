//! Numbers of the host that move under captured steps: the bits of eager steps, or a run that ends and says why.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use candle_core::Tensor;
use esper_graph::{DeviceScalar, GraphFunction, GraphFunctionConfig, GraphManager, Refusal};
use leyline::error::BoxError;
use leyline::id::StepIndex;
use leyline::region::Eager;
use tolaria::error::Replayed;
use tolaria::host_read::{HostReads, read_vec};
use tolaria::optim::OptimizerConfig;
use tolaria::trainer::report::EpochReport;
use tolaria::trainer::{ExecutionConfig, Flow, Observer, Outcome, StepMode};

use super::plain::{Middle, trainer, values};
use crate::gpu::growing::{differing, in_mode};
use crate::gpu::open::Gpu;
use crate::gpu::report::{Broken, Report, promise};
use crate::trainer::PlainTrainer;

const SGD: OptimizerConfig = OptimizerConfig::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.0 };
const EPOCHS: u64 = 30;
/// Full windows and the last one of an epoch, by microbatches per step.
const STEPS_PER_EPOCH: [(usize, u64); 2] = [(1, 26), (4, 7)];

/// When the number moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moves {
    Never,
    EveryStep,
    EveryEpoch,
    OnceBeforeEpoch7,
    OnceInEpoch7,
}

/// How a run may end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expected {
    /// With the bits of eager steps, and replays to the end.
    Replays,
    /// With the bits of eager steps; captured steps are refused.
    Eager,
    /// With an error that names the number.
    Error,
}

const CASES: [(&str, Moves, Expected); 5] = [
    ("never", Moves::Never, Expected::Replays),
    ("every_step", Moves::EveryStep, Expected::Eager),
    ("every_epoch", Moves::EveryEpoch, Expected::Eager),
    ("before_epoch_7", Moves::OnceBeforeEpoch7, Expected::Eager),
    ("within_epoch_7", Moves::OnceInEpoch7, Expected::Error),
];

pub(super) fn run(gpu: &Gpu, eager: &mut Eager, report: &mut Report) {
    for (mode_name, mode) in [("graph", StepMode::Graph), ("compiled", StepMode::Compiled)] {
        for (microbatches, steps) in STEPS_PER_EPOCH {
            for (name, moves, expected) in CASES {
                let title = format!("frozen.{name}.{mode_name}.accumulation{microbatches}");
                let case = Case { microbatches, steps_per_epoch: steps, moves };
                report.check(title, |_| case.check(gpu, eager, mode, expected));
            }
            let title = format!("frozen.device_scalar.{mode_name}.accumulation{microbatches}");
            let case = Case { microbatches, steps_per_epoch: steps, moves: Moves::EveryStep };
            report.check(title, |_| case.device_scalar(gpu, eager, mode));
        }
    }
    report.check("frozen.function", |_| function(gpu, eager));
}

/// A number that moves, and who moves it.
struct Heat {
    value: Arc<AtomicU32>,
    /// Written in place of the number.
    scalar: Option<DeviceScalar>,
    case: Case,
}

impl Heat {
    fn new(case: Case, scalar: Option<DeviceScalar>) -> Self {
        Self { value: Arc::new(AtomicU32::new(10)), scalar, case }
    }

    fn raise(&self) {
        let value = self.value.fetch_add(1, Ordering::Relaxed) + 1;
        if let Some(scalar) = &self.scalar {
            scalar.set(value as f32 / 10.0).expect("a device that works");
        }
    }
}

impl Observer for Heat {
    fn step_finished(&mut self, step: StepIndex) -> Flow {
        let within = 6 * self.case.steps_per_epoch + self.case.steps_per_epoch / 2;
        if self.case.moves == Moves::EveryStep || (self.case.moves == Moves::OnceInEpoch7 && step.0 == within) {
            self.raise();
        }
        Flow::Continue
    }

    fn epoch_finished(&mut self, report: &EpochReport) -> Result<(), BoxError> {
        let is_due = self.case.moves == Moves::OnceBeforeEpoch7 && report.epoch.0 == 6;
        if self.case.moves == Moves::EveryEpoch || is_due {
            self.raise();
        }
        Ok(())
    }
}

#[derive(Debug, Clone, Copy)]
struct Case {
    microbatches: usize,
    steps_per_epoch: u64,
    moves: Moves,
}

/// A finished run, or what ended it.
struct Run {
    trainer: PlainTrainer,
    values: Vec<f32>,
    ended: Result<Outcome, tolaria::Error>,
}

impl Case {
    /// Trains a network whose hidden values are multiplied by a number of the host.
    fn run(self, gpu: &Gpu, eager: &mut Eager, mode: StepMode) -> Result<Run, Broken> {
        let mut heat = Heat::new(self, None);
        let value = Arc::clone(&heat.value);
        let middle: Middle = Box::new(move |h| h * (f64::from(value.load(Ordering::Relaxed)) / 10.0));
        let mut trainer = trainer(gpu, middle, SGD, self.microbatches, EPOCHS, execution(mode))?;
        let ended = trainer.run(eager, &mut heat);
        let values = values(&trainer)?;
        Ok(Run { trainer, values, ended })
    }

    fn check(self, gpu: &Gpu, eager: &mut Eager, mode: StepMode, expected: Expected) -> Result<String, Broken> {
        let plain = self.run(gpu, eager, StepMode::Eager)?;
        let found = self.run(gpu, eager, mode)?;
        let tests = found.trainer.graph_tests();
        let stats = found.trainer.graph_stats().total;
        let told = format!("{} replays, {} tests in {:?}", stats.replays, tests.num_tests, tests.time);
        if self.moves != Moves::Never {
            let still = Self { moves: Moves::Never, ..self }.run(gpu, eager, StepMode::Eager)?;
            promise(differing(&still.values, &plain.values) > 0, || "the number does not matter".to_owned())?;
            let refusal = found.trainer.last_refusal();
            let named =
                |refusal: &Refusal| matches!(refusal, Refusal::FrozenValue { kernel: Some(_), argument: Some(_), .. });
            promise(refusal.is_some_and(named), || format!("last refusal: {refusal:?}; {told}"))?;
        }
        if expected == Expected::Error {
            return ended_with_the_name(eager, found, &told);
        }
        found.ended?;
        let wrong = differing(&plain.values, &found.values);
        promise(wrong == 0, || format!("{wrong} of {} parameters differ; {told}", found.values.len()))?;
        if expected == Expected::Replays {
            goes_on(&found.trainer, mode)?;
        }
        Ok(format!("0 of {} parameters differ from eager steps; {told}", found.values.len()))
    }

    /// The same number as a device scalar: nothing is refused, and every replay sees what was written before it.
    fn device_scalar(self, gpu: &Gpu, eager: &mut Eager, mode: StepMode) -> Result<String, Broken> {
        let mut run = |mode| -> Result<(PlainTrainer, Vec<f32>), Broken> {
            let scalar = DeviceScalar::new(1.0, &gpu.device)?;
            let mut heat = Heat::new(self, Some(scalar.clone()));
            let middle: Middle = Box::new(move |h| h.broadcast_mul(scalar.as_tensor()));
            let mut trainer = trainer(gpu, middle, SGD, self.microbatches, EPOCHS, execution(mode))?;
            trainer.run(eager, &mut heat)?;
            let values = values(&trainer)?;
            Ok((trainer, values))
        };
        let (_, expected) = run(StepMode::Eager)?;
        let (trainer, found) = run(mode)?;
        let wrong = differing(&expected, &found);
        promise(wrong == 0, || format!("{wrong} of {} parameters differ", found.len()))?;
        goes_on(&trainer, mode)?;
        let replays = trainer.graph_stats().total.replays;
        Ok(format!("{replays} replays, 0 of {} parameters differ from eager steps", found.len()))
    }
}

/// Compiled steps are there after a few replays.
pub(super) fn execution(mode: StepMode) -> ExecutionConfig {
    ExecutionConfig { compile_warmup_steps: 2, compile_verify_steps: NonZeroU32::MIN, ..in_mode(mode) }
}

/// No false alarm.
pub(super) fn goes_on(trainer: &PlainTrainer, mode: StepMode) -> Result<(), Broken> {
    if let Some(refusal) = trainer.last_refusal() {
        return Err(Broken(format!("a shape was refused: {refusal}")));
    }
    let (steps, replays) = (trainer.progress().1.0, trainer.graph_stats().total.replays);
    promise(replays * 10 > steps * 8, || format!("{replays} of {steps} steps were replays"))?;
    let is_compiled = trainer.num_compiled_replays() > 0;
    promise(is_compiled == (mode == StepMode::Compiled), || {
        format!("{} compiled replays: {:?}", trainer.num_compiled_replays(), trainer.last_compile_refusal())
    })
}

/// The run ended with the error, and nothing builds on what it trained.
fn ended_with_the_name(eager: &Eager, mut found: Run, told: &str) -> Result<String, Broken> {
    let steps = found.trainer.progress().1;
    let text = match &found.ended {
        Err(error @ tolaria::Error::FrozenValue { replayed: Replayed::Steps, first, last, stale }) => {
            promise(first <= last && last.next() == steps, || format!("steps {first} to {last} of {steps}"))?;
            promise(stale.num_replays > 0, || format!("{stale}"))?;
            format!("{error}: {stale}")
        }
        Err(other) => return Err(Broken(format!("the run ended with {other}; {told}"))),
        Ok(outcome) => return Err(Broken(format!("the run was {outcome:?}; {told}"))),
    };
    promise(found.trainer.snapshot(eager).is_err(), || "what cannot be trusted was saved".to_owned())?;
    promise(found.trainer.test(eager).is_err(), || "what cannot be trusted was evaluated".to_owned())?;
    Ok(format!("{text}; {told}"))
}

/// A wrapped function whose number moves: at once, and after replays.
fn function(gpu: &Gpu, eager: &mut Eager) -> Result<String, Broken> {
    let heat = AtomicU32::new(2);
    let scaled = |inputs: &[Tensor]| Ok(vec![(&inputs[0] * f64::from(heat.load(Ordering::Relaxed)))?]);
    let config = GraphFunctionConfig { warmup_calls: NonZeroU32::MIN, ..GraphFunctionConfig::default() };
    let mut reads = HostReads::default();
    let mut told = Vec::new();
    // Tests are made before replays 0, 1, 3 and 7.
    for (num_replays, num_stale) in [(0, None), (1, None), (2, Some(1)), (3, Some(1)), (5, Some(3))] {
        heat.store(2, Ordering::Relaxed);
        let mut wrapped = GraphFunction::new(scaled, config.clone(), &GraphManager::global());
        let input = Tensor::ones(8, candle_core::DType::F32, &gpu.device)?;
        for _ in 0..=num_replays {
            drop(wrapped.call(eager, &[&input])?);
        }
        heat.store(3, Ordering::Relaxed);
        let error = loop {
            match wrapped.call(eager, &[&input]) {
                Err(error) => break Some(error.to_string()),
                Ok(_) if wrapped.last_refusal(&[&input]).is_some() => break None,
                Ok(_) => {}
            }
        };
        let refusal = wrapped.last_refusal(&[&input]).map(Refusal::name);
        promise(refusal == Some("frozen_value"), || format!("refused as {refusal:?}"))?;
        let said = |error: &String| num_stale.is_some_and(|n: u32| error.starts_with(&format!("{n} replays")));
        promise(error.is_some() == num_stale.is_some() && error.iter().all(said), || {
            format!("after {num_replays} replays: {error:?}")
        })?;
        let result = wrapped.call(eager, &[&input])?.remove(0);
        let values = read_vec(&result, "check", &mut reads)?;
        promise(values.iter().all(|value| value.to_bits() == 3.0_f32.to_bits()), || format!("{values:?}"))?;
        told.push(error.map_or_else(|| "in time".to_owned(), |_| "an error of the call".to_owned()));
    }
    Ok(format!("a number that moves after 0, 1, 2, 3 and 5 replays is found: {}", told.join(", ")))
}
