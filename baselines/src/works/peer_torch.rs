//! The shared works in PyTorch, timed by a script that is part of this binary.
//!
//! ```text
//!   PeerConfig ─► python3 -c SCRIPT ─► JSON ─► PeerReport ─► measurements `torch.<work>[.<precision>].<mode>` ─► BenchResult
//! ```

use std::collections::BTreeMap;
use std::path::PathBuf;

use leyline::clock::Clock;
use serde::Deserialize;

use crate::error::Error;
use crate::measure::Measurement;
use crate::result::BenchResult;
use crate::torch::{PeerEnvironment, PeerError, run_script};
use crate::work::{Flags, Needs, Outcome, Setting, Work};

pub(super) const WORK: Work =
    Work::with_flags::<PeerConfig>("peer-torch", "The shared works in PyTorch, which must be installed", Needs::Torch);

const SCRIPT: &str = concat!(
    include_str!("../../torch/report.py"),
    include_str!("../../torch/jit.py"),
    include_str!("../../torch/peer.py")
);
/// The precision that names of measurements leave out.
const F32: &str = "f32";

/// What the peer is asked for.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
pub(crate) struct PeerConfig {
    /// Interpreter with PyTorch.
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    pub(crate) python: PathBuf,
    /// Works, of `ref`, `mlp`, `tfm5m`, `tfm30m`, `mlp4096`, `gpt2`; the first three when absent.
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "ref,mlp,tfm5m",
        hide_default_value = true
    )]
    pub(crate) works: Vec<String>,
    /// Modes, of `eager`, `compile`, `graph`, `compile_graph`, and `jit` in JAX; the first three when absent.
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "eager,compile,graph",
        hide_default_value = true
    )]
    pub(crate) modes: Vec<String>,
    /// Precisions, of `f32`, `tf32`, `autocast`, `bf16`; `f32` when absent, and always for `ref`.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = F32, hide_default_value = true)]
    pub(crate) precisions: Vec<String>,
    /// Repetitions per case; the script takes fewer, down to 200, where they would take too long.
    #[arg(long = "n", value_name = "N", default_value_t = 500)]
    pub(crate) num_repetitions: usize,
    /// Seconds, after which the script prints what there is.
    #[arg(long, value_name = "S", default_value_t = 145)]
    pub(crate) budget: u64,
    /// `AdamW` as one fused kernel, which is not what PyTorch does by itself.
    #[arg(long)]
    pub(crate) fused: bool,
    /// Query, key and value as one product.
    #[arg(long)]
    pub(crate) joint_qkv: bool,
}

impl Flags for PeerConfig {
    fn measure(&self, setting: &Setting) -> Result<Outcome, Error> {
        Ok(run(self)?.into_result(setting.clock.as_ref()).into())
    }
}

impl PeerConfig {
    /// Arguments of the script.
    fn arguments(&self) -> Vec<String> {
        let mut arguments = vec![
            format!("--works={}", self.works.join(",")),
            format!("--modes={}", self.modes.join(",")),
            format!("--precisions={}", self.precisions.join(",")),
            format!("--n={}", self.num_repetitions),
            format!("--budget={}", self.budget),
        ];
        arguments.extend(self.fused.then(|| "--fused".to_owned()));
        arguments.extend(self.joint_qkv.then(|| "--joint-qkv".to_owned()));
        arguments
    }
}

/// Times of one case.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct PeerTimes {
    /// Half of the repetitions took at most this.
    pub(crate) median_us: f64,
    /// 95 % took at most this.
    pub p95_us: f64,
    /// The fastest.
    pub(crate) min_us: f64,
    /// The slowest.
    pub(crate) max_us: f64,
    /// Mean of repetitions that were enqueued without waiting for each other.
    pub(crate) throughput_us: f64,
    /// The first repetition, with compilation or with warm-up and capture.
    pub(crate) first_ms: f64,
    /// Loss at the end.
    #[serde(default)]
    pub(crate) loss: Option<f64>,
}

/// One work in one mode and precision.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(try_from = "Row")]
pub(crate) struct PeerCase {
    /// Name of the work.
    pub(crate) work: String,
    /// Name of the mode.
    pub(crate) mode: String,
    /// Name of the precision.
    pub(crate) precision: String,
    /// Repetitions, 0 after a failure.
    pub(crate) num_repetitions: usize,
    /// The times, or why there are none.
    pub(crate) outcome: Result<PeerTimes, String>,
}

impl PeerCase {
    /// `torch.<work>.<mode>` in `f32`, else `torch.<work>.<precision>.<mode>`; `jax` for `jit`.
    pub(crate) fn name(&self) -> String {
        let Self { work, mode, precision, .. } = self;
        let library = if mode == "jit" { "jax" } else { "torch" };
        if precision == F32 {
            format!("{library}.{work}.{mode}")
        } else {
            format!("{library}.{work}.{precision}.{mode}")
        }
    }
}

/// A case as the script prints it.
#[derive(Deserialize)]
struct Row {
    work: String,
    mode: String,
    precision: String,
    n: usize,
    #[serde(default)]
    error: Option<String>,
    #[serde(flatten)]
    times: Option<PeerTimes>,
}

impl TryFrom<Row> for PeerCase {
    type Error = String;

    fn try_from(row: Row) -> Result<Self, String> {
        let outcome = match (row.error, row.times) {
            (Some(error), _) => Err(error),
            (None, Some(times)) if row.n > 0 => Ok(times),
            (None, _) => {
                return Err(format!(
                    "{} {} {} has neither all its times nor an error",
                    row.work, row.mode, row.precision
                ));
            }
        };
        Ok(Self { work: row.work, mode: row.mode, precision: row.precision, num_repetitions: row.n, outcome })
    }
}

/// What the script found.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PeerReport {
    /// Where it ran.
    pub(crate) environment: PeerEnvironment,
    /// Each case that was asked for.
    pub(crate) results: Vec<PeerCase>,
}

impl PeerReport {
    /// [`PeerCase::name`] in `us`, each repetition synchronized; with `.enqueued` the mean of repetitions that were
    /// not, one value; with `.first` the first one in `ms`. A case that failed has none.
    pub(crate) fn measurements(&self) -> BTreeMap<String, Measurement> {
        let mut measurements = BTreeMap::new();
        for case in &self.results {
            let Ok(times) = &case.outcome else { continue };
            let synchronized = Measurement {
                unit: "us".to_owned(),
                n: case.num_repetitions,
                min: times.min_us,
                median: times.median_us,
                p95: times.p95_us,
                max: times.max_us,
                samples: Vec::new(),
            };
            measurements.insert(case.name(), synchronized);
            for (name, unit, value) in [("enqueued", "us", times.throughput_us), ("first", "ms", times.first_ms)] {
                measurements
                    .extend(Measurement::of(unit, vec![value]).map(|one| (format!("{}.{name}", case.name()), one)));
            }
        }
        measurements
    }

    /// The result as it is committed; why a case failed is in `config` under its name with `.error`.
    pub(crate) fn into_result(self, clock: &dyn Clock) -> BenchResult {
        let mut config = self.environment.facts();
        let settings = [("fused_adam_w", self.environment.fused), ("joint_qkv", self.environment.joint_qkv)];
        config.extend(settings.map(|(key, value)| (key.to_owned(), value.to_string())));
        for case in &self.results {
            if let Err(error) = &case.outcome {
                config.insert(format!("{}.error", case.name()), error.clone());
            }
        }
        let notes = "torch.ref: an epoch of 4 steps, else one step, each with its batch copied into static inputs on the \
             device; every repetition synchronized. `.enqueued`: mean of as many repetitions with one \
             synchronization at the end. `.first`: the first repetition with compilation or capture. jax.*.jit: the \
             whole step in JAX, buffers donated. Names without a precision are f32; autocast has parameters in f32, bf16 all in bf16";
        BenchResult { config, measurements: self.measurements(), ..BenchResult::new("peer-torch", notes, clock) }
    }
}

/// Runs the script, which gives up by itself.
///
/// # Errors
/// [`PeerError`]; a case that fails is part of the report instead.
pub(crate) fn run(config: &PeerConfig) -> Result<PeerReport, PeerError> {
    run_script(SCRIPT, &config.python, &config.arguments())
}

#[cfg(test)]
mod tests {
    use leyline::clock::SystemClock;

    use super::*;
    use crate::models;
    use crate::torch::parse;

    const SAMPLE: &str = r#"{"environment": {"torch": "2.11.0+cu130", "cuda": "13.0", "gpu": "NVIDIA H200",
        "driver": "580.95.05", "fused": false, "joint_qkv": false}, "results": [
        {"work": "ref", "mode": "eager", "precision": "f32", "n": 500, "median_us": 742.5, "p95_us": 801.0, "min_us": 725.1,
         "max_us": 1204.9, "throughput_us": 731.2, "first_ms": 61.5, "loss": 1.25},
        {"work": "mlp", "mode": "graph", "precision": "tf32", "n": 200, "median_us": 148.0, "p95_us": 151.0, "min_us": 146.5,
         "max_us": 190.0, "throughput_us": 139.0, "first_ms": 88.0, "loss": 0.5},
        {"work": "tfm5m", "mode": "compile", "precision": "f32", "n": 0, "error": "BackendCompilerFailed: no C compiler"}]}"#;

    #[test]
    fn a_report_becomes_measurements_by_name() {
        let measurements = parse::<PeerReport>(SAMPLE).unwrap().measurements();
        let names: Vec<&str> = measurements.keys().map(String::as_str).collect();
        let expected = ["enqueued", "first"];
        let of = |case: &str| [vec![case.to_owned()], expected.map(|name| format!("{case}.{name}")).to_vec()].concat();
        assert_eq!(names, [of("torch.mlp.tf32.graph"), of("torch.ref.eager")].concat());
        let unit = |unit: &str| unit.to_owned();
        let synchronized = Measurement {
            unit: unit("us"),
            n: 500,
            min: 725.1,
            median: 742.5,
            p95: 801.0,
            max: 1204.9,
            samples: Vec::new(),
        };
        assert_eq!(measurements["torch.ref.eager"], synchronized);
        assert_eq!(Some(&measurements["torch.mlp.tf32.graph.enqueued"]), Measurement::of("us", vec![139.0]).as_ref());
        assert_eq!(Some(&measurements["torch.mlp.tf32.graph.first"]), Measurement::of("ms", vec![88.0]).as_ref());
    }

    #[test]
    fn a_result_says_where_it_ran_and_what_failed() {
        let result = parse::<PeerReport>(SAMPLE).unwrap().into_result(&SystemClock::new());
        assert_eq!(result.name, "peer-torch");
        assert_eq!(result.measurements.len(), 6);
        let found = ["torch", "gpu", "driver", "joint_qkv"].map(|key| result.config[key].as_str());
        assert_eq!(found, ["2.11.0+cu130", "NVIDIA H200", "580.95.05", "false"]);
        assert_eq!(result.config["torch.tfm5m.compile.error"], "BackendCompilerFailed: no C compiler");
    }

    #[test]
    fn half_a_report_is_refused_and_repeated() {
        for (text, message) in [
            ("Warning: hello", "printed no report but `Warning: hello`"),
            ("", "printed no report but ``"),
            (&SAMPLE.replace("\"min_us\": 725.1,", ""), "printed no report"),
            (&SAMPLE.replace("\"n\": 500", "\"n\": 0"), "printed no report"),
        ] {
            let error = parse::<PeerReport>(text).unwrap_err();
            assert!(error.to_string().contains(message), "{error}");
        }
    }

    #[test]
    fn arguments_are_those_of_the_script() {
        let config = PeerConfig { fused: true, joint_qkv: true, ..PeerConfig::by_default() };
        let arguments = config.arguments();
        let expected = [
            "--works=ref,mlp,tfm5m",
            "--modes=eager,compile,graph",
            "--precisions=f32",
            "--n=500",
            "--budget=145",
            "--fused",
            "--joint-qkv",
        ];
        assert_eq!(arguments, expected);
        for argument in &arguments {
            let name = argument.split('=').next().unwrap();
            assert!(SCRIPT.contains(&format!("\"{name}\"")), "{name}");
        }
        for name in
            models::ALL_NAMES.into_iter().chain([models::GPT2, "compile_graph", "jit", "tf32", "autocast", "bf16"])
        {
            assert!(SCRIPT.contains(&format!("\"{name}\"")), "{name}");
        }
        let known = models::NAMES.map(str::to_owned);
        assert_eq!(config.works, known);
    }

    #[test]
    fn a_missing_interpreter_is_named() {
        let config = PeerConfig { python: "no-such-python".into(), ..PeerConfig::by_default() };
        let error = run(&config).unwrap_err().to_string();
        assert_eq!(error, "no python interpreter was found as `no-such-python`");
    }
}
