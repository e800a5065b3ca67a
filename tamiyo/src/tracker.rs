//! Plateau and stability of the host, from the held-out loss that decisions may use.
//!
//! Only [`SystemState::validation`](leyline::state::SystemState) is read: a training loss falls while a network
//! overfits, and the test data must not steer what is tested. An epoch without a finite validation loss counts for
//! nothing: neither as a plateau nor as stable.

use leyline::id::EpochIndex;
use leyline::state::Score;
use serde::{Deserialize, Serialize};

use crate::policy::heuristic::{PlateauConfig, StabilityConfig};

/// Losses up to this are too small to divide by (nats).
const SMALLEST_DIVISOR: f64 = 1e-8;

/// What is known about the host's progress.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Signals {
    /// Validation loss of the last epoch, nats per sample; absent when it was not measured or not finite.
    pub loss: Option<f64>,
    /// The loss that the next improvement is measured against, nats per sample.
    pub best_loss: Option<f64>,
    /// Measured epochs since that loss was reached (count).
    pub epochs_since_improvement: u64,
    /// Whether these are as many as the policy is patient.
    pub on_plateau: bool,
    /// Stable epochs in a row (count).
    pub stable_epochs: u64,
    /// Whether the host has stabilized; stays true once it is.
    pub stabilized: bool,
}

/// Follows the validation loss from epoch to epoch.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tracker {
    epoch: Option<EpochIndex>,
    loss: Option<f64>,
    best_loss: Option<f64>,
    epochs_since_improvement: u64,
    stable_epochs: u64,
    latched: bool,
}

impl Tracker {
    /// Takes in the validation score after `epoch`; an epoch that was seen already changes nothing.
    ///
    /// An improvement lowers the best loss by more than `min_relative_gain` of its size. A smaller one leaves the best
    /// loss where it is, so that many small ones add up to an improvement.
    pub fn observe(
        &mut self,
        plateau: &PlateauConfig,
        stability: &StabilityConfig,
        epoch: EpochIndex,
        validation: Option<&Score>,
    ) {
        if self.epoch.is_some_and(|seen| epoch <= seen) {
            return;
        }
        self.epoch = Some(epoch);
        let loss = validation.filter(|score| score.num_samples > 0).map(|score| score.loss).filter(|l| l.is_finite());
        let previous = std::mem::replace(&mut self.loss, loss);
        let Some(loss) = loss else {
            self.stable_epochs = 0;
            return;
        };
        match self.best_loss {
            Some(best) if best - loss <= plateau.min_relative_gain * best.abs() => self.epochs_since_improvement += 1,
            _ => {
                self.best_loss = Some(loss);
                self.epochs_since_improvement = 0;
            }
        }
        if let Some(previous) = previous.filter(|previous| previous.abs() > SMALLEST_DIVISOR) {
            let fall = (previous - loss) / previous.abs();
            let stable = -stability.max_relative_rise < fall && fall < stability.max_relative_fall;
            self.stable_epochs = if stable { self.stable_epochs + 1 } else { 0 };
            self.latched |= stable && self.stable_epochs >= stability.epochs;
        }
    }

    /// What is known now.
    #[must_use]
    pub fn signals(&self, plateau: &PlateauConfig, stability: &StabilityConfig) -> Signals {
        Signals {
            loss: self.loss,
            best_loss: self.best_loss,
            epochs_since_improvement: self.epochs_since_improvement,
            on_plateau: self.epochs_since_improvement >= plateau.patience_epochs,
            stable_epochs: self.stable_epochs,
            stabilized: self.latched || stability.epochs == 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds `losses` (NaN: not measured) and returns the signals after each.
    fn follow(stability: &StabilityConfig, losses: &[f64]) -> Vec<Signals> {
        let mut tracker = Tracker::default();
        losses
            .iter()
            .zip(1..)
            .map(|(&loss, epoch)| {
                let score = (!loss.is_nan()).then(|| Score::new(loss, 10));
                let plateau = PlateauConfig { min_relative_gain: 0.01, ..PlateauConfig::default() };
                tracker.observe(&plateau, stability, EpochIndex(epoch), score.as_ref());
                tracker.signals(&plateau, stability)
            })
            .collect()
    }

    #[track_caller]
    fn check_plateau(losses: &[f64], expected: &[u64]) {
        let found: Vec<u64> =
            follow(&StabilityConfig::default(), losses).iter().map(|s| s.epochs_since_improvement).collect();
        assert_eq!(found, expected, "{losses:?}");
    }

    #[track_caller]
    fn check_stability(losses: &[f64], expected: &[bool]) {
        let found: Vec<bool> = follow(&StabilityConfig::default(), losses).iter().map(|s| s.stabilized).collect();
        assert_eq!(found, expected, "{losses:?}");
    }

    #[test]
    fn epochs_without_a_relative_gain_add_up() {
        check_plateau(&[1.0, 0.9, 0.8, 0.7], &[0, 0, 0, 0]);
        check_plateau(&[1.0, 0.995, 1.2, 1.0], &[0, 1, 2, 3]);
        check_plateau(&[1.0, 0.991, 0.98], &[0, 1, 0]);
        check_plateau(&[0.0, 0.0], &[0, 1]);
    }

    #[test]
    fn small_gains_that_add_up_are_an_improvement() {
        check_plateau(&[1.0, 0.996, 0.992, 0.988], &[0, 1, 2, 0]);
    }

    #[test]
    fn an_unmeasured_epoch_is_no_plateau_and_not_stable() {
        check_plateau(&[1.0, f64::NAN, f64::INFINITY, 1.0], &[0, 0, 0, 1]);
        check_stability(
            &[1.0, 1.0, 1.0, f64::NAN, 1.0, 1.0, 1.0, 1.0],
            &[false, false, false, false, false, false, false, true],
        );
    }

    #[test]
    fn three_stable_epochs_latch_for_good() {
        check_stability(&[1.0, 0.99, 0.98, 0.97, 0.2], &[false, false, false, true, true]);
        check_stability(&[1.0, 0.96, 0.95, 0.94, 0.93], &[false, false, false, false, true]);
        check_stability(&[1.0, 1.05, 1.05, 1.05, 1.05], &[false, false, false, false, true]);
        check_stability(&[1.0, 0.5, 0.25, 0.1], &[false; 4]);
        check_stability(&[0.0, 0.0, 0.0, 0.0], &[false; 4]);
    }

    #[test]
    fn no_stable_epochs_needed_means_stabilized_from_the_start() {
        let stability = StabilityConfig { epochs: 0, ..StabilityConfig::default() };
        assert!(Tracker::default().signals(&PlateauConfig::default(), &stability).stabilized);
        assert!(follow(&stability, &[1.0, 0.1]).iter().all(|s| s.stabilized));
    }

    #[test]
    fn an_epoch_counts_once() {
        let (plateau, stability) = (PlateauConfig::default(), StabilityConfig::default());
        let score = Score::new(1.0, 10);
        let mut tracker = Tracker::default();
        for epoch in [1, 2, 2, 2, 1] {
            tracker.observe(&plateau, &stability, EpochIndex(epoch), Some(&score));
        }
        assert_eq!(tracker.signals(&plateau, &stability).epochs_since_improvement, 1);
    }

    #[test]
    fn a_score_of_no_samples_is_no_measurement() {
        let mut tracker = Tracker::default();
        let score = Score::new(1.0, 0);
        tracker.observe(&PlateauConfig::default(), &StabilityConfig::default(), EpochIndex(1), Some(&score));
        assert_eq!(tracker.signals(&PlateauConfig::default(), &StabilityConfig::default()).loss, None);
    }
}
