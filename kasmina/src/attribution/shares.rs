//! Scores, and the shares of 1 that follow from them.
#![deny(clippy::wildcard_enum_match_arm)]

use leyline::id::SeedId;
use leyline::seed::SeedStage;
use leyline::unit::Alpha;

/// A seed that can influence the loss.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Acting {
    pub(crate) seed: SeedId,
    pub(crate) stage: SeedStage,
    pub(crate) alpha: Alpha,
}

/// Scores of host and seeds in R rows: one for the batch, or one for each sample.
#[derive(Debug)]
pub(super) struct Scores {
    /// (R).
    pub(super) host: Vec<f64>,
    /// (R, S) row-major, S in the order of the acting seeds.
    pub(super) seeds: Vec<f64>,
}

impl Scores {
    pub(super) fn by_stage(acting: &[Acting]) -> Self {
        let score = |acting: &Acting| match acting.stage {
            SeedStage::Blending => 0.5,
            SeedStage::Holding | SeedStage::Fossilized => 1.0,
            SeedStage::Dormant
            | SeedStage::Germinated
            | SeedStage::Training
            | SeedStage::Pruned
            | SeedStage::Embargoed
            | SeedStage::Resetting => 0.0,
        };
        Self { host: vec![1.0], seeds: acting.iter().map(score).collect() }
    }

    pub(super) fn by_alpha(acting: &[Acting]) -> Self {
        Self { host: vec![1.0], seeds: acting.iter().map(|acting| acting.alpha.get()).collect() }
    }

    /// Shares (R, S) row-major; none when a score is not finite or negative, or all are zero.
    ///
    /// A row of zeros gives shares of zero: the host has it.
    pub(super) fn into_shares(self) -> Option<Vec<f64>> {
        let Self { host, mut seeds } = self;
        let num_seeds = if host.is_empty() { 0 } else { seeds.len() / host.len() };
        let usable = |score: &f64| score.is_finite() && *score >= 0.0;
        let mut some = false;
        for (row, host) in host.iter().enumerate() {
            let seeds = &mut seeds[row * num_seeds..(row + 1) * num_seeds];
            let sum = host + seeds.iter().sum::<f64>();
            if !(sum.is_finite() && usable(host) && seeds.iter().all(usable)) {
                return None;
            }
            if sum > 0.0 {
                some = true;
                seeds.iter_mut().for_each(|score| *score /= sum);
            }
        }
        some.then_some(seeds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(host: &[f64], seeds: &[f64], expected: Option<&[f64]>) {
        let shares = Scores { host: host.to_vec(), seeds: seeds.to_vec() }.into_shares();
        assert_eq!(shares.as_deref(), expected);
    }

    #[test]
    fn scores_become_shares_of_one_or_nothing() {
        check(&[1.0], &[1.0, 2.0], Some(&[0.25, 0.5]));
        check(&[0.0], &[2.0], Some(&[1.0]));
        check(&[1.0], &[0.0], Some(&[0.0]));
        check(&[0.0], &[0.0], None);
        check(&[f64::NAN], &[1.0], None);
        check(&[1.0], &[f64::INFINITY], None);
        check(&[1.0], &[-0.5, 1.0], None);
        check(&[1.0, 0.0, 1.0], &[1.0, 2.0, 0.0, 0.0, 0.0, 3.0], Some(&[0.25, 0.5, 0.0, 0.0, 0.0, 0.75]));
        check(&[0.0, 0.0], &[0.0, 0.0], None);
        check(&[1.0, f64::NAN], &[1.0, 1.0], None);
        check(&[1.0, 1.0], &[1.0, f64::MAX], Some(&[0.5, 1.0]));
        check(&[f64::MAX], &[f64::MAX], None);
        check(&[], &[], None);
    }

    #[test]
    fn alpha_is_shared_with_a_host_of_one() {
        let acting = [0.5, 1.0].map(|alpha| Acting {
            seed: SeedId(1),
            stage: SeedStage::Blending,
            alpha: Alpha::new(alpha).unwrap(),
        });
        assert_eq!(Scores::by_alpha(&acting).into_shares().unwrap(), [0.2, 0.4]);
    }
}
