//! Combinations of gradients in PyTorch, timed by a script that is part of this binary.

use std::collections::BTreeMap;
use std::path::PathBuf;

use leyline::clock::Clock;
use serde::Deserialize;

use crate::error::Error;
use crate::measure::Measurement;
use crate::result::BenchResult;
use crate::torch::{PeerEnvironment, run_script};
use crate::work::{Flags, Needs, Outcome, Setting, Work};

pub(super) const WORK: Work = Work::with_flags::<GradientPeerConfig>(
    "peer-gradient",
    "Combinations of gradients in PyTorch, which must be installed",
    Needs::Torch,
);

const SCRIPT: &str = concat!(include_str!("../../torch/report.py"), include_str!("../../torch/gradient.py"));

/// What the peer is asked for; by default the grid that the engine is measured on.
#[derive(Debug, Clone, clap::Args)]
struct GradientPeerConfig {
    /// Interpreter with PyTorch.
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    python: PathBuf,
    /// Numbers of microbatches; 2, 4, 8 and 16 when absent.
    #[arg(
        long = "rows",
        value_name = "COUNTS",
        value_delimiter = ',',
        default_value = "2,4,8,16",
        hide_default_value = true
    )]
    num_rows: Vec<usize>,
    /// Numbers of parameters; 1, 10 and 100 million when absent.
    #[arg(
        long = "elements",
        value_name = "COUNTS",
        value_delimiter = ',',
        default_value = "1000000,10000000,100000000",
        hide_default_value = true
    )]
    num_elements: Vec<usize>,
    /// Ways of combining, of `jd`, `jd_floats`, `torchjd`, `sequential`; all when absent.
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "jd,jd_floats,torchjd,sequential",
        hide_default_value = true
    )]
    forms: Vec<String>,
    /// Repetitions of a quantity at most; the script takes fewer where they would take too long.
    #[arg(long = "n", value_name = "N", default_value_t = 200)]
    num_repetitions: usize,
    /// On the CPU instead of a GPU.
    #[arg(long = "cpu")]
    on_cpu: bool,
}

impl Flags for GradientPeerConfig {
    fn measure(&self, setting: &Setting) -> Result<Outcome, Error> {
        let report: GradientPeerReport = run_script(SCRIPT, &self.python, &self.arguments())?;
        Ok(report.into_result(setting.clock.as_ref()).into())
    }
}

impl GradientPeerConfig {
    /// Arguments of the script.
    fn arguments(&self) -> Vec<String> {
        let list = |numbers: &[usize]| numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        vec![
            format!("--rows={}", list(&self.num_rows)),
            format!("--elements={}", list(&self.num_elements)),
            format!("--forms={}", self.forms.join(",")),
            format!("--n={}", self.num_repetitions),
            format!("--device={}", if self.on_cpu { "cpu" } else { "cuda" }),
        ]
    }
}

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

/// What the script found.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct GradientPeerReport {
    /// Where it ran.
    environment: PeerEnvironment,
    /// Each quantity that was asked for.
    results: Vec<PeerQuantity>,
}

impl GradientPeerReport {
    /// The result as it is committed; why a quantity is missing is in `config` under `torch.<name>.error`.
    fn into_result(self, clock: &dyn Clock) -> BenchResult {
        let mut config = self.environment.facts();
        let mut measurements = BTreeMap::new();
        for PeerQuantity { name, outcome } in self.results {
            match outcome {
                Ok(measured) => drop(measurements.insert(format!("torch.{name}"), measured)),
                Err(error) => drop(config.insert(format!("torch.{name}.error"), error)),
            }
        }
        let notes = "torch.kK.pP.FORM: K gradients of P elements to one, each repetition synchronized; jd: Gram matrix \
            on the device, projections on the host over small tensors, one product; jd_floats: over plain \
            numbers; torchjd: the library; sequential: a product and a read of it per pair. `.step` adds \
            AdamW as one fused kernel. `.error`: norm of the difference to the sequential form over its norm, \
            taken before any time. `.over_floor`: median over the bytes of two reads of the gradients and of \
            what is written, at the fastest bandwidth measured in this run. stack: the rows into one matrix, \
            which jd is given";
        BenchResult { config, measurements, ..BenchResult::new("peer-gradient", notes, clock) }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use leyline::clock::SystemClock;

    use super::*;

    const SAMPLE: &str = r#"{"environment": {"torch": "2.11.0", "cuda": null, "gpu": null, "driver": null}, "results": [
        {"name": "k2.p1000.jd", "unit": "us", "n": 10, "min": 1.0, "median": 2.0, "p95": 3.0, "max": 4.0},
        {"name": "k2.p1000.torchjd", "n": 0, "error": "ModuleNotFoundError: no torchjd"}]}"#;

    #[test]
    fn quantities_become_measurements_and_failures_settings() {
        let script = format!("echo '{SAMPLE}'");
        let report: GradientPeerReport = run_script(&script, Path::new("sh"), &[]).unwrap();
        let result = report.into_result(&SystemClock::new());
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

    #[test]
    fn arguments_are_those_of_the_script() {
        let config = GradientPeerConfig { on_cpu: true, ..GradientPeerConfig::by_default() };
        let arguments = config.arguments();
        assert_eq!(arguments[0], "--rows=2,4,8,16");
        assert_eq!(arguments[4], "--device=cpu");
        for argument in &arguments {
            let name = argument.split('=').next().unwrap();
            assert!(SCRIPT.contains(&format!("\"{name}\"")), "{name}");
        }
        for form in &config.forms {
            assert!(SCRIPT.contains(&format!("def {form}(")), "{form}");
        }
    }
}
