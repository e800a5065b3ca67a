//! Repetitions and percentiles.

use serde::{Deserialize, Serialize};

/// A quantity measured `n` times.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measurement {
    /// Unit, for example `ms`.
    pub unit: String,
    /// Repetitions, warm-up not counted.
    pub n: usize,
    /// Smallest value.
    pub min: f64,
    /// Half of the values are at most this.
    pub median: f64,
    /// 95 % of the values are at most this.
    pub p95: f64,
    /// Largest value.
    pub max: f64,
    /// The values in ascending order with six digits, [`MAX_SAMPLES`] of them at equal distances where there were more.
    /// Absent where there was one value, or where the values were not handed on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub samples: Vec<f64>,
}

/// As many values of a quantity are kept.
pub const MAX_SAMPLES: usize = 200;

impl Measurement {
    /// Summarizes values; `None` when there are none or one is not a number.
    #[must_use]
    pub fn of(unit: &str, mut values: Vec<f64>) -> Option<Self> {
        if values.is_empty() || values.iter().any(|value| value.is_nan()) {
            return None;
        }
        values.sort_by(f64::total_cmp);
        Some(Self {
            unit: unit.to_owned(),
            n: values.len(),
            min: values[0],
            median: percentile(&values, 50),
            p95: percentile(&values, 95),
            max: values[values.len() - 1],
            samples: kept(&values),
        })
    }
}

fn kept(sorted: &[f64]) -> Vec<f64> {
    if sorted.len() < 2 {
        return Vec::new();
    }
    let count = sorted.len().min(MAX_SAMPLES);
    let rounded = |value: f64| format!("{value:.5e}").parse().unwrap_or(value);
    (0..count).map(|index| rounded(sorted[(2 * index + 1) * sorted.len() / (2 * count)])).collect()
}

/// Nearest-rank percentile of sorted values.
fn percentile(sorted: &[f64], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted[rank.max(1) - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let measured = Measurement::of("ms", (1..=100).rev().map(f64::from).collect()).unwrap();
        let found = [measured.min, measured.median, measured.p95, measured.max].map(|value| value.to_string());
        assert_eq!(found, ["1", "50", "95", "100"]);
        let one = Measurement::of("ms", vec![7.0]).unwrap();
        assert_eq!([one.median, one.p95].map(|value| value.to_string()), ["7", "7"]);
    }

    #[test]
    fn as_many_values_are_kept_as_show_their_distribution() {
        let kept = |n: u32| Measurement::of("ms", (1..=n).map(f64::from).collect()).unwrap().samples;
        assert_eq!(kept(1), Vec::<f64>::new());
        assert_eq!(kept(3), [1.0, 2.0, 3.0]);
        let many = kept(5_000);
        assert_eq!((many.len(), many[0], many[199]), (MAX_SAMPLES, 13.0, 4_988.0));
        assert!(many.windows(2).all(|pair| pair[0] < pair[1]));
        assert_eq!(Measurement::of("ms", vec![1.0 / 3.0, 1.0]).unwrap().samples[0].to_string(), "0.333333");
    }

    #[test]
    fn nothing_measured_is_not_zero() {
        assert_eq!(Measurement::of("ms", vec![]), None);
        assert_eq!(Measurement::of("ms", vec![f64::NAN]), None);
    }
}
