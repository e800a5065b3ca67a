//! What is known of a run while it trains: the one thing that every display shows.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use leyline::id::{EpochIndex, SeedId, StepIndex};
use leyline::seed::{SeedStage, SeedState};
use leyline::state::{ACCURACY, Score};
use tolaria::trainer::report::EpochReport;
use tolaria::trainer::{Best, RunEvent, SoFar, StepReport};

use super::lines;
use crate::report::printable;

/// Events that are remembered; more than any screen has rows.
const EVENTS: usize = 200;

/// The run so far.
#[derive(Debug, Default)]
pub(super) struct RunState {
    pub(super) num_epochs: u64,
    pub(super) last: Option<EpochReport>,
    pub(super) curves: Curves,
    /// Every seed that there was, by id.
    pub(super) seeds: BTreeMap<SeedId, Life>,
    /// The latest last.
    pub(super) events: VecDeque<String>,
    pub(super) best: Option<Best>,
    pub(super) step: Option<Step>,
    /// 0 before it is known.
    steps_per_epoch: u64,
    /// Smoothed duration of an epoch in seconds.
    epoch_s: Option<f64>,
    /// Since the run began here.
    pub(super) running: Duration,
    epoch_began: Duration,
}

/// Points (epochs, value), in order.
#[derive(Debug, Default)]
pub(super) struct Curves {
    pub(super) train_loss: Vec<(f64, f64)>,
    pub(super) validation_loss: Vec<(f64, f64)>,
    /// Name of the measure: the accuracy where there is one, otherwise the first by name.
    pub(super) measure: String,
    pub(super) train_measure: Vec<(f64, f64)>,
    pub(super) validation_measure: Vec<(f64, f64)>,
}

/// Points of a curve that are kept; more than any screen has columns.
const POINTS: usize = 4096;

impl Curves {
    /// Forgets what comes after a point in epochs.
    fn cut(&mut self, at: f64) {
        for curve in
            [&mut self.train_loss, &mut self.validation_loss, &mut self.train_measure, &mut self.validation_measure]
        {
            curve.retain(|(epochs, _)| *epochs <= at);
        }
    }

    /// Takes values at a point in epochs in.
    fn add(&mut self, at: f64, train: Option<&Score>, train_loss: Option<f64>, validation: &Score) {
        if self.measure.is_empty() {
            let first = validation.measures.keys().next().map_or("", String::as_str);
            self.measure = if validation.accuracy().is_some() { ACCURACY } else { first }.to_owned();
        }
        let value = |score: &Score| score.measures.get(&self.measure).copied();
        let measured = [train.and_then(value), value(validation)];
        let curves =
            [&mut self.train_loss, &mut self.validation_loss, &mut self.train_measure, &mut self.validation_measure];
        let values = [train_loss, Some(validation.loss), measured[0], measured[1]];
        for (curve, value) in curves.into_iter().zip(values) {
            curve.extend(value.map(|value| (at, value)));
            if curve.len() > POINTS {
                let mut index = 0;
                curve.retain(|_| {
                    index += 1;
                    index % 2 == 0
                });
            }
        }
    }
}

/// The step that was taken last.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step {
    pub(super) number: u64,
    /// Epochs completed, and the fraction of the one that is under way.
    pub(super) epochs: f64,
    pub(super) learning_rate: f64,
    /// Of the epoch that is under way; absent on a GPU.
    pub(super) so_far: Option<SoFar>,
}

/// A seed and its stages.
#[derive(Debug)]
pub(super) struct Life {
    /// As at the end of the last epoch that listed it.
    pub(super) state: SeedState,
    /// The stage at the end of an epoch, where it differs from the one before.
    pub(super) stages: Vec<(u64, SeedStage)>,
}

impl Life {
    /// The stage at the end of an epoch; absent before the seed germinated.
    pub(super) fn at(&self, epoch: u64) -> Option<SeedStage> {
        self.stages.iter().rev().find(|(since, _)| *since <= epoch).map(|(_, stage)| *stage)
    }
}

impl RunState {
    pub(super) fn new(num_epochs: u64) -> Self {
        Self { num_epochs, ..Self::default() }
    }

    /// Takes a finished epoch in, and says what happened at its end.
    pub(super) fn epoch(&mut self, report: &EpochReport) -> Vec<String> {
        self.epoch_s = Some(self.epoch_s.map_or(report.wall_s, |smoothed| 0.7 * smoothed + 0.3 * report.wall_s));
        self.epoch_began = self.running;
        let train = report.train.as_ref();
        self.curves.add(report.epoch.0 as f64, train, train.map(|train| train.loss), &report.validation);
        for seed in &report.seeds {
            let life = self.seeds.entry(seed.seed_id);
            let life = life.or_insert_with(|| Life { state: seed.clone(), stages: Vec::new() });
            if life.stages.last().is_none_or(|(_, stage)| *stage != seed.stage) {
                life.stages.push((report.epoch.0, seed.stage));
            }
            life.state = seed.clone();
        }
        let events = events(report);
        for event in &events {
            self.note(format!("epoch {}: {event}", report.epoch));
        }
        self.last = Some(report.clone());
        events
    }

    /// Takes a step in.
    pub(super) fn step(&mut self, report: &StepReport<'_>) {
        self.steps_per_epoch = report.steps_per_epoch.max(1);
        self.step = Some(Step {
            number: report.step.0,
            epochs: report.step.0 as f64 / self.steps_per_epoch as f64,
            learning_rate: report.learning_rate,
            so_far: report.so_far(),
        });
    }

    /// Epochs completed, and the fraction of the one that is under way.
    pub(super) fn epochs(&self) -> f64 {
        let completed = self.last.as_ref().map_or(0.0, |last| last.epoch.0 as f64);
        self.step.map_or(completed, |step| completed.max(step.epochs))
    }

    /// Takes what happened between the ends of epochs in; what of it is a line of its own.
    pub(super) fn event(&mut self, event: &RunEvent<'_>) -> Option<String> {
        match event {
            RunEvent::Evaluated(evaluation) => {
                let (step, validation) = (evaluation.step, &evaluation.validation);
                if self.steps_per_epoch > 0 {
                    let at = step.0 as f64 / self.steps_per_epoch as f64;
                    self.curves.add(at, None, evaluation.train_loss, validation);
                }
                let held_out = lines::validation(validation);
                let loss = evaluation.train_loss.map(|loss| format!("loss {loss:.4}  ")).unwrap_or_default();
                let line = format!("step {step}  {loss}{held_out}");
                self.note(line.clone());
                return Some(line);
            }
            RunEvent::Best(best) => self.best = Some(*best),
            RunEvent::CheckpointWritten { step, is_best, took_ms } => {
                let of = if *is_best { " of the best evaluation" } else { "" };
                self.note(format!("checkpoint{of} at step {step}, {took_ms:.1} ms"));
            }
            RunEvent::CheckpointFailed { error } => self.note(format!("checkpoint not written: {error}")),
            RunEvent::RolledBack { from, to, epoch, culprit, rate_factor } => {
                self.go_back(*to, *epoch);
                let line = format!(
                    "step {from}: {culprit} made steps unusable; back to step {to}, learning rate times {rate_factor}"
                );
                self.note(&line);
                return Some(line);
            }
            RunEvent::Emergency { level, reason } => {
                let line = format!("emergency level {} ({level}): {reason}", level.number());
                self.note(&line);
                return Some(line);
            }
            RunEvent::Ended { .. } => {}
        }
        None
    }

    /// Forgets what came after a state that the run went back to.
    fn go_back(&mut self, to: StepIndex, epoch: EpochIndex) {
        let per_epoch = (self.steps_per_epoch > 0).then_some(self.steps_per_epoch as f64);
        self.curves.cut(per_epoch.map_or(epoch.0 as f64, |steps| to.0 as f64 / steps));
        self.last.take_if(|last| last.epoch > epoch);
        for life in self.seeds.values_mut() {
            life.stages.retain(|(since, _)| *since <= epoch.0);
        }
        self.seeds.retain(|_, life| !life.stages.is_empty());
    }

    /// Remembers a line. Text from outside loses its control characters.
    pub(super) fn note(&mut self, line: impl AsRef<str>) {
        self.events.push_back(printable(line.as_ref()));
        while self.events.len() > EVENTS {
            self.events.pop_front();
        }
    }

    /// Seconds to the end at the pace of the last epochs; absent before the first.
    pub(super) fn left_s(&self) -> Option<f64> {
        let epoch_s = self.epoch_s?;
        let left = self.num_epochs.saturating_sub(self.last.as_ref().map_or(0, |last| last.epoch.0));
        Some((epoch_s * left as f64 - (self.running - self.epoch_began).as_secs_f64()).max(0.0))
    }
}

/// Stage changes and refusals, a line each.
fn events(report: &EpochReport) -> Vec<String> {
    let changes = report
        .transitions
        .iter()
        .map(|change| format!("{} {} -> {}: {}", change.seed, change.from, change.to, printable(&change.reason)));
    let refusals = report.commands.iter().filter_map(|command| {
        let why = command.refused.as_deref()?;
        Some(format!("refused: {}: {}", printable(&command.operation), printable(why)))
    });
    changes.chain(refusals).collect()
}

/// A value of a measure or of the loss, in few columns.
pub(super) fn shown(name: &str, value: f64) -> String {
    if name == ACCURACY { format!("{:.1}%", value * 100.0) } else { format!("{value:.4}") }
}

/// Seconds as `mm:ss` or `h:mm:ss`.
pub(super) fn clock(seconds: f64) -> String {
    let seconds = seconds.max(0.0).round();
    let (hours, minutes, rest) = ((seconds / 3600.0).floor(), (seconds / 60.0).floor() % 60.0, seconds % 60.0);
    if hours > 0.0 { format!("{hours}:{minutes:02}:{rest:02}") } else { format!("{minutes:02}:{rest:02}") }
}
