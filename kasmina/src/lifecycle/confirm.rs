//! How much each confirmation may err, so that the error of a run is bounded.
//!
//! The confirming samples are the same for every seed of a run, and which seed comes next may depend on what they said about
//! the seeds before: by nothing but a yes or a no. So the run walks a tree, with a branch for each answer, in which every node is a
//! test that was fixed before the samples were looked at, and the union bound over its nodes holds however seeds are chosen
//! (Dwork et al. 2015, "The reusable holdout"). The k-th test of a run gets α/2^k. Among the tests before which nothing was confirmed, one for
//! each k, the levels add up to α: where no seed helps, a run confirms any with a probability of at most α. A gain that was confirmed gives back what
//! finding it has cost, as in alpha-investing (Foster & Stine 2008): the tests before which j were confirmed stand at C(k−1, j)
//! nodes for each k, and the levels of all of them add up to α again, for each j. So the next one is false with a probability of at most α, too.

use std::collections::BTreeMap;

use leyline::id::SeedId;
use leyline::seed::{Confirmed, Confirming};
use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, Normal};

use crate::lifecycle::GateConfig;

/// Standard normal quantile of 0.8: the power that is asked for.
const POWER: f64 = 0.8416;
/// Fewer samples confirm nothing: what one sample in twenty loses may be in none of them. With gains of -1.9 there and 0.1 elsewhere, six seeds and five
/// looks at each, 16 % of the runs confirm one with 50 samples, 7 % with 57, and 0.7 % with 100.
const MIN_SAMPLES: u64 = 100;

/// The tests of a run so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Confirmations {
    /// Tests (count).
    pub(crate) read: u64,
    /// Those that confirmed a gain (count).
    pub(crate) confirmed: u64,
}

impl Confirmations {
    /// What the next test may err with.
    pub(crate) fn level(self, alpha: f64) -> f64 {
        let halvings = i32::try_from(self.read.saturating_add(1)).unwrap_or(i32::MAX);
        // Of a number above 0 the power may be none; a level is.
        (alpha * 0.5_f64.powi(halvings)).max(f64::MIN_POSITIVE)
    }

    /// What the next test has to come to on so many samples.
    pub(crate) fn next(self, gates: &GateConfig, num_samples: u64) -> Confirming {
        let level = self.level(gates.confirmation_level);
        let needed = ((least_z(level) + POWER) / gates.smallest_effect).powi(2).ceil();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count; saturates")]
        let needed_samples = (needed as u64).max(MIN_SAMPLES);
        let Self { read, confirmed } = self;
        let min_gain = gates.min_loss_gain;
        Confirming { num_samples, needed_samples, level, min_gain, num_read: read, num_confirmed: confirmed }
    }
}

/// What the samples were read for in this process, whatever state it went back to: they are not fresh again.
#[derive(Debug, Clone, Default)]
pub(crate) struct Spent {
    counted: Confirmations,
    answers: BTreeMap<SeedId, Confirmed>,
}

impl Spent {
    /// The tests before one whose answer is `again` where nothing else was read since `counted`. A run that went back and takes
    /// the same way reads what it read; on another way each test is one more.
    pub(crate) fn before(&self, counted: Confirmations, seed: SeedId, again: &Confirmed) -> Confirmations {
        let is_known = self.answers.get(&seed) == Some(again);
        if is_known || counted.read >= self.counted.read { counted } else { self.counted }
    }

    /// Notes an answer, and the tests with it.
    pub(crate) fn note(&mut self, counted: Confirmations, seed: SeedId, answer: Confirmed) {
        self.answers.insert(seed, answer);
        if counted.read > self.counted.read {
            self.counted = counted;
        }
    }
}

/// How many standard errors above what has to be exceeded a gain is that passes a test of this level.
pub(crate) fn least_z(level: f64) -> f64 {
    -Normal::standard().inverse_cdf(level)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_levels_of_all_tests_before_which_as_many_were_confirmed_add_up_to_the_level_of_the_run() {
        // Every transcript of up to 18 tests: each node is one test.
        let mut sums = [0.0; 19];
        for read in 0..18_u64 {
            for answers in 0..1_u64 << read {
                let confirmed = answers.count_ones();
                let level = Confirmations { read, confirmed: u64::from(confirmed) }.level(0.05);
                sums[confirmed as usize] += level;
            }
        }
        assert!(sums.iter().all(|sum| *sum <= 0.05 + 1e-12), "{sums:?}");
        assert!(sums[..3].iter().all(|sum| *sum > 0.049), "{sums:?}");
        assert!(Confirmations { read: u64::MAX, confirmed: 200 }.level(0.05) > 0.0);
    }

    #[test]
    fn later_tests_need_more_samples() {
        let gates = GateConfig::default();
        let needed = |read| Confirmations { read, confirmed: 0 }.next(&gates, 0).needed_samples;
        assert_eq!([0, 4, 8, 12, 16].map(needed), [100, 100, 100, 109, 134]);
        assert!((least_z(0.025) - 1.959_964).abs() < 1e-6);
    }
}
