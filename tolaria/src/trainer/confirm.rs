//! Held-out samples that confirm: each seed reads them once, and nothing else is decided by them.
//!
//! Validation data are looked at after every epoch, and so is every seed: what looks best there looks better than it is. Of
//! them a part is kept back, and is read for a seed when everything else lets it pass, once. So the test that follows need not hold at
//! any time, which would cost power, but once. Gains of a cross-entropy are skewed, often a little above 0 and seldom far below, and a test that takes
//! their mean for normal confirms too many. This one is Gaffke's (Learned-Miller & Thomas 2019, "A new confidence interval for the mean of a
//! bounded random variable", arXiv 1905.06208): the gains and one more at the worst that may be expected are weighted at random, uniformly over all weights that add up to
//! 1, and the p-value is how often their weighted mean is not above the least gain that matters. That its level holds for every distribution above that worst
//! is a conjecture to which no exception is known; tests here measure it.

use std::collections::BTreeSet;

use leyline::policy::Policy;
use leyline::region::Eager;
use leyline::seed::{Confirmation, Confirming, SeedManager, SeedState};
use statrs::distribution::{Continuous, ContinuousCDF, Normal};

use crate::batch::Dataset;
use crate::error::Error;
use crate::trainer::evaluate::{Evaluation, Probe};
use crate::trainer::run::Trainer;

/// The loss by a seed that one sample may be expected to come to, in root mean squares of the gains on the other validation data, where none
/// of those lost more.
const WORST: f64 = 2.0;
/// Steps of Newton's method, more than enough.
const MAX_STEPS: usize = 200;

/// The validation data in two parts: by which everything is decided, and which confirm.
#[derive(Debug)]
pub(super) struct Divided {
    pub(super) selecting: Dataset,
    pub(super) confirming: Dataset,
    /// Whether the samples are enough to confirm anything, or have done so: otherwise none are kept back.
    pub(super) can_confirm: bool,
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
        Ok(Some(Self { selecting, confirming, can_confirm: false }))
    }
}

impl<S: SeedManager, P: Policy> Trainer<S, P> {
    /// Divides the validation data where the manager has something to confirm, and tells it.
    pub(super) fn divide(&mut self, eager: &Eager) -> Result<(), Error> {
        let slots = self.parts.seeds.export_slot_states(eager).map_err(|error| self.seed_error(error))?;
        if slots.is_empty() || !self.confirms {
            return Ok(());
        }
        if self.divided.is_none() {
            self.divided = Divided::of(&self.parts.data.validation, self.config.confirmation_fraction)?;
        }
        let num_samples = self.divided.as_ref().map_or(0, |divided| divided.confirming.len() as u64);
        self.parts.seeds.confirm_on(eager, num_samples).map_err(|error| self.seed_error(error))?;
        let next = self.parts.seeds.confirming(eager).map_err(|error| self.seed_error(error))?;
        if let Some(divided) = &mut self.divided {
            divided.can_confirm = next.is_some_and(|next| next.num_read > 0 || next.has_power());
        }
        Ok(())
    }

    /// Reads the samples that confirm for each seed that waits for it.
    pub(super) fn confirm(
        &mut self,
        eager: &mut Eager,
        states: &[SeedState],
        chosen: &Evaluation,
    ) -> Result<(), Error> {
        let mut asked = BTreeSet::new();
        loop {
            // Each reading spends error, after which the others may want none.
            let wanted =
                self.call_seeds(|seeds| seeds.wants_confirmation(eager)).map_err(|error| self.seed_error(error))?;
            let Some(seed) = wanted.into_iter().find(|seed| asked.insert(*seed)) else { return Ok(()) };
            let next = self.parts.seeds.confirming(eager).map_err(|error| self.seed_error(error))?;
            let on_others = chosen.gains.iter().find(|(of, _)| *of == seed).map(|(_, gains)| gains);
            let probe = states.iter().find(|state| state.seed_id == seed).and_then(Probe::of);
            let (Some(next), Some(on_others), Some(probe)) = (next, on_others, probe) else { continue };
            let read = self.evaluate_confirming(eager, &[probe])?;
            let Some((_, gains)) = read.gains.first() else { continue };
            let measured = confirmation(on_others, gains, next);
            self.call_seeds(|seeds| seeds.record_confirmation(eager, seed, &measured))
                .map_err(|error| self.seed_error(error))?;
        }
    }
}

/// What `gains` say about a seed that was measured `on_others`.
#[expect(clippy::cast_precision_loss, reason = "samples are counted far below 2^53")]
fn confirmation(on_others: &[f64], gains: &[f64], next: Confirming) -> Confirmation {
    let square = on_others.iter().map(|gain| gain * gain).sum::<f64>() / on_others.len() as f64;
    // Of what is no number nothing is known, and the larger of it and a number would be the number.
    let usual = if square.is_finite() { WORST * square.sqrt() } else { f64::INFINITY };
    let worst = on_others.iter().fold(usual, |worst, gain| worst.max(-gain));
    let above: Vec<f64> = gains.iter().copied().chain([-worst]).map(|gain| gain - next.min_gain).collect();
    Confirmation {
        loss_gain: gains.iter().sum::<f64>() / gains.len() as f64,
        p_value: weighted_at_random(&above),
        worst,
        num_samples: gains.len() as u64,
    }
}

/// The probability that the mean of these numbers, weighted uniformly at random, is not above 0, where their plain mean is: 1 elsewhere.
///
/// Such weights are exponential variables over their sum, so it is that of Σ Eᵢ·xᵢ ≤ 0, by the saddlepoint approximation of
/// Lugannani & Rice (1980): the cumulant generating function is −Σ ln(1 − t·xᵢ).
fn weighted_at_random(numbers: &[f64]) -> f64 {
    let least = numbers.iter().copied().fold(f64::INFINITY, f64::min);
    // What is no number proves nothing.
    if !(numbers.iter().sum::<f64>() > 0.0 && least.is_finite()) {
        return 1.0;
    }
    if least >= 0.0 {
        return 0.0;
    }
    // Its derivative grows with t, from below 0 at the pole to the sum of the numbers at 0.
    let (mut low, mut high) = (1.0 / least, 0.0);
    let mut t = f64::midpoint(low, high);
    for _ in 0..MAX_STEPS {
        let ratios = || numbers.iter().map(|x| x / (1.0 - t * x));
        let first: f64 = ratios().sum();
        if first > 0.0 {
            high = t
        } else {
            low = t
        }
        let newton = t - first / ratios().map(|ratio| ratio * ratio).sum::<f64>();
        let next = if newton > low && newton < high { newton } else { f64::midpoint(low, high) };
        let is_close = (next - t).abs() <= 1e-12 * t.abs();
        t = next;
        if is_close {
            break;
        }
    }
    let cumulants = -numbers.iter().map(|x| (-t * x).ln_1p()).sum::<f64>();
    let w = -(-2.0 * cumulants).max(0.0).sqrt();
    let u = t * numbers.iter().map(|x| (x / (1.0 - t * x)).powi(2)).sum::<f64>().sqrt();
    // Near the mean itself the approximation divides by nothing, and nobody confirms there.
    if w > -1e-3 {
        return 1.0;
    }
    let normal = Normal::standard();
    (normal.cdf(w) + normal.pdf(w) * (1.0 / w - 1.0 / u)).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Tensor};
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::host_read::{self, HostReads};

    const NEXT: Confirming =
        Confirming { num_samples: 0, needed_samples: 0, level: 0.05, min_gain: 0.0, num_read: 0, num_confirmed: 0 };

    type Draw = fn(&mut ChaCha8Rng) -> f64;

    /// In how many of 500 runs of `num_samples` a seed is confirmed at 5 % and at 1.25 % that looks best of five, with gains drawn by `draw`.
    fn confirmed(num_samples: usize, draw: impl Fn(&mut ChaCha8Rng) -> f64) -> [usize; 2] {
        let mut rng = ChaCha8Rng::seed_from_u64(7);
        let mut sample = || (0..num_samples).map(|_| draw(&mut rng)).collect::<Vec<f64>>();
        let p_values: Vec<f64> = (0..500)
            .map(|_| {
                let looks = (0..5).map(|_| sample());
                let best = looks.max_by(|a, b| a.iter().sum::<f64>().total_cmp(&b.iter().sum())).unwrap();
                confirmation(&best, &sample(), NEXT).p_value
            })
            .collect();
        [0.05, 0.0125].map(|level| p_values.iter().filter(|p| **p <= level).count())
    }

    /// Uniform in (0, 1).
    fn uniform(rng: &mut ChaCha8Rng) -> f64 {
        rng.random_range(f64::EPSILON..1.0)
    }

    fn normal(rng: &mut ChaCha8Rng) -> f64 {
        (-2.0 * uniform(rng).ln()).sqrt() * (std::f64::consts::TAU * uniform(rng)).cos()
    }

    #[test]
    fn a_gain_that_is_none_is_confirmed_no_more_often_than_its_level_skewed_or_not() {
        // Mean 0, and skewed: often a little better, seldom much worse, and the reverse.
        let draws: [(&str, Draw); 5] = [
            ("normal", normal),
            ("exponential losses", |rng| 1.0 + uniform(rng).ln()),
            ("exponential gains", |rng| -1.0 - uniform(rng).ln()),
            ("losses of one in twenty", |rng| if uniform(rng) < 0.05 { -1.9 } else { 0.1 }),
            ("logarithmic losses", |rng| 0.5_f64.exp() - normal(rng).exp()),
        ];
        for (name, draw) in draws {
            for num_samples in [50, 180] {
                let [often, seldom] = confirmed(num_samples, draw);
                // Two standard errors above what is allowed; losses that are in none of 50 and 50 samples cannot be reckoned with.
                let unseen = if name == "losses of one in twenty" && num_samples == 50 { 8 } else { 0 };
                assert!(often <= 35 && seldom <= 11 + unseen, "{name}, {num_samples}: {often} and {seldom} of 500");
            }
        }
    }

    /// In how many of 150 runs, each of six seeds that look best of five, any is confirmed, with the levels 0.05/2^k.
    fn runs_that_confirm(num_samples: usize, draw: Draw) -> usize {
        let mut rng = ChaCha8Rng::seed_from_u64(11);
        let mut sample = || (0..num_samples).map(|_| draw(&mut rng)).collect::<Vec<f64>>();
        let mut run = || {
            (1..=6).any(|k| {
                let looks = (0..5).map(|_| sample());
                let best = looks.max_by(|a, b| a.iter().sum::<f64>().total_cmp(&b.iter().sum())).unwrap();
                confirmation(&best, &sample(), NEXT).p_value <= 0.05 * 0.5_f64.powi(k)
            })
        };
        (0..150).filter(|_| run()).count()
    }

    #[test]
    fn a_run_of_six_seeds_that_do_not_help_confirms_any_in_5_percent_with_the_least_samples_that_are_read() {
        let seldom: Draw = |rng| if uniform(rng) < 0.05 { -1.9 } else { 0.1 };
        // 7.5 are allowed, and two standard errors of that.
        for (name, draw) in [("normal", normal as Draw), ("losses of one in twenty", seldom)] {
            let runs = runs_that_confirm(100, draw);
            assert!(runs <= 12, "{name}: {runs} of 150");
        }
        // That is why no fewer than 100 are read: losses may be in none of 50 and 50 samples.
        let runs = runs_that_confirm(50, seldom);
        assert!(runs > 12, "{runs} of 150");
    }

    #[test]
    fn a_gain_is_confirmed_with_enough_samples() {
        let found = [50, 180, 400].map(|num_samples| confirmed(num_samples, |rng| 0.2 + normal(rng))[0]);
        assert!(found[0] < 250 && found[1] > 350 && found[2] > 475, "{found:?}");
    }

    #[test]
    fn the_p_value_is_that_of_weights_drawn_at_random() {
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        for (num_samples, mean, worst) in [(5, 1.2, 1.0), (20, 0.6, 3.0), (100, 0.2, 3.0)] {
            let mut numbers: Vec<f64> = (0..num_samples).map(|_| mean + normal(&mut rng)).collect();
            numbers.push(-worst);
            let draws = 20_000;
            let not_above = (0..draws)
                .filter(|_| numbers.iter().map(|x| -uniform(&mut rng).ln() * x).sum::<f64>() <= 0.0)
                .count() as f64;
            let (drawn, found) = (not_above / f64::from(draws), weighted_at_random(&numbers));
            let error = (found * (1.0 - found) / f64::from(draws)).sqrt();
            assert!((drawn - found).abs() < 4.0 * error + 0.03 * found, "{num_samples}: {drawn} drawn, {found}");
        }
    }

    #[test]
    fn what_has_no_gain_or_is_no_number_is_not_confirmed_and_a_large_loss_counts_in_full() {
        let p = |gains: &[f64]| confirmation(&[0.1, 0.3], gains, NEXT).p_value;
        for gains in [vec![-1.0; 9], vec![0.0; 9], vec![f64::NAN; 9], vec![1.0, f64::NEG_INFINITY], vec![]] {
            assert!((p(&gains) - 1.0).abs() < 1e-12, "{gains:?}");
        }
        let steady = vec![1.0; 100];
        assert!(p(&steady) < 1e-9);
        // Nor is one of which the other samples say no number, whatever its gains here.
        for others in [[f64::NAN, -0.3, 0.1], [f64::INFINITY, -0.3, 0.1], [f64::NEG_INFINITY, -0.3, 0.1]] {
            let found = confirmation(&others, &steady, NEXT);
            assert!((found.p_value - 1.0).abs() < 1e-12 && !found.worst.is_finite(), "{others:?}: {found:?}");
        }
        let with_a_loss: Vec<f64> = steady.into_iter().chain([-90.0]).collect();
        assert!(p(&with_a_loss) > 0.3, "{}", p(&with_a_loss));
        // The worst of the other samples, or twice their root mean square.
        assert!((confirmation(&[1.0, 1.0], &[1.0], NEXT).worst - 2.0).abs() < 1e-12);
        assert!((confirmation(&[1.0, -9.0, 1.0, 1.0, 1.0], &[1.0], NEXT).worst - 9.0).abs() < 1e-12);
    }

    #[test]
    fn validation_data_are_divided_evenly_over_their_order() {
        let device = Device::Cpu;
        let data = |count: u32| {
            let inputs = Tensor::zeros((count as usize, 1), candle_core::DType::F32, &device).unwrap();
            Dataset::new(inputs, Tensor::arange(0, count, &device).unwrap()).unwrap()
        };
        let mut reads = HostReads::default();
        let mut targets =
            |data: &Dataset| host_read::read_vec_u32(data.targets().unwrap(), "labels", &mut reads).unwrap();
        let divided = Divided::of(&data(7), 0.5).unwrap().unwrap();
        assert_eq!((targets(&divided.selecting), targets(&divided.confirming)), (vec![0, 2, 4, 6], vec![1, 3, 5]));
        let divided = Divided::of(&data(8), 0.25).unwrap().unwrap();
        assert_eq!(targets(&divided.confirming), [3, 7]);
        assert!(Divided::of(&data(1), 0.5).unwrap().is_none());
        assert!(Divided::of(&data(8), 0.0).unwrap().is_none());
    }
}
