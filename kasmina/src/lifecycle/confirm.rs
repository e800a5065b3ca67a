//! How much each confirmation may err, so that all of a run together err with a bounded probability.
//!
//! The confirming samples are the same for every seed of a run, and which seed comes next may depend on what they said about
//! the seeds before: by nothing but a yes or a no. So the run walks a tree, with a branch for each answer, in which every node is a
//! test that was fixed before the samples were looked at. When the levels of all nodes add up to α, then with probability 1 − α at
//! least no seed at all is confirmed whose gain is not above the least one that matters (the union bound over transcripts, as in Dwork et al. 2015, "The
//! reusable holdout"). The k-th test of a run in which j were confirmed before stands at one of C(k−1, j) nodes; it gets
//! α · 6/(π²k²) · ¾ · 4^−j / C(k−1, j): most of it where nothing was confirmed yet, which is where false gains would begin.

use leyline::seed::Confirming;
use serde::{Deserialize, Serialize};

use crate::lifecycle::GateConfig;

/// Standard normal quantile of 0.8: the power that is asked for.
const POWER: f64 = 0.8416;

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
    /// What the next test may err with, of `alpha` in all.
    #[expect(clippy::cast_precision_loss, reason = "tests are counted far below 2^53")]
    pub(crate) fn level(self, alpha: f64) -> f64 {
        let (test, confirmed) = (self.read as f64 + 1.0, self.confirmed as f64);
        let in_order = 6.0 / (std::f64::consts::PI * test).powi(2);
        // C(k−1, j), which may be large: as a product of its ratios.
        let nodes: f64 =
            (0..self.confirmed.min(self.read)).map(|i| (self.read - i) as f64 / (i as f64 + 1.0)).product();
        alpha * in_order * 0.75 * (-confirmed * 4_f64.ln()).exp() / nodes
    }

    /// What the next test has to come to on so many samples.
    pub(crate) fn next(self, gates: &GateConfig, num_samples: u64) -> Confirming {
        let level = self.level(gates.confirmation_level);
        // An e-value grows by δ²/2 per sample at best, δ the effect in standard deviations, and has to reach 1/level.
        let needed = ((least_z(level) + POWER) / gates.smallest_effect).powi(2).ceil();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count; saturates")]
        let needed_samples = needed as u64;
        let Self { read, confirmed } = self;
        let min_gain = gates.min_loss_gain;
        Confirming { num_samples, needed_samples, level, min_gain, num_read: read, num_confirmed: confirmed }
    }
}

/// How many standard errors above what has to be exceeded a gain is, when an e-value of it is expected to pass a test.
pub(crate) fn least_z(level: f64) -> f64 {
    (-2.0 * level.ln()).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_levels_of_all_nodes_of_the_tree_add_up_to_the_level_of_the_run() {
        // Every transcript of up to 18 tests: each node is one test.
        let mut sum = 0.0;
        for read in 0..18_u64 {
            for answers in 0..1_u64 << read {
                sum += Confirmations { read, confirmed: u64::from(answers.count_ones()) }.level(0.05);
            }
        }
        assert!((0.04..=0.05).contains(&sum), "{sum}");
        assert!(Confirmations { read: 400, confirmed: 200 }.level(0.05) >= 0.0);
    }

    #[test]
    fn later_tests_and_later_gains_need_more_samples() {
        let needed = |read, confirmed| Confirmations { read, confirmed }.next(&GateConfig::default(), 0).needed_samples;
        assert_eq!([needed(0, 0), needed(1, 0), needed(1, 1), needed(4, 1)], [52, 66, 80, 111]);
    }
}
