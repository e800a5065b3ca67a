//! What a policy that sleeps, panics or floods costs the steps of training: each beside a policy that answers, round by round.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use candle_core::{Device, Tensor};
use leyline::clock::Clock;
use leyline::command::{Operation, Order};
use leyline::durable::{Durable, SavedState};
use leyline::error::{BoxError, ErrorType};
use leyline::id::SeedId;
use leyline::policy::{Decision, Policy};
use leyline::region::{Eager, RegionError};
use leyline::state::SystemState;
use tolaria::batch::Dataset;
use tolaria::plain::NoSeeds;
use tolaria::task::Classification;
use tolaria::trainer::report::EpochReport;
use tolaria::trainer::{Flow, Observer, Parts, SafetyConfig, StepReport, TrainConfig, Trainer};

use crate::error::Error;
use crate::samples::{Samples, us};
use crate::trainer::{all_of, count, linear, plain_sgd};
use crate::work::{Needs, Outcome, Setting, Work, settings};

pub(super) const WORK: Work = Work::new(
    "late-policy",
    "Steps beside a policy that sleeps, panics or floods, over steps beside one that answers",
    Needs::Nothing,
    run,
);

const ROUNDS: usize = 15;
const EPOCHS: u64 = 6;
const LEN: usize = 16_384;
const FEATURES: usize = 16;
const BATCH: usize = 256;
/// Of the policy that sleeps; the others are never late.
const DEADLINE_MS: u64 = 5;
const NOTES: &str = "linear 16-4, 16 384 samples, batch 256, SGD, on the CPU; the policy is on a thread of its own, and the one that sleeps has 5 ms. ACT.p50, ACT.p99: time of an optimizer \
    step within an epoch, from one step to the next, the first of an epoch left out; ACT.p99_over_answers: over that beside the policy that answers, measured just before. \
    answers.p99_over_answers: by chance. n counts rounds";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    Answer,
    Sleep,
    Panic,
    Flood,
}

const ACTS: [(&str, Act); 4] =
    [("answers", Act::Answer), ("sleeps", Act::Sleep), ("panics", Act::Panic), ("floods", Act::Flood)];

#[derive(Debug)]
struct Odd {
    act: Act,
    /// Never opened while it is measured.
    gate: Receiver<()>,
}

impl ErrorType for Odd {
    type Error = RegionError;
}

impl Durable for Odd {
    fn save(&self, eager: &Eager) -> Result<SavedState, RegionError> {
        eager.check().map(|()| SavedState::default())
    }

    fn restore(&mut self, eager: &mut Eager, _saved: &SavedState) -> Result<(), RegionError> {
        eager.check()
    }
}

impl Policy for Odd {
    fn name(&self) -> &'static str {
        "odd"
    }

    fn decide(&mut self, _state: &SystemState) -> Result<Decision, RegionError> {
        match self.act {
            Act::Answer => Ok(Decision::default()),
            Act::Sleep => {
                self.gate.recv().ok();
                Ok(Decision::default())
            }
            // As a panic, without the lines that one writes.
            Act::Panic => std::panic::resume_unwind(Box::new("as it is told")),
            Act::Flood => {
                let order = Order::new(Operation::Cull { seed: SeedId(1) }, "flood");
                Ok(Decision { orders: vec![order; 100_000], waiting: Vec::new() })
            }
        }
    }
}

/// Times between steps of one epoch.
struct Timer<'a> {
    clock: &'a dyn Clock,
    last: Option<Duration>,
    took: Vec<f64>,
}

impl Observer for Timer<'_> {
    fn step(&mut self, report: &StepReport<'_>) -> Flow {
        let now = self.clock.now();
        if let Some(last) = self.last.filter(|_| report.step_of_epoch > 1) {
            self.took.push(us(now - last));
        }
        self.last = Some(now);
        Flow::Continue
    }

    fn epoch_finished(&mut self, _report: &EpochReport) -> Result<(), BoxError> {
        Ok(())
    }
}

fn run(setting: &Setting) -> Result<Outcome, Error> {
    let clock = setting.clock.as_ref();
    let mut samples = Samples::default();
    for _ in 0..ROUNDS {
        for (name, act) in ACTS {
            let [_, beside] = steps(Act::Answer, clock)?;
            let [p50, p99] = steps(act, clock)?;
            samples.push(format!("{name}.p50"), "us", p50);
            samples.push(format!("{name}.p99"), "us", p99);
            samples.push(format!("{name}.p99_over_answers"), "ratio", p99 / beside);
        }
    }
    let config = settings([("rounds", ROUNDS.to_string()), ("epochs", EPOCHS.to_string())]);
    Ok(samples.into_result(WORK.name, WORK.name, NOTES, config, clock).into())
}

/// Median and 99th percentile of the steps of a run, microseconds.
fn steps(act: Act, clock: &dyn Clock) -> Result<[f64; 2], Error> {
    let inputs: Vec<f32> = (0..LEN * FEATURES).map(|i| ((i * 7 + 3) % 11) as f32 / 11.0 - 0.5).collect();
    let inputs = Tensor::from_vec(inputs, (LEN, FEATURES), &Device::Cpu)?;
    let data =
        Dataset::new(inputs, Tensor::from_vec((0..4).cycle().take(LEN).collect::<Vec<u32>>(), LEN, &Device::Cpu)?)?;
    let (open, gate): (Sender<()>, Receiver<()>) = channel();
    let seeds = NoSeeds::new(linear()?);
    let parts = Parts::new(Arc::new(Classification::new(4)), seeds, Odd { act, gate }, all_of(data));
    let deadline_ms = if act == Act::Sleep { DEADLINE_MS } else { 60_000 };
    let safety = SafetyConfig { policy_ms: NonZeroU64::new(deadline_ms), ..SafetyConfig::default() };
    let config = TrainConfig { safety, eval_batch_size: count(LEN), ..plain_sgd(BATCH) };
    let mut trainer = Trainer::new(config, Parts { num_epochs: EPOCHS, ..parts })?;
    let mut timer = Timer { clock, last: None, took: Vec::new() };
    trainer.run(&mut Eager::acquire()?, &mut timer)?;
    drop(open);
    let mut took = timer.took;
    took.sort_by(f64::total_cmp);
    let at = |part: usize| took.get(took.len() * part / 100).copied().unwrap_or(f64::NAN);
    Ok([at(50), at(99)])
}
