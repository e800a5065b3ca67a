//! When a run ends before its last epoch, and which of its evaluations was the best.

use std::num::NonZeroU64;

use leyline::id::{EpochIndex, StepIndex};
use leyline::state::Score;
use leyline::task::{Direction, Measure};
use serde::{Deserialize, Serialize};

use crate::measure::ACCURACY;

/// What [`EarlyStopConfig::measure`] says for the loss.
const LOSS: &str = "loss";

/// Ends a run at the end of an epoch, when held-out data have not been predicted better for some epochs. As TOML:
/// `early_stop = { patience = 5 }`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EarlyStopConfig {
    /// Epochs without an improvement, one after another, that end the run.
    pub patience: NonZeroU64,
    /// An improvement is larger than this, in the unit of what is watched; at least 0.
    #[serde(default)]
    pub min_delta: f64,
    /// What is watched on the validation data: `loss`, which improves by falling, or the name of a measure, which improves in
    /// its own direction.
    #[serde(default = "loss")]
    pub measure: String,
}

fn loss() -> String {
    LOSS.to_owned()
}

impl EarlyStopConfig {
    /// Watches the loss.
    #[must_use]
    pub fn new(patience: NonZeroU64) -> Self {
        Self { patience, min_delta: 0.0, measure: loss() }
    }

    /// Every setting that cannot work beside these measures of held-out data, as (key, what is accepted).
    pub(super) fn validate(&self, measured: &[&str]) -> Vec<(String, String)> {
        let mut issues = Vec::new();
        if !self.min_delta.is_finite() || self.min_delta < 0.0 {
            issues.push(("early_stop.min_delta".to_owned(), "a finite number, at least 0".to_owned()));
        }
        if self.measure != LOSS && !measured.contains(&&*self.measure) {
            let accepted = [&[LOSS], measured].concat().join(", ");
            issues.push(("early_stop.measure".to_owned(), format!("one of what is measured: {accepted}")));
        }
        issues
    }

    fn value(&self, score: &Score) -> Option<f64> {
        if self.measure == LOSS { Some(score.loss) } else { score.measures.get(&self.measure).copied() }
    }

    /// Which way what is watched improves.
    pub(super) fn direction(&self, measures: &[Measure]) -> Direction {
        let is_watched = |measure: &&Measure| measure.about().name == self.measure;
        match measures.iter().find(is_watched) {
            Some(measure) => measure.about().direction,
            None if self.measure == LOSS => Direction::LowerIsBetter,
            None => ACCURACY.direction,
        }
    }

    fn is_improved(&self, value: f64, best: f64, direction: Direction) -> bool {
        let gain = match direction {
            Direction::HigherIsBetter => value - best,
            Direction::LowerIsBetter => best - value,
        };
        gain > self.min_delta
    }
}

/// The evaluation with the lowest loss on validation data; of equal ones the first.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Best {
    /// The epoch that it ended, or in the middle of which it was, from 1.
    pub epoch: EpochIndex,
    /// Optimizer steps taken.
    pub step: StepIndex,
    /// Mean loss on the validation data, in the unit of the task, per sample.
    pub loss: f64,
}

/// Held-out data in the middle of an epoch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepEvaluation {
    /// Optimizer steps taken.
    pub step: StepIndex,
    /// Mean training loss of the epoch so far, in the unit of the task, per sample; absent where no step of it counted.
    pub train_loss: Option<f64>,
    /// Held-out data that decisions may use.
    pub validation: Score,
}

/// What a run remembers of its evaluations; part of its checkpoints.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Track {
    pub(super) best: Option<Best>,
    watched: Option<Watched>,
    /// In the epoch that is under way.
    pub(super) evaluations: Vec<StepEvaluation>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Watched {
    measure: String,
    /// The value that is to be improved, and the epoch that had it; absent before it was measured.
    best: Option<(f64, EpochIndex)>,
    /// Epochs since.
    waited: u64,
}

impl Track {
    /// Whether no evaluation before had as low a loss.
    pub(super) fn is_best(&self, loss: f64) -> bool {
        self.best.is_none_or(|best| loss < best.loss)
    }

    /// Takes note of the end of an epoch. One in which the value could not be measured has not improved it.
    pub(super) fn watch(&mut self, config: &EarlyStopConfig, direction: Direction, epoch: EpochIndex, score: &Score) {
        let fresh = || Watched { measure: config.measure.clone(), best: None, waited: 0 };
        // Values of another measure say nothing about this one.
        let mut watched = self.watched.take().filter(|watched| watched.measure == config.measure).unwrap_or_else(fresh);
        let is_better = |value: &f64| watched.best.is_none_or(|(best, _)| config.is_improved(*value, best, direction));
        match config.value(score).filter(is_better) {
            Some(value) => (watched.best, watched.waited) = (Some((value, epoch)), 0),
            None => watched.waited += 1,
        }
        self.watched = Some(watched);
    }

    /// Why the run ends, when it does.
    pub(super) fn stopped(&self, config: &EarlyStopConfig) -> Option<String> {
        let EarlyStopConfig { patience, min_delta, measure } = config;
        let watched = self.watched.as_ref().filter(|watched| watched.measure == *measure)?;
        if watched.waited < patience.get() {
            return None;
        }
        let above = if *min_delta > 0.0 { format!(" by more than {min_delta}") } else { String::new() };
        let of = match watched.best {
            Some((value, epoch)) => format!("over the {value:.6} of epoch {epoch}"),
            None => "and was never measured".to_owned(),
        };
        Some(format!("stopped early: validation {measure} did not improve{above} in {} epochs {of}", watched.waited))
    }
}

#[cfg(test)]
mod tests {
    use leyline::state::ACCURACY;

    use super::*;
    use crate::measure::{mean_abs_error, r2};

    fn config(patience: u64, min_delta: f64, measure: &str) -> EarlyStopConfig {
        EarlyStopConfig { patience: NonZeroU64::new(patience).unwrap(), min_delta, measure: measure.to_owned() }
    }

    /// The epoch, from 1, at whose end the run stops.
    #[track_caller]
    fn check(config: &EarlyStopConfig, values: &[f64], expected: Option<usize>) {
        let mut track = Track::default();
        let mut stopped = None;
        for (index, value) in values.iter().enumerate() {
            let is_loss = config.measure == LOSS;
            let score = Score::new(if is_loss { *value } else { 1.0 }, 8);
            let score = if is_loss || value.is_nan() { score } else { score.with(&config.measure, *value) };
            track.watch(config, config.direction(&[]), EpochIndex(index as u64 + 1), &score);
            // A checkpoint in between changes nothing.
            track = serde_json::from_str(&serde_json::to_string(&track).unwrap()).unwrap();
            if stopped.is_none() && track.stopped(config).is_some() {
                stopped = Some(index + 1);
            }
        }
        assert_eq!(stopped, expected, "{config:?} {values:?}");
    }

    #[test]
    fn a_run_stops_after_as_many_epochs_without_an_improvement() {
        check(&config(2, 0.0, LOSS), &[1.0, 0.9, 0.9, 0.8, 0.8, 0.8], Some(6));
        check(&config(1, 0.0, LOSS), &[1.0, 0.9, 0.8], None);
        check(&config(1, 0.0, LOSS), &[1.0, 1.0], Some(2));
        check(&config(2, 0.15, LOSS), &[1.0, 0.9, 0.8, 0.7], None);
        check(&config(2, 0.25, LOSS), &[1.0, 0.9, 0.8, 0.7], Some(3));
        check(&config(2, 0.0, ACCURACY), &[0.5, 0.6, 0.6, 0.7, 0.1, 0.2], Some(6));
        check(&config(2, 0.0, ACCURACY), &[f64::NAN, f64::NAN], Some(2));
        check(&config(2, 0.0, ACCURACY), &[f64::NAN, 0.5, f64::NAN, 0.6], None);
    }

    #[test]
    fn a_measure_improves_in_its_own_direction() {
        for (measure, expected) in
            [(mean_abs_error(vec![1.0]), Direction::LowerIsBetter), (r2(), Direction::HigherIsBetter)]
        {
            let config = config(2, 0.0, measure.about().name);
            assert_eq!(config.direction(&[r2(), mean_abs_error(vec![1.0])]), expected);
            let mut track = Track::default();
            for (epoch, value) in [(1, 0.5), (2, 0.4), (3, 0.3)] {
                let score = Score::new(1.0, 8).with(measure.about().name, value);
                track.watch(&config, expected, EpochIndex(epoch), &score);
            }
            assert_eq!(track.stopped(&config).is_none(), expected == Direction::LowerIsBetter);
        }
    }

    #[test]
    fn the_reason_names_what_was_watched_and_its_best_epoch() {
        let mut track = Track::default();
        let config = config(1, 0.01, LOSS);
        for (epoch, loss) in [(1, 0.5), (2, 0.495)] {
            track.watch(&config, config.direction(&[]), EpochIndex(epoch), &Score::new(loss, 4));
        }
        let expected =
            "stopped early: validation loss did not improve by more than 0.01 in 1 epochs over the 0.500000 of epoch 1";
        assert_eq!(track.stopped(&config).unwrap(), expected);
        let other = EarlyStopConfig { measure: ACCURACY.to_owned(), ..config };
        assert_eq!(track.stopped(&other), None, "another measure has not been watched yet");
    }

    #[test]
    fn settings_that_cannot_work_are_told_with_what_is_accepted() {
        let keys = |config: EarlyStopConfig| {
            let issues = config.validate(&[ACCURACY]);
            issues.into_iter().map(|(key, accepted)| format!("{key}: {accepted}")).collect::<Vec<_>>()
        };
        assert!(keys(config(1, 0.0, LOSS)).is_empty() && keys(config(1, 0.5, ACCURACY)).is_empty());
        for min_delta in [-0.1, f64::NAN, f64::INFINITY] {
            assert_eq!(keys(config(1, min_delta, LOSS)), ["early_stop.min_delta: a finite number, at least 0"]);
        }
        let expected = ["early_stop.measure: one of what is measured: loss, accuracy"];
        assert_eq!(keys(config(1, 0.0, "acuracy")), expected);
    }
}
