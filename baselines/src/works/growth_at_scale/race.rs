//! Runs of one network, with the time that each evaluation came at.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use candle_core::Device;
use leyline::clock::Clock;
use leyline::error::BoxError;
use leyline::id::StepIndex;
use leyline::model::TrainableModel as _;
use leyline::region::Eager;
use leyline::seed::SeedManager as _;
use tolaria::aggregate::ConflictResolution;
use tolaria::optim::{Decay, OptimizerConfig, ScheduleConfig};
use tolaria::plain::PlainModel;
use tolaria::task::NextToken;
use tolaria::trainer::report::EpochReport;
use tolaria::trainer::{ExecutionConfig, Flow, Observer, RunEvent, Splits, StepReport, TrainConfig, Trainer};

use super::grown::Growth;
use crate::error::Error;
use crate::models::{Draw, Form, Precision, Transformer, TransformerConfig, Variant};
use crate::trainer::{PlainTrainer, count, plain_parts, train_config};

const VARIANT: Variant = Variant { form: Form::Layers, precision: Precision::Bf16 };
const OPTIMIZER: OptimizerConfig = OptimizerConfig::AdamW { beta1: 0.9, beta2: 0.99, eps: 1e-8, weight_decay: 0.01 };
/// Steps over which rates rise at first.
const RISE: u64 = 100;
/// Of the parameters that are evaluated: over some hundred steps.
const EMA_DECAY: f64 = 0.99;
/// More than a run has.
pub(super) const EPOCHS: u64 = 1 << 20;
/// Random seeds of the runs from scratch; the networks that grow have the next ones.
pub(super) const MAX_SEEDS: u64 = 1000;

/// Rates that stay once they have risen.
fn schedule(rise: u64) -> ScheduleConfig {
    ScheduleConfig { learning_rate: 6e-4, warmup_steps: rise, decay: Decay::Constant }
}

/// What all runs share.
pub(super) struct Race<'a> {
    /// The whole network.
    pub(super) config: TransformerConfig,
    pub(super) batch: usize,
    /// Steps from one evaluation to the next.
    pub(super) every: u64,
    /// Steps over which rates rise anew once a network has grown.
    pub(super) rise: u64,
    pub(super) data: Splits,
    pub(super) device: &'a Device,
    pub(super) clock: &'a Arc<dyn Clock>,
}

/// An evaluation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Point {
    /// Steps so far, of both networks.
    pub(super) step: u64,
    /// Without evaluations, each with the step before it.
    pub(super) seconds: f64,
    /// Of held-out windows, nats per byte.
    pub(super) loss: f64,
    /// Whether the network has all of its blocks.
    pub(super) is_whole: bool,
}

/// The curve of a run.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) points: Vec<Point>,
    /// Steps that compiled graphs took; absent on a CPU.
    pub(super) compiled_steps: Option<u64>,
}

impl Race<'_> {
    /// Settings of training, for a result.
    pub(super) fn described(&self) -> String {
        let [first, grown] = [RISE, self.rise].map(schedule);
        format!("{OPTIMIZER:?}, clip_norm 1, {first:?}, after growth {grown:?}, ema_decay {EMA_DECAY}")
    }

    /// The whole network from its first step.
    pub(super) fn scratch(&self, eager: &mut Eager, seed: u64, steps: u64) -> Result<Run, Error> {
        let mut watch = Stopwatch::new(self);
        let model = self.model(self.config.num_blocks, seed)?;
        watch.goes_on(true, steps, None);
        let compiled_steps = self.train(eager, model, seed, RISE, &mut watch)?.1;
        Ok(Run { points: watch.points, compiled_steps })
    }

    /// Half of its blocks for `first` steps, then all of them, for `then` steps or until a loss is reached.
    pub(super) fn grown(
        &self,
        eager: &mut Eager,
        seed: u64,
        growth: Growth,
        [first, then]: [u64; 2],
        target: f64,
    ) -> Result<Run, Error> {
        let mut watch = Stopwatch::new(self);
        let half = self.config.num_blocks / 2;
        // Other weights than those from scratch: nothing but chance relates the two.
        let small = self.model(half, seed + MAX_SEEDS)?;
        let whole = |small: &PlainModel| -> Result<PlainModel, Error> {
            let whole = self.model(self.config.num_blocks, seed + 2 * MAX_SEEDS)?;
            growth.copy(small.parameters(), &whole, half)?;
            Ok(whole)
        };
        let (whole, compiled) = if first == 0 {
            (whole(&small)?, None)
        } else {
            watch.goes_on(false, first, None);
            let (trainer, compiled) = self.train(eager, small, seed + MAX_SEEDS, RISE, &mut watch)?;
            (whole(trainer.seeds().model())?, compiled)
        };
        watch.goes_on(true, then, Some(target));
        let rise = if first == 0 { RISE } else { self.rise };
        let then = self.train(eager, whole, seed + 2 * MAX_SEEDS, rise, &mut watch)?.1;
        Ok(Run { points: watch.points, compiled_steps: then.map(|then| then + compiled.unwrap_or(0)) })
    }

    fn model(&self, num_blocks: usize, seed: u64) -> Result<PlainModel, Error> {
        let config = TransformerConfig { num_blocks, ..self.config };
        Ok(Transformer::new(config, VARIANT, &mut Draw::new(seed, self.device))?.into_token_model()?)
    }

    /// Trains until the watch says stop; the steps that compiled graphs took.
    fn train(
        &self,
        eager: &mut Eager,
        model: PlainModel,
        seed: u64,
        rise: u64,
        watch: &mut Stopwatch<'_>,
    ) -> Result<(PlainTrainer, Option<u64>), Error> {
        let execution = ExecutionConfig::default();
        let config = TrainConfig {
            schedule: schedule(rise),
            clip_norm: Some(1.0),
            ema_decay: Some(EMA_DECAY),
            eval_batch_size: count(self.batch),
            eval_every_steps: NonZeroU64::new(self.every),
            ..train_config(self.batch, 1, OPTIMIZER, ConflictResolution::Mean, execution)
        };
        let task = Arc::new(NextToken::new(self.config.vocab_size));
        let parts = plain_parts(task, model, self.data.clone(), [seed, EPOCHS], self.clock);
        let mut trainer = Trainer::new(config, parts)?;
        trainer.run(eager, watch)?;
        let compiled = (!self.device.is_cpu()).then(|| trainer.graph_stats().total.compiled);
        Ok((trainer, compiled))
    }
}

/// Takes the time of evaluations, without them: it stands from before the step that leads to one until it is over.
struct Stopwatch<'a> {
    device: &'a Device,
    clock: &'a dyn Clock,
    every: u64,
    began: Duration,
    left_out: Duration,
    stopped_at: Option<Duration>,
    points: Vec<Point>,
    /// Of the network that trains.
    is_whole: bool,
    /// Steps of the networks before it.
    before: u64,
    /// Of the network that trains.
    steps: u64,
    max_steps: u64,
    target: Option<f64>,
}

impl<'a> Stopwatch<'a> {
    fn new(race: &'a Race<'_>) -> Self {
        let clock = race.clock.as_ref();
        Self {
            device: race.device,
            clock,
            every: race.every,
            began: clock.now(),
            left_out: Duration::ZERO,
            stopped_at: None,
            points: Vec::new(),
            is_whole: true,
            before: 0,
            steps: 0,
            max_steps: 0,
            target: None,
        }
    }

    /// Another network trains from here on, until so many steps or a loss. The time runs.
    fn goes_on(&mut self, is_whole: bool, max_steps: u64, target: Option<f64>) {
        self.before += std::mem::take(&mut self.steps);
        (self.is_whole, self.max_steps, self.target) = (is_whole, max_steps, target);
    }

    fn evaluated(&mut self, step: u64, loss: f64) {
        let now = self.clock.now();
        let stopped_at = self.stopped_at.take().unwrap_or(now);
        self.left_out += now.saturating_sub(stopped_at);
        let seconds = now.saturating_sub(self.began + self.left_out).as_secs_f64();
        self.points.push(Point { step: self.before + step, seconds, loss, is_whole: self.is_whole });
    }
}

impl Observer for Stopwatch<'_> {
    fn step(&mut self, report: &StepReport<'_>) -> Flow {
        let StepReport { step: StepIndex(step), step_of_epoch, steps_per_epoch, .. } = *report;
        self.steps = step;
        let is_reached = self
            .points
            .last()
            .is_some_and(|point| point.is_whole && self.target.is_some_and(|loss| point.loss <= loss));
        // After the last step of an epoch its evaluation is still to come.
        if step_of_epoch < steps_per_epoch && (is_reached || step >= self.max_steps) {
            return Flow::Stop;
        }
        if (step + 1).is_multiple_of(self.every) || step_of_epoch + 1 == steps_per_epoch {
            // Where the device fails, the next step says so.
            self.device.synchronize().ok();
            self.stopped_at = Some(self.clock.now());
        }
        Flow::Continue
    }

    fn event(&mut self, event: &RunEvent<'_>) {
        if let RunEvent::Evaluated(evaluation) = event {
            self.evaluated(evaluation.step.0, evaluation.validation.loss);
        }
    }

    fn epoch_finished(&mut self, report: &EpochReport) -> Result<(), BoxError> {
        self.evaluated(report.step.0, report.validation.loss);
        Ok(())
    }
}
