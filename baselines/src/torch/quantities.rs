//! A report of quantities by name.

use std::collections::BTreeMap;

use leyline::clock::Clock;
use serde::Deserialize;

use super::PeerEnvironment;
use crate::measure::Measurement;
use crate::result::BenchResult;

/// One quantity.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(try_from = "Row")]
struct PeerQuantity {
    /// Its name.
    name: String,
    /// The values, or why there are none.
    outcome: Result<Measurement, String>,
}

/// A quantity as the script prints it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    name: String,
    n: usize,
    error: Option<String>,
    unit: Option<String>,
    min: Option<f64>,
    median: Option<f64>,
    p95: Option<f64>,
    max: Option<f64>,
}

impl TryFrom<Row> for PeerQuantity {
    type Error = String;

    fn try_from(row: Row) -> Result<Self, String> {
        let outcome = match row {
            Row { error: Some(error), .. } => Err(error),
            Row {
                n, unit: Some(unit), min: Some(min), median: Some(median), p95: Some(p95), max: Some(max), ..
            } if n > 0 => Ok(Measurement { unit, n, min, median, p95, max, samples: Vec::new() }),
            _ => return Err(format!("{} has neither all its values nor an error", row.name)),
        };
        Ok(Self { name: row.name, outcome })
    }
}

/// What a script found.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Quantities {
    /// Where it ran.
    environment: PeerEnvironment,
    /// Each quantity that was asked for.
    results: Vec<PeerQuantity>,
}

impl Quantities {
    /// The result as it is committed; why a quantity is missing is in `config` under `torch.<name>.error`.
    pub(crate) fn into_result(self, name: &str, notes: &str, clock: &dyn Clock) -> BenchResult {
        let mut config = self.environment.facts();
        let mut measurements = BTreeMap::new();
        for PeerQuantity { name, outcome } in self.results {
            match outcome {
                Ok(measured) => drop(measurements.insert(format!("torch.{name}"), measured)),
                Err(error) => drop(config.insert(format!("torch.{name}.error"), error)),
            }
        }
        BenchResult { config, measurements, ..BenchResult::new(name, notes, clock) }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use leyline::clock::SystemClock;

    use super::*;
    use crate::torch::run_script;

    const SAMPLE: &str = r#"{"environment": {"torch": "2.11.0", "cuda": null, "gpu": null, "driver": null}, "results": [
        {"name": "k2.p1000.jd", "unit": "us", "n": 10, "min": 1.0, "median": 2.0, "p95": 3.0, "max": 4.0},
        {"name": "k2.p1000.torchjd", "n": 0, "error": "ModuleNotFoundError: no torchjd"}]}"#;

    #[test]
    fn quantities_become_measurements_and_failures_settings() {
        let script = format!("echo '{SAMPLE}'");
        let report: Quantities = run_script(&script, Path::new("sh"), &[]).unwrap();
        let result = report.into_result("peer", "notes", &SystemClock::new());
        let expected = Measurement {
            unit: "us".to_owned(),
            n: 10,
            min: 1.0,
            median: 2.0,
            p95: 3.0,
            max: 4.0,
            samples: Vec::new(),
        };
        assert_eq!(result.measurements, BTreeMap::from([("torch.k2.p1000.jd".to_owned(), expected)]));
        let facts = ["torch", "gpu", "torch.k2.p1000.torchjd.error"].map(|key| result.config[key].as_str());
        assert_eq!(facts, ["2.11.0", "unknown", "ModuleNotFoundError: no torchjd"]);
    }

    #[test]
    fn a_quantity_without_values_and_without_an_error_is_no_report() {
        for bad in [r#"{"name": "a", "n": 3, "unit": "us"}"#, r#"{"name": "a", "n": 0}"#] {
            assert!(serde_json::from_str::<PeerQuantity>(bad).is_err(), "{bad}");
        }
    }
}
