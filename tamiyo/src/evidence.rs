//! What was measured about each seed since it entered its stage, and how much of it may be believed.
//!
//! A seed's counterfactual is measured on the same held-out samples every epoch. Its sampling error is therefore
//! shared by all epochs and does not shrink when they are averaged: an [`Estimate`] has the mean gain **and the mean
//! standard error** of its measurements, never the standard error over √n. Averaging only takes out how the network
//! moved in between.

use std::collections::BTreeMap;
use std::fmt;

use leyline::id::{BlueprintId, EpochIndex, SeedId, SlotId};
use leyline::seed::{Counterfactual, SeedStage, SeedState};
use serde::{Deserialize, Serialize};

use crate::policy::heuristic::EvidenceConfig;

/// Gain of a seed with its uncertainty.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// Mean of the loss gains, nats per sample; positive when the seed helps.
    pub mean_gain: f64,
    /// Mean of the standard errors, nats.
    pub std_error: f64,
    /// Measurements averaged (count).
    pub num_measurements: usize,
}

impl Estimate {
    /// `z` standard errors below the mean, nats.
    #[must_use]
    pub fn lower(&self, z: f64) -> f64 {
        self.mean_gain - z * self.std_error
    }

    /// `z` standard errors above the mean, nats.
    #[must_use]
    pub fn upper(&self, z: f64) -> f64 {
        self.mean_gain + z * self.std_error
    }
}

impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "gain {:+.6}, std_error {:.6}, n {}", self.mean_gain, self.std_error, self.num_measurements)
    }
}

/// A seed whose life ended, by permanence or removal.
#[derive(Debug, Clone, PartialEq)]
pub struct EndedSeed {
    /// Where it was.
    pub slot: SlotId,
    /// What it was.
    pub blueprint: BlueprintId,
    /// Whether it became permanent.
    pub fossilized: bool,
    /// Its latest mean gain, nats per sample; absent when nothing was ever measured.
    pub contribution: Option<f64>,
}

/// Measurements of all live seeds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EvidenceLog {
    /// Of the latest state.
    epoch: EpochIndex,
    seeds: BTreeMap<SeedId, SeedLog>,
}

/// A measurement and its epoch.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Measured {
    epoch: EpochIndex,
    value: Counterfactual,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SeedLog {
    slot: SlotId,
    blueprint: BlueprintId,
    stage: SeedStage,
    epochs_in_stage: u64,
    /// Of this stage, oldest first.
    measurements: Vec<Measured>,
    /// Epoch of the latest measurement that was shown, to tell a new one from one that is shown again.
    last_seen: Option<EpochIndex>,
    contribution: Option<f64>,
}

impl EvidenceLog {
    /// Takes in the seeds of a state after `epoch`, keeps at most `keep` measurements of each and none that is older than
    /// so many epochs, and returns the seeds that were live before and are no longer, in order of id.
    ///
    /// A measurement of an epoch that was shown before is that one, shown again, and does not count twice. One of no known
    /// epoch, that is not finite, has a negative standard error or fewer than two samples is no measurement. A pause ends the
    /// evidence of a seed: the network goes on without it, and what it was worth before says nothing about its return.
    pub fn observe(
        &mut self,
        config: &EvidenceConfig,
        keep: usize,
        epoch: EpochIndex,
        seeds: &[SeedState],
    ) -> Vec<EndedSeed> {
        self.epoch = epoch;
        let mut before = std::mem::take(&mut self.seeds);
        for seed in seeds.iter().filter(|seed| seed.stage.is_live()) {
            let mut log = before.remove(&seed.seed_id).unwrap_or_else(|| SeedLog::new(seed));
            log.observe(config, keep, epoch, seed);
            self.seeds.insert(seed.seed_id, log);
        }
        let fossilized =
            |id: SeedId| seeds.iter().any(|seed| seed.seed_id == id && seed.stage == SeedStage::Fossilized);
        before
            .into_iter()
            .map(|(id, log)| EndedSeed {
                slot: log.slot,
                blueprint: log.blueprint,
                fossilized: fossilized(id),
                contribution: log.contribution,
            })
            .collect()
    }

    /// The latest measurements of the present stage, averaged; absent when there is none within the window.
    #[must_use]
    pub fn estimate(&self, config: &EvidenceConfig, seed: SeedId) -> Option<Estimate> {
        self.seeds.get(&seed).and_then(|log| log.estimate(config.window, self.epoch))
    }

    /// How many of the latest measurements in a row, of the present stage, have an upper bound below 0.
    #[must_use]
    pub fn harmful_streak(&self, config: &EvidenceConfig, seed: SeedId) -> usize {
        let harmful = |measured: &&Measured| estimate(std::slice::from_ref(*measured)).upper(config.confidence_z) < 0.0;
        self.seeds.get(&seed).map_or(0, |log| log.measurements.iter().rev().take_while(harmful).count())
    }
}

impl SeedLog {
    fn new(seed: &SeedState) -> Self {
        Self {
            slot: seed.slot.clone(),
            blueprint: seed.blueprint.clone(),
            stage: seed.stage,
            epochs_in_stage: seed.epochs_in_stage,
            measurements: Vec::new(),
            last_seen: None,
            contribution: None,
        }
    }

    fn observe(&mut self, config: &EvidenceConfig, keep: usize, now: EpochIndex, seed: &SeedState) {
        // Fewer epochs than before: the stage was left and entered again between two decisions.
        if seed.stage != self.stage || seed.epochs_in_stage < self.epochs_in_stage {
            self.stage = seed.stage;
            self.measurements.clear();
        }
        self.epochs_in_stage = seed.epochs_in_stage;
        let shown = seed.counterfactual_epoch.filter(|epoch| *epoch <= now && Some(*epoch) > self.last_seen);
        // What is shown during a pause is of before it, and may be shown again after it.
        self.last_seen = shown.or(self.last_seen);
        if seed.paused {
            self.measurements.clear();
            return;
        }
        self.measurements.retain(|measured| is_within(keep, measured.epoch, now));
        let Some((epoch, value)) = shown.zip(seed.counterfactual.filter(is_usable)) else { return };
        self.measurements.push(Measured { epoch, value });
        let surplus = self.measurements.len().saturating_sub(keep);
        self.measurements.drain(..surplus);
        self.contribution = self.estimate(config.window, epoch).map(|estimate| estimate.mean_gain);
    }

    fn estimate(&self, window: usize, now: EpochIndex) -> Option<Estimate> {
        let start = self.measurements.iter().position(|measured| is_within(window, measured.epoch, now))?;
        Some(estimate(&self.measurements[start..]))
    }
}

/// Whether an epoch is one of the latest `window`.
pub(crate) fn is_within(window: usize, epoch: EpochIndex, now: EpochIndex) -> bool {
    now.0.checked_sub(epoch.0).is_some_and(|age| age < window as u64)
}

/// `measurements` is not empty.
fn estimate(measurements: &[Measured]) -> Estimate {
    let count = measurements.len() as f64;
    let sum = |of: fn(&Counterfactual) -> f64| measurements.iter().map(|measured| of(&measured.value)).sum::<f64>();
    Estimate {
        mean_gain: sum(|value| value.loss_gain) / count,
        std_error: sum(|value| value.std_error) / count,
        num_measurements: measurements.len(),
    }
}

fn is_usable(measured: &Counterfactual) -> bool {
    let numbers = [measured.loss_gain, measured.std_error, measured.accuracy_gain_pp.unwrap_or(0.0)];
    numbers.iter().all(|number| number.is_finite()) && measured.std_error >= 0.0 && measured.num_samples >= 2
}

#[cfg(test)]
mod tests {

    use super::*;

    const CONFIG: EvidenceConfig = EvidenceConfig { window: 3, confidence_z: 2.0 };

    fn seed(stage: SeedStage, epochs_in_stage: u64, measured: Option<(f64, f64)>) -> SeedState {
        SeedState {
            stage,
            age_epochs: epochs_in_stage,
            epochs_in_stage,
            counterfactual: measured.map(|(loss_gain, std_error)| Counterfactual {
                loss_gain,
                std_error,
                accuracy_gain_pp: Some(0.0),
                num_samples: 100,
            }),
            counterfactual_epoch: Some(EpochIndex(epochs_in_stage)),
            ..SeedState::germinated(SeedId(1), SlotId::new("a").unwrap(), BlueprintId::new("mlp").unwrap(), 10)
        }
    }

    /// After the latest epoch in which a seed was measured, or after the one before.
    fn observe(log: &mut EvidenceLog, seeds: &[SeedState]) -> Vec<EndedSeed> {
        let now = seeds.iter().filter_map(|seed| seed.counterfactual_epoch).chain([log.epoch]).max().unwrap();
        log.observe(&CONFIG, 8, now, seeds)
    }

    /// The same measurement of another epoch.
    fn of_epoch(epoch: u64, seed: SeedState) -> SeedState {
        SeedState { counterfactual_epoch: Some(EpochIndex(epoch)), ..seed }
    }

    /// Feeds one measurement per epoch of one stage.
    #[track_caller]
    fn check(measured: &[(f64, f64)], expected: Option<(f64, f64, usize)>, streak: usize) {
        let mut log = EvidenceLog::default();
        for (&values, epoch) in measured.iter().zip(1..) {
            observe(&mut log, &[seed(SeedStage::Training, epoch, Some(values))]);
        }
        let found = log.estimate(&CONFIG, SeedId(1)).map(|e| (e.mean_gain, e.std_error, e.num_measurements));
        assert_eq!(found, expected);
        assert_eq!(log.harmful_streak(&CONFIG, SeedId(1)), streak);
    }

    #[test]
    fn the_error_of_a_mean_over_epochs_is_the_mean_error() {
        check(&[], None, 0);
        check(&[(0.5, 0.25)], Some((0.5, 0.25, 1)), 0);
        check(&[(0.5, 0.25), (0.25, 0.25), (0.75, 0.25)], Some((0.5, 0.25, 3)), 0);
    }

    #[test]
    fn only_the_latest_measurements_count() {
        check(&[(9.0, 9.0), (1.0, 0.5), (2.0, 0.5), (3.0, 0.5)], Some((2.0, 0.5, 3)), 0);
    }

    #[test]
    fn an_epoch_is_measured_once_and_equal_measurements_of_several_are_several() {
        check(&[(-1.0, 0.125), (-1.0, 0.125), (-1.0, 0.125)], Some((-1.0, 0.125, 3)), 3);
        let mut log = EvidenceLog::default();
        for (shown, gain) in [(1, -1.0), (1, -1.0), (1, -2.0), (0, -2.0)] {
            let state = of_epoch(shown, seed(SeedStage::Training, 1, Some((gain, 0.125))));
            log.observe(&CONFIG, 8, EpochIndex(1), &[state]);
        }
        let estimate = log.estimate(&CONFIG, SeedId(1)).unwrap();
        assert_eq!((estimate.mean_gain, estimate.num_measurements), (-1.0, 1));
    }

    #[test]
    fn a_measurement_counts_for_as_many_epochs_as_the_window_has() {
        let mut log = EvidenceLog::default();
        let measured = seed(SeedStage::Training, 1, Some((-1.0, 0.125)));
        for (now, is_known, streak) in [(1, true, 1), (3, true, 1), (4, false, 1), (8, false, 1), (9, false, 0)] {
            log.observe(&CONFIG, 8, EpochIndex(now), std::slice::from_ref(&measured));
            assert_eq!(log.estimate(&CONFIG, SeedId(1)).is_some(), is_known, "after epoch {now}");
            assert_eq!(log.harmful_streak(&CONFIG, SeedId(1)), streak, "after epoch {now}");
        }
    }

    #[test]
    fn a_measurement_of_no_known_epoch_is_none() {
        for epoch in [None, Some(EpochIndex(9))] {
            let mut log = EvidenceLog::default();
            let state = SeedState { counterfactual_epoch: epoch, ..seed(SeedStage::Training, 1, Some((1.0, 0.1))) };
            log.observe(&CONFIG, 8, EpochIndex(8), &[state]);
            assert_eq!(log.estimate(&CONFIG, SeedId(1)), None);
        }
    }

    #[test]
    fn what_is_no_number_is_no_measurement() {
        check(&[(f64::NAN, 0.1), (1.0, f64::INFINITY), (1.0, -0.1)], None, 0);
        let mut few = seed(SeedStage::Training, 1, Some((1.0, 0.1)));
        few.counterfactual.as_mut().unwrap().num_samples = 1;
        let mut log = EvidenceLog::default();
        observe(&mut log, &[few]);
        assert_eq!(log.estimate(&CONFIG, SeedId(1)), None);
    }

    #[test]
    fn a_harmful_streak_ends_with_the_first_doubt() {
        check(&[(-1.0, 0.125), (-2.0, 0.125)], Some((-1.5, 0.125, 2)), 2);
        check(&[(-1.0, 0.125), (-0.25, 0.25), (-1.75, 0.375)], Some((-1.0, 0.25, 3)), 1);
        check(&[(-1.0, 0.5)], Some((-1.0, 0.5, 1)), 0);
    }

    #[test]
    fn evidence_of_an_earlier_stage_is_forgotten() {
        let mut log = EvidenceLog::default();
        observe(&mut log, &[seed(SeedStage::Training, 3, Some((1.0, 0.1)))]);
        observe(&mut log, &[of_epoch(3, seed(SeedStage::Blending, 1, Some((1.0, 0.1))))]);
        assert_eq!(log.estimate(&CONFIG, SeedId(1)), None);
        observe(&mut log, &[of_epoch(4, seed(SeedStage::Blending, 2, Some((1.0, 0.1))))]);
        assert_eq!(log.estimate(&CONFIG, SeedId(1)).unwrap().num_measurements, 1);
        observe(&mut log, &[seed(SeedStage::Blending, 1, None)]);
        assert_eq!(log.estimate(&CONFIG, SeedId(1)), None, "the stage was entered again");
    }

    #[test]
    fn a_pause_ends_the_evidence_of_a_seed() {
        let mut log = EvidenceLog::default();
        let holding = |epoch, gain| seed(SeedStage::Holding, epoch, Some((gain, 0.125)));
        let paused = |state: SeedState| SeedState { paused: true, ..state };
        for (epoch, gain) in [(1, -1.0), (2, -2.0)] {
            observe(&mut log, &[holding(epoch, gain)]);
        }
        assert_eq!(log.harmful_streak(&CONFIG, SeedId(1)), 2);
        for (epoch, gain) in [(2, -2.0), (3, -3.0)] {
            observe(&mut log, &[paused(holding(epoch, gain))]);
            assert_eq!(log.estimate(&CONFIG, SeedId(1)), None, "a paused seed has no evidence");
            assert_eq!(log.harmful_streak(&CONFIG, SeedId(1)), 0);
        }
        observe(&mut log, &[paused(seed(SeedStage::Holding, 3, None))]);
        observe(&mut log, &[of_epoch(3, holding(4, -3.0))]);
        assert_eq!(log.estimate(&CONFIG, SeedId(1)), None, "the measurement of before the pause, shown again");
        observe(&mut log, &[holding(5, 0.5)]);
        let estimate = log.estimate(&CONFIG, SeedId(1)).unwrap();
        assert_eq!((estimate.mean_gain, estimate.num_measurements), (0.5, 1));
    }

    #[test]
    fn a_seed_that_ends_in_a_pause_has_the_contribution_of_before() {
        let mut log = EvidenceLog::default();
        observe(&mut log, &[seed(SeedStage::Holding, 1, Some((0.5, 0.1)))]);
        observe(&mut log, &[SeedState { paused: true, ..seed(SeedStage::Holding, 2, Some((9.0, 0.1))) }]);
        let ended = observe(&mut log, &[]);
        assert_eq!((ended.len(), ended[0].contribution), (1, Some(0.5)));
    }

    #[test]
    fn a_seed_that_ends_is_reported_once_with_its_contribution() {
        for (last, fossilized) in [
            (vec![seed(SeedStage::Pruned, 0, None)], false),
            (vec![], false),
            (vec![seed(SeedStage::Fossilized, 0, Some((9.0, 0.1)))], true),
        ] {
            let mut log = EvidenceLog::default();
            observe(&mut log, &[seed(SeedStage::Holding, 1, Some((0.5, 0.1)))]);
            let ended = observe(&mut log, &last);
            assert_eq!(ended.len(), 1);
            assert_eq!((ended[0].fossilized, ended[0].contribution), (fossilized, Some(0.5)));
            assert!(observe(&mut log, &last).is_empty());
        }
    }
}
