//! The shared works in PyTorch, timed by a script that is part of this binary.
//!
//! ```text
//!   PeerConfig ─► python3 -c SCRIPT ─► JSON ─► PeerReport ─► measurements `torch.<work>[.<precision>].<mode>` ─► BenchResult
//! ```

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use leyline::clock::Clock;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::environment::Environment;
use crate::measure::Measurement;
use crate::result::{BenchResult, SCHEMA};

const SCRIPT: &str = concat!(include_str!("../../torch/report.py"), include_str!("../../torch/peer.py"));
/// The precision that names of measurements leave out.
const F32: &str = "f32";
/// Characters of the script's messages that an error repeats.
const TAIL_CHARS: usize = 2_000;

/// What the peer is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerConfig {
    /// The interpreter; a name is looked up in `PATH`.
    pub python: PathBuf,
    /// Works, of `ref`, `mlp`, `tfm5m`, `tfm30m`, `mlp4096`.
    pub works: Vec<String>,
    /// Modes, of `eager`, `compile`, `graph`, `compile_graph`.
    pub modes: Vec<String>,
    /// Precisions, of `f32`, `tf32`, `autocast`, `bf16`; `ref` runs in `f32` only.
    pub precisions: Vec<String>,
    /// Repetitions per case; the script takes fewer, down to 200, where they would take too long.
    pub num_repetitions: usize,
    /// `AdamW` as one fused kernel, which is not what PyTorch does by itself.
    pub fused: bool,
    /// Query, key and value as one product.
    pub joint_qkv: bool,
}

impl Default for PeerConfig {
    /// The three small works in the three plain modes, in `f32`.
    fn default() -> Self {
        let owned = |names: [&str; 3]| names.map(str::to_owned).to_vec();
        Self {
            python: PathBuf::from("python3"),
            works: owned(["ref", "mlp", "tfm5m"]),
            modes: owned(["eager", "compile", "graph"]),
            num_repetitions: 500,
            precisions: vec![F32.to_owned()],
            fused: false,
            joint_qkv: false,
        }
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
        ];
        arguments.extend(self.fused.then(|| "--fused".to_owned()));
        arguments.extend(self.joint_qkv.then(|| "--joint-qkv".to_owned()));
        arguments
    }
}

/// The script and its output.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// There is no such interpreter.
    #[error("no python interpreter was found as `{}`", python.display())]
    PythonMissing {
        /// What was looked for.
        python: PathBuf,
    },
    /// The interpreter could not be run.
    #[error("running `{}`", python.display())]
    Start {
        /// The interpreter.
        python: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The script ended with an error, for example because PyTorch is not installed.
    #[error("the pytorch peer failed ({status}): {}", if stderr_tail.is_empty() { "no message" } else { stderr_tail })]
    Failed {
        /// Exit code or signal.
        status: String,
        /// The end of what it wrote to standard error.
        stderr_tail: String,
    },
    /// The script printed something else than its report.
    #[error("the pytorch peer printed no report but `{start}`")]
    BadReport {
        /// The start of what it printed.
        start: String,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
}

/// Where the peer ran; unknown facts are absent.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerEnvironment {
    /// Version of PyTorch.
    pub torch: String,
    /// Version of CUDA that PyTorch was built with.
    pub cuda: Option<String>,
    /// Name of the device.
    pub gpu: Option<String>,
    /// Version of the driver.
    pub driver: Option<String>,
    /// Whether `AdamW` was one fused kernel.
    #[serde(default)]
    pub fused: bool,
    /// Whether query, key and value were one product.
    #[serde(default)]
    pub joint_qkv: bool,
}

impl PeerEnvironment {
    /// Versions and device by name.
    pub(super) fn facts(&self) -> BTreeMap<String, String> {
        let known = |fact: &Option<String>| fact.clone().unwrap_or_else(|| "unknown".to_owned());
        [
            ("torch", self.torch.clone()),
            ("cuda", known(&self.cuda)),
            ("gpu", known(&self.gpu)),
            ("driver", known(&self.driver)),
        ]
        .map(|(key, value)| (key.to_owned(), value))
        .into()
    }
}

/// Times of one case.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct PeerTimes {
    /// Half of the repetitions took at most this.
    pub median_us: f64,
    /// 95 % took at most this.
    pub p95_us: f64,
    /// The fastest.
    pub min_us: f64,
    /// The slowest.
    pub max_us: f64,
    /// Mean of repetitions that were enqueued without waiting for each other.
    pub throughput_us: f64,
    /// The first repetition, with compilation or with warm-up and capture.
    pub first_ms: f64,
    /// Loss at the end.
    #[serde(default)]
    pub loss: Option<f64>,
}

/// One work in one mode and precision.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(try_from = "Row")]
pub struct PeerCase {
    /// Name of the work.
    pub work: String,
    /// Name of the mode.
    pub mode: String,
    /// Name of the precision.
    pub precision: String,
    /// Repetitions, 0 after a failure.
    pub num_repetitions: usize,
    /// The times, or why there are none.
    pub outcome: Result<PeerTimes, String>,
}

impl PeerCase {
    /// `torch.<work>.<mode>` in `f32`, else `torch.<work>.<precision>.<mode>`.
    #[must_use]
    pub fn name(&self) -> String {
        let Self { work, mode, precision, .. } = self;
        if precision == F32 { format!("torch.{work}.{mode}") } else { format!("torch.{work}.{precision}.{mode}") }
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
pub struct PeerReport {
    /// Where it ran.
    pub environment: PeerEnvironment,
    /// Each case that was asked for.
    pub results: Vec<PeerCase>,
}

impl PeerReport {
    /// Reads what the script prints.
    ///
    /// # Errors
    /// [`PeerError::BadReport`].
    pub fn parse(text: &str) -> Result<Self, PeerError> {
        parse(text)
    }

    /// [`PeerCase::name`] in `us`, each repetition synchronized; with `.enqueued` the mean of repetitions that were
    /// not, one value; with `.first` the first one in `ms`. A case that failed has none.
    #[must_use]
    pub fn measurements(&self) -> BTreeMap<String, Measurement> {
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
    #[must_use]
    pub fn into_result(self, clock: &dyn Clock) -> BenchResult {
        let mut config = self.environment.facts();
        let settings = [("fused_adam_w", self.environment.fused), ("joint_qkv", self.environment.joint_qkv)];
        config.extend(settings.map(|(key, value)| (key.to_owned(), value.to_string())));
        for case in &self.results {
            if let Err(error) = &case.outcome {
                config.insert(format!("{}.error", case.name()), error.clone());
            }
        }
        BenchResult {
            schema: SCHEMA,
            name: "peer-torch".to_owned(),
            command: "cargo run --release -p esper -- bench peer-torch --out DIR".to_owned(),
            notes:
                "torch.ref: an epoch of 4 steps, else one step, each with its batch copied into static inputs on the \
                    device; every repetition synchronized. `.enqueued`: mean of as many repetitions with one \
                    synchronization at the end. `.first`: the first repetition with compilation or capture. Names without \
                    a precision are f32; autocast has parameters in f32, bf16 all in bf16"
                    .to_owned(),
            environment: Environment::detect(clock),
            config,
            measurements: self.measurements(),
            metrics: Vec::new(),
        }
    }
}

/// Runs the script, which gives up by itself after two and a half minutes.
///
/// # Errors
/// [`PeerError`]; a case that fails is part of the report instead.
/// # Sync
/// none in this process
pub fn run(config: &PeerConfig) -> Result<PeerReport, PeerError> {
    run_script(SCRIPT, &config.python, &config.arguments())
}

/// The report that a script prints, as the type that the caller expects.
pub(super) fn run_script<R: DeserializeOwned>(
    script: &str,
    python: &Path,
    arguments: &[String],
) -> Result<R, PeerError> {
    let output =
        Command::new(python).args(["-c", script]).args(arguments).stdin(Stdio::null()).output().map_err(|source| {
            match source.kind() {
                io::ErrorKind::NotFound => PeerError::PythonMissing { python: python.to_owned() },
                _ => PeerError::Start { python: python.to_owned(), source },
            }
        })?;
    if !output.status.success() {
        let stderr_tail = tail(&String::from_utf8_lossy(&output.stderr));
        return Err(PeerError::Failed { status: output.status.to_string(), stderr_tail });
    }
    parse(&String::from_utf8_lossy(&output.stdout))
}

fn parse<R: DeserializeOwned>(text: &str) -> Result<R, PeerError> {
    serde_json::from_str(text)
        .map_err(|source| PeerError::BadReport { start: text.trim().chars().take(200).collect(), source })
}

/// The end says what went wrong; the start of a long trace-back does not.
fn tail(text: &str) -> String {
    let text = text.trim();
    let skipped = text.chars().count().saturating_sub(TAIL_CHARS);
    text.chars().skip(skipped).collect()
}

#[cfg(test)]
mod tests {
    use leyline::clock::SystemClock;

    use super::*;
    use crate::works::models;

    const SAMPLE: &str = r#"{"environment": {"torch": "2.11.0+cu130", "cuda": "13.0", "gpu": "NVIDIA H200",
        "driver": "580.95.05", "fused": false, "joint_qkv": false}, "results": [
        {"work": "ref", "mode": "eager", "precision": "f32", "n": 500, "median_us": 742.5, "p95_us": 801.0, "min_us": 725.1,
         "max_us": 1204.9, "throughput_us": 731.2, "first_ms": 61.5, "loss": 1.25},
        {"work": "mlp", "mode": "graph", "precision": "tf32", "n": 200, "median_us": 148.0, "p95_us": 151.0, "min_us": 146.5,
         "max_us": 190.0, "throughput_us": 139.0, "first_ms": 88.0, "loss": 0.5},
        {"work": "tfm5m", "mode": "compile", "precision": "f32", "n": 0, "error": "BackendCompilerFailed: no C compiler"}]}"#;

    #[test]
    fn a_report_becomes_measurements_by_name() {
        let measurements = PeerReport::parse(SAMPLE).unwrap().measurements();
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
        let result = PeerReport::parse(SAMPLE).unwrap().into_result(&SystemClock::new());
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
            let error = PeerReport::parse(text).unwrap_err();
            assert!(error.to_string().contains(message), "{error}");
        }
    }

    #[test]
    fn arguments_are_those_of_the_script() {
        let config = PeerConfig { fused: true, joint_qkv: true, ..PeerConfig::default() };
        let arguments = config.arguments();
        let expected = [
            "--works=ref,mlp,tfm5m",
            "--modes=eager,compile,graph",
            "--precisions=f32",
            "--n=500",
            "--fused",
            "--joint-qkv",
        ];
        assert_eq!(arguments, expected);
        for argument in &arguments {
            let name = argument.split('=').next().unwrap();
            assert!(SCRIPT.contains(&format!("\"{name}\"")), "{name}");
        }
        for name in models::ALL_NAMES.into_iter().chain(["compile_graph", "tf32", "autocast", "bf16"]) {
            assert!(SCRIPT.contains(&format!("\"{name}\"")), "{name}");
        }
        let known = models::NAMES.map(str::to_owned);
        assert_eq!(config.works, known);
    }

    #[test]
    fn a_missing_interpreter_is_named() {
        let config = PeerConfig { python: "no-such-python".into(), ..PeerConfig::default() };
        let error = run(&config).unwrap_err().to_string();
        assert_eq!(error, "no python interpreter was found as `no-such-python`");
    }

    /// A shell stands in for the interpreter: both take a script after `-c`.
    fn in_shell(script: &str) -> Result<PeerReport, PeerError> {
        run_script(script, Path::new("sh"), &PeerConfig::default().arguments())
    }

    #[test]
    fn the_output_of_the_process_is_the_report() {
        let report = in_shell(&format!("echo noise >&2; echo '{SAMPLE}'")).unwrap();
        assert_eq!(report, PeerReport::parse(SAMPLE).unwrap());
    }

    #[test]
    fn a_failed_script_shows_the_end_of_its_messages() {
        let error = in_shell("printf '%03000d' 0 >&2; echo 'no CUDA device' >&2; exit 3").unwrap_err();
        let PeerError::Failed { status, stderr_tail } = &error else { panic!("{error}") };
        assert!(status.contains('3'), "{status}");
        assert_eq!(stderr_tail.len(), TAIL_CHARS);
        assert!(error.to_string().ends_with("no CUDA device"), "{error}");
        assert!(in_shell("exit 4").unwrap_err().to_string().ends_with("no message"));
        assert!(matches!(in_shell("echo {}").unwrap_err(), PeerError::BadReport { .. }));
    }
}
