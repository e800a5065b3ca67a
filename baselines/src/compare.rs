//! Two results beside each other: ratios, and what was lost.

use std::fmt;

use crate::result::BenchResult;

/// A quantity in both results.
#[derive(Debug, Clone, PartialEq)]
pub struct Ratio {
    /// Name of the quantity.
    pub name: String,
    /// Median now / median before.
    pub median: f64,
    /// 95th percentile now / before.
    pub p95: f64,
}

/// The difference between two results.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Comparison {
    /// Quantities in both.
    pub ratios: Vec<Ratio>,
    /// Quantities and telemetry metrics that only the first result has.
    pub lost: Vec<String>,
    /// Differences that make the ratios doubtful.
    pub warnings: Vec<String>,
}

impl Comparison {
    /// Whether everything that was there still is.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.lost.is_empty()
    }
}

/// Compares `after` with `before`.
#[must_use]
pub fn compare(before: &BenchResult, after: &BenchResult) -> Comparison {
    let mut comparison = Comparison::default();
    for (name, old) in &before.measurements {
        match after.measurements.get(name) {
            Some(new) => comparison.ratios.push(Ratio {
                name: name.clone(),
                median: new.median / old.median,
                p95: new.p95 / old.p95,
            }),
            None => comparison.lost.push(format!("measurement {name}")),
        }
    }
    let lost = before.metrics.iter().filter(|name| !after.metrics.contains(name));
    comparison.lost.extend(lost.map(|name| format!("metric {name}")));
    let mut differs = |what: &str, old: &dyn fmt::Debug, new: &dyn fmt::Debug| {
        let (old, new) = (format!("{old:?}"), format!("{new:?}"));
        if old != new {
            comparison.warnings.push(format!("{what} differs: {old}, {new}"));
        }
    };
    differs("work", &before.name, &after.name);
    differs("processor", &before.environment.cpu, &after.environment.cpu);
    differs("profile", &before.environment.profile, &after.environment.profile);
    differs("config", &before.config, &after.config);
    comparison
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for warning in &self.warnings {
            writeln!(f, "warning: {warning}")?;
        }
        for ratio in &self.ratios {
            writeln!(f, "{:<32} median ×{:.3}  p95 ×{:.3}", ratio.name, ratio.median, ratio.p95)?;
        }
        for lost in &self.lost {
            writeln!(f, "lost: {lost}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use leyline::clock::SystemClock;

    use super::*;
    use crate::environment::Environment;
    use crate::measure::Measurement;

    fn result(values: &[(&str, f64)], metrics: &[&str]) -> BenchResult {
        let measure = |value| Measurement::of("ms", vec![value]).unwrap();
        BenchResult {
            schema: crate::result::SCHEMA,
            name: "reference".to_owned(),
            command: String::new(),
            notes: String::new(),
            environment: Environment::detect(&SystemClock::new()),
            config: BTreeMap::new(),
            measurements: values.iter().map(|&(name, value)| (name.to_owned(), measure(value))).collect(),
            metrics: metrics.iter().map(|&name| name.to_owned()).collect(),
        }
    }

    #[test]
    fn ratios_are_new_over_old() {
        let found = compare(&result(&[("epoch", 2.0)], &["a"]), &result(&[("epoch", 3.0)], &["a", "b"]));
        assert!(found.passed());
        assert!((found.ratios[0].median - 1.5).abs() < 1e-12);
    }

    #[test]
    fn a_lost_metric_or_measurement_fails() {
        let found = compare(&result(&[("epoch", 2.0), ("step", 1.0)], &["a"]), &result(&[("epoch", 2.0)], &[]));
        assert!(!found.passed());
        assert_eq!(found.lost, ["measurement step", "metric a"]);
    }

    #[test]
    fn a_result_survives_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let original = result(&[("epoch", 0.123_456_789)], &["a"]);
        let path = original.write(dir.path()).unwrap();
        assert_eq!(BenchResult::read(&path).unwrap(), original);
    }
}
