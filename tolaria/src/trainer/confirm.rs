//! Held-out samples that confirm: each seed reads them once, and nothing else is decided by them.
//!
//! Validation data are looked at after every epoch, and so is every seed: what looks best there looks better than it is. Of
//! them a part is kept back, and is read for a seed when everything else lets it pass. Whether its gain is real is then told by
//! an e-value: the wealth of somebody who bets on "the seed helps" at fair odds if it does not, sample by sample
//! (Waudby-Smith & Ramdas 2024, "Estimating means of bounded random variables by betting"). By Markov's inequality it exceeds 1/α
//! with a probability of at most α, for any number of samples; no normal mean is assumed. Gains of a cross-entropy are
//! skewed and have no bound: the hypothesis is about gains of which each counts as [`CLIP`] root mean squares at most, and how much is staked follows from what was
//! measured on the rest of the validation data, so neither depends on the samples that confirm.

use leyline::region::Eager;
use leyline::seed::{Confirmation, Confirming, Counterfactual, SeedManager, SeedState};

use crate::batch::Dataset;
use crate::error::Error;
use crate::trainer::evaluate::{Evaluation, Probe};
use crate::trainer::run::Trainer;
use leyline::policy::Policy;

/// The most that a sample counts, in root mean squares of the gains on the other validation data.
const CLIP: f64 = 4.0;
/// Shares of the stake that was best on the other validation data: it was chosen by them, and is too large as a rule.
const STAKES: [f64; 3] = [0.25, 0.5, 1.0];
/// The largest part of the wealth that one sample may take.
const MAX_LOSS: f64 = 0.75;

/// The validation data in two parts: by which everything is decided, and which confirm.
#[derive(Debug)]
pub(super) struct Divided {
    pub(super) selecting: Dataset,
    pub(super) confirming: Dataset,
}

impl Divided {
    /// Keeps back `fraction` of the samples, evenly over their order: files may be sorted. None where one of the parts would
    /// be empty.
    pub(super) fn of(validation: &Dataset, fraction: f64) -> Result<Option<Self>, Error> {
        let (selecting, confirming): (Vec<u32>, Vec<u32>) = (0..)
            .take(validation.len())
            .partition(|index| (f64::from(*index) * fraction).floor() >= (f64::from(*index + 1) * fraction).floor());
        if selecting.is_empty() || confirming.is_empty() {
            return Ok(None);
        }
        let (selecting, confirming) = (validation.subset(&selecting)?, validation.subset(&confirming)?);
        Ok(Some(Self { selecting, confirming }))
    }
}

impl<S: SeedManager, P: Policy> Trainer<S, P> {
    /// Divides the validation data where the manager has something to confirm, and tells it.
    pub(super) fn divide(&mut self, eager: &Eager) -> Result<(), Error> {
        let slots = self.parts.seeds.export_slot_states(eager).map_err(|error| self.seed_error(error))?;
        if slots.is_empty() {
            return Ok(());
        }
        if self.divided.is_none() {
            self.divided = Divided::of(&self.parts.data.validation, self.config.confirmation_fraction)?;
        }
        let num_samples = self.divided.as_ref().map_or(0, |divided| divided.confirming.len() as u64);
        self.parts.seeds.confirm_on(eager, num_samples).map_err(|error| self.seed_error(error))
    }

    /// Reads the samples that confirm for each seed that waits for it.
    pub(super) fn confirm(
        &mut self,
        eager: &mut Eager,
        states: &[SeedState],
        chosen: &Evaluation,
    ) -> Result<(), Error> {
        let wanted =
            self.call_seeds(|seeds| seeds.wants_confirmation(eager)).map_err(|error| self.seed_error(error))?;
        for seed in wanted {
            let next = self.parts.seeds.confirming(eager).map_err(|error| self.seed_error(error))?;
            let on_others = chosen.counterfactuals.iter().find(|(of, _)| *of == seed).map(|(_, measured)| *measured);
            let probe = states.iter().find(|state| state.seed_id == seed).and_then(Probe::of);
            let (Some(next), Some(on_others), Some(probe)) = (next, on_others, probe) else { continue };
            let read = self.evaluate_confirming(eager, &[probe])?;
            let Some((_, gains)) = read.gains.first() else { continue };
            let measured = confirmation(&on_others, gains, next);
            self.call_seeds(|seeds| seeds.record_confirmation(eager, seed, &measured))
                .map_err(|error| self.seed_error(error))?;
        }
        Ok(())
    }
}

/// What `gains` say about a seed that was measured `on_others`.
#[expect(clippy::cast_precision_loss, reason = "samples are counted far below 2^53")]
fn confirmation(on_others: &Counterfactual, gains: &[f64], next: Confirming) -> Confirmation {
    let variance = on_others.std_error.powi(2) * on_others.num_samples as f64;
    let square = on_others.loss_gain.powi(2) + variance;
    let clip = CLIP * square.sqrt();
    let above = |gain: f64| gain.clamp(-clip, clip) - next.min_gain;
    // Of a normal distribution the best stake is its mean over its mean square.
    let best = (on_others.loss_gain - next.min_gain) / square;
    let stake = best.clamp(0.0, MAX_LOSS / (clip + next.min_gain.max(0.0)));
    let wealth = STAKES.map(|share| gains.iter().map(|gain| (share * stake * above(*gain)).ln_1p()).sum::<f64>());
    let most = wealth.into_iter().fold(f64::NEG_INFINITY, f64::max);
    let mean = wealth.iter().map(|one| (one - most).exp()).sum::<f64>() / STAKES.len() as f64;
    Confirmation {
        loss_gain: gains.iter().sum::<f64>() / gains.len() as f64,
        log_evidence: most + mean.ln(),
        clip,
        num_samples: gains.len() as u64,
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Tensor};
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    const NEXT: Confirming =
        Confirming { num_samples: 0, needed_samples: 0, level: 0.05, min_gain: 0.0, num_read: 0, num_confirmed: 0 };

    fn measured(gains: &[f64]) -> Counterfactual {
        let count = gains.len() as f64;
        let mean = gains.iter().sum::<f64>() / count;
        let variance = gains.iter().map(|gain| (gain - mean).powi(2)).sum::<f64>() / (count - 1.0);
        Counterfactual {
            loss_gain: mean,
            std_error: (variance / count).sqrt(),
            accuracy_gain_pp: None,
            num_samples: gains.len() as u64,
        }
    }

    /// How many of 400 seeds are confirmed at 5 % that look best of five, with gains drawn by `draw`.
    fn confirmed(num_samples: usize, draw: impl Fn(&mut ChaCha8Rng) -> f64) -> usize {
        let mut rng = ChaCha8Rng::seed_from_u64(7);
        let mut sample = || (0..num_samples).map(|_| draw(&mut rng)).collect::<Vec<f64>>();
        let runs = (0..400).filter(|_| {
            let looks = (0..5).map(|_| measured(&sample()));
            let best = looks.max_by(|a, b| a.loss_gain.total_cmp(&b.loss_gain)).unwrap();
            confirmation(&best, &sample(), NEXT).log_evidence >= -NEXT.level.ln()
        });
        runs.count()
    }

    /// Uniform in (0, 1).
    fn uniform(rng: &mut ChaCha8Rng) -> f64 {
        rng.random_range(f64::EPSILON..1.0)
    }

    #[test]
    fn a_gain_that_is_none_is_confirmed_in_at_most_one_of_twenty_skewed_or_not() {
        let normal = |rng: &mut ChaCha8Rng| (0..12).map(|_| uniform(rng)).sum::<f64>() - 6.0;
        // Mean 0, and skewed: often a little better, seldom much worse, and the reverse.
        let seldom_worse = |rng: &mut ChaCha8Rng| 1.0 + uniform(rng).ln();
        let seldom_better = |rng: &mut ChaCha8Rng| -1.0 - uniform(rng).ln();
        for num_samples in [20, 100] {
            let found = [
                confirmed(num_samples, normal),
                confirmed(num_samples, seldom_worse),
                confirmed(num_samples, seldom_better),
            ];
            assert!(found.iter().all(|count| *count <= 20), "of 400 with {num_samples} samples: {found:?}");
        }
    }

    #[test]
    fn a_gain_of_half_a_deviation_is_confirmed_with_enough_samples() {
        let helps = |rng: &mut ChaCha8Rng| 0.5 + (0..12).map(|_| uniform(rng)).sum::<f64>() - 6.0;
        let found = [20, 60, 120].map(|num_samples| confirmed(num_samples, helps));
        assert!(found[0] < 40 && found[1] > 120 && found[2] > 360, "{found:?}");
    }

    #[test]
    fn what_looked_harmful_stakes_nothing_and_one_sample_takes_no_more_than_a_part() {
        let harmful = confirmation(&measured(&[-1.0, -2.0]), &[5.0; 9], NEXT);
        assert_eq!((harmful.log_evidence, harmful.loss_gain, harmful.num_samples), (0.0, 5.0, 9));
        let steady = confirmation(&measured(&[1.0, 1.0]), &[1.0, 1e9, -1e9], NEXT);
        assert!(steady.log_evidence.is_finite());
        assert!((steady.clip - 4.0).abs() < 1e-12);
    }

    #[test]
    fn validation_data_are_divided_evenly_over_their_order() {
        let device = Device::Cpu;
        let data = |count: u32| {
            let inputs = Tensor::zeros((count as usize, 1), candle_core::DType::F32, &device).unwrap();
            Dataset::new(inputs, Tensor::arange(0, count, &device).unwrap()).unwrap()
        };
        let targets = |data: &Dataset| data.targets().unwrap().to_vec1::<u32>().unwrap();
        let divided = Divided::of(&data(7), 0.5).unwrap().unwrap();
        assert_eq!((targets(&divided.selecting), targets(&divided.confirming)), (vec![0, 2, 4, 6], vec![1, 3, 5]));
        let divided = Divided::of(&data(8), 0.25).unwrap().unwrap();
        assert_eq!(targets(&divided.confirming), [3, 7]);
        assert!(Divided::of(&data(1), 0.5).unwrap().is_none());
        assert!(Divided::of(&data(8), 0.0).unwrap().is_none());
    }
}
