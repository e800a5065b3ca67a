//! Paired differences with a confidence interval.

use statrs::distribution::{Beta, ContinuousCDF, StudentsT};

/// Mean of paired differences with its two-sided 95 % interval (Student's t, n − 1 degrees of freedom).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PairedDifference {
    /// Mean of `treated − control`.
    pub mean: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
    /// Pairs.
    pub n: usize,
}

impl PairedDifference {
    /// Compares two arms pair by pair; `None` with fewer than two pairs or unequal lengths.
    #[must_use]
    pub fn of(treated: &[f64], control: &[f64]) -> Option<Self> {
        let n = treated.len();
        if n < 2 || n != control.len() {
            return None;
        }
        let differences: Vec<f64> = treated.iter().zip(control).map(|(t, c)| t - c).collect();
        let mean = differences.iter().sum::<f64>() / n as f64;
        let variance = differences.iter().map(|d| (d - mean).powi(2)).sum::<f64>() / (n - 1) as f64;
        let quantile = StudentsT::new(0.0, 1.0, (n - 1) as f64).ok()?.inverse_cdf(0.975);
        let half = quantile * (variance / n as f64).sqrt();
        Some(Self { mean, low: mean - half, high: mean + half, n })
    }

    /// The interval for `comparisons` at once: all of theirs hold together with a probability of at least 95 %, whatever they have
    /// to do with each other (Bonferroni). For one it is its own.
    #[must_use]
    pub fn of_all(&self, comparisons: usize) -> (f64, f64) {
        let degrees = (self.n - 1) as f64;
        let quantile =
            |error: f64| StudentsT::new(0.0, 1.0, degrees).map_or(f64::NAN, |t| t.inverse_cdf(1.0 - error / 2.0));
        let half = (self.high - self.mean) * quantile(0.05 / comparisons.max(1) as f64) / quantile(0.05);
        (self.mean - half, self.mean + half)
    }
}

/// The upper bound of a probability, one-sided 95 % (Clopper & Pearson 1934): of `count` cases out of `n`.
#[must_use]
pub fn upper_bound(count: usize, n: usize) -> f64 {
    if count >= n {
        return 1.0;
    }
    Beta::new(count as f64 + 1.0, (n - count) as f64).map_or(1.0, |beta| beta.inverse_cdf(0.95))
}

/// Mean and sample standard deviation, which one value has not.
#[must_use]
pub fn mean_and_deviation(values: &[f64]) -> (f64, Option<f64>) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let squares = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>();
    (mean, (values.len() > 1).then(|| (squares / (n - 1.0)).sqrt()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_pairs_use_the_quantile_of_four_degrees_of_freedom() {
        // Differences 1, 2, 3, 4, 5: mean 3, standard error sqrt(2.5 / 5), t(0.975, 4) = 2.776445.
        let found = PairedDifference::of(&[2.0, 4.0, 6.0, 8.0, 10.0], &[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        assert!((found.mean - 3.0).abs() < 1e-12);
        assert!((found.high - found.mean - 2.776_445 * 0.5_f64.sqrt()).abs() < 1e-5);
    }

    #[test]
    fn the_interval_for_all_comparisons_is_wider_than_that_for_one() {
        let found = PairedDifference::of(&[2.0, 4.0, 6.0, 8.0, 10.0], &[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        // t(1 − 0.05 / 12, 4) = 4.851008: six comparisons.
        let ((low, high), (_, one)) = (found.of_all(6), found.of_all(1));
        assert!((high - 3.0 - 4.851_008 * 0.5_f64.sqrt()).abs() < 1e-5 && (low + high - 6.0).abs() < 1e-12, "{high}");
        assert!((one - found.high).abs() < 1e-9);
    }

    #[test]
    fn the_bound_of_a_share_is_exact() {
        // None of n: 1 − 0.05^(1/n).
        assert!((upper_bound(0, 100) - (1.0 - 0.05_f64.powf(0.01))).abs() < 1e-6);
        assert!((upper_bound(20, 400) - 0.072).abs() < 1e-3);
        assert_eq!((upper_bound(3, 3), upper_bound(0, 0)), (1.0, 1.0));
    }

    #[test]
    fn one_pair_has_no_interval() {
        assert_eq!(PairedDifference::of(&[1.0], &[0.0]), None);
        assert_eq!(PairedDifference::of(&[1.0, 2.0], &[0.0]), None);
    }
}
