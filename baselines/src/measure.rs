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
}

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
        })
    }
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
    fn nothing_measured_is_not_zero() {
        assert_eq!(Measurement::of("ms", vec![]), None);
        assert_eq!(Measurement::of("ms", vec![f64::NAN]), None);
    }
}
