//! `esper bench`: measures, and compares measurements.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use baselines::Error;
use baselines::compare::compare;
use baselines::environment::Build;
use baselines::figures::{Stale, stale};
use baselines::peer::PeerRatios;
use baselines::result::BenchResult;
use baselines::table::table;
use baselines::works::gpu::{CompileBenchConfig, Jit, cold_start_child};
use baselines::works::gradient::torch::GradientPeerConfig;
use baselines::works::models::Precision;
use baselines::works::peer_torch::PeerConfig;
use baselines::works::{self, Outcome, Setting};
use clap::Subcommand;
use leyline::clock::SystemClock;

use crate::config::DeviceName;
use crate::exit::UsageError;
use crate::output;

/// From the build script, which looked at the repository.
pub(crate) const BUILD: Build = Build {
    commit: if env!("ESPER_BUILD_COMMIT").is_empty() { None } else { Some(env!("ESPER_BUILD_COMMIT")) },
    dirty: env!("ESPER_BUILD_DIRTY").len() == "true".len(),
};

/// What this build can do.
const DEFAULT_DEVICE: &str = if cfg!(feature = "cuda") { "cuda:0" } else { "cpu" };

/// Sub-commands of `esper bench`.
#[derive(Debug, Clone, Subcommand)]
pub enum BenchCommand {
    /// The reference workload on the CPU: linear 16→4, 16 samples, batch 4.
    Reference(MeasureArgs),
    /// Launches of kernels: eager against one replay of a graph, with a plot.
    LaunchModel(MeasureArgs),
    /// Captures by part: ten fresh set-ups, and ten captures of one model.
    CaptureProfile(MeasureArgs),
    /// Copies to the device beside computation.
    Staging(MeasureArgs),
    /// What graphs promise: the bits of eager steps, typed refusals, memory that comes back.
    GraphCheck(MeasureArgs),
    /// Whole training steps: eager against replayed.
    GraphBench(MeasureArgs),
    /// What compiled steps promise: the bits of captured steps, layers, faults that are found.
    CompileCheck(MeasureArgs),
    /// Whole training steps: eager, captured, compiled; beside PyTorch when asked for.
    CompileBench(CompileBenchArgs),
    /// A training run under NVIDIA's memory checker.
    Memcheck(MeasureArgs),
    /// The first seconds of a process, with and without compiled kernels.
    ColdStart(MeasureArgs),
    /// The process that `cold-start` starts.
    #[command(hide = true)]
    ColdStartChild {
        /// `sequential`, `parallel` or `demand`.
        #[arg(long, value_name = "WAY")]
        jit: Jit,
        /// `cuda:N`.
        #[arg(long, value_name = "DEVICE", value_parser = device_name)]
        device: DeviceName,
    },
    /// The shared works in PyTorch, which must be installed.
    PeerTorch(PeerArgs),
    /// Combinations of gradients on the CPU: the engine, projections vector by vector, and the memory's bandwidth.
    GradientCpu(MeasureArgs),
    /// Combinations of gradients and whole steps on a GPU, eager and captured.
    GradientBench(MeasureArgs),
    /// Combinations of gradients in PyTorch, which must be installed.
    PeerGradient(PeerGradientArgs),
    /// Attribution among seeds in each mode, and the isolation audit, on the CPU.
    Attribution(MeasureArgs),
    /// What seeds cost a forward and backward pass, in each phase of their lives; on the CPU with `--device cpu`.
    SeedCost(MeasureArgs),
    /// Prefetch of blueprint weights on the CPU: what it adds to a store, and a store that dies in the middle.
    Prefetch(MeasureArgs),
    /// Every work that this build and this machine can run.
    All(MeasureArgs),
    /// Ratios of replayed steps to the CUDA graphs of PyTorch, with the nodes that the time goes to.
    PeerRatio {
        /// Result of `graph-bench`.
        graphs: PathBuf,
        /// Result of `peer-torch`, from the same machine.
        peer: PathBuf,
    },
    /// Writes the figures of `README.md` and `docs/` anew from the results under `baselines/perf`; run in the repository.
    Figures {
        /// Changes nothing, and fails when a figure differs.
        #[arg(long)]
        check: bool,
    },
    /// Ratios of two results; fails when the second is worse past a threshold, or lost a measurement or a metric.
    Compare {
        /// Result before.
        before: PathBuf,
        /// Result after.
        after: PathBuf,
    },
}

/// Flags of a measurement.
#[derive(Debug, Clone, clap::Args)]
pub struct MeasureArgs {
    /// Folder for the result as JSON; printed only when absent.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// `cpu` or `cuda:N`; most works need a GPU, and `reference` always runs on the CPU.
    #[arg(long, value_name = "DEVICE", default_value = DEFAULT_DEVICE, value_parser = device_name)]
    pub device: DeviceName,
}

/// Flags of `esper bench peer-torch`.
#[derive(Debug, Clone, clap::Args)]
pub struct PeerArgs {
    /// Folder for the result as JSON; printed only when absent.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Interpreter with PyTorch.
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    pub python: PathBuf,
    /// Works, of `ref`, `mlp`, `tfm5m`, `tfm30m`, `mlp4096`; the first three when absent.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub works: Option<Vec<String>>,
    /// Modes, of `eager`, `compile`, `graph`, `compile_graph`; the first three when absent.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub modes: Option<Vec<String>>,
    /// Precisions, of `f32`, `tf32`, `autocast`, `bf16`; `f32` when absent.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub precisions: Option<Vec<String>>,
    /// Repetitions per case.
    #[arg(long, value_name = "N")]
    pub n: Option<usize>,
    /// `AdamW` as one fused kernel.
    #[arg(long)]
    pub fused: bool,
    /// Query, key and value as one product.
    #[arg(long)]
    pub joint_qkv: bool,
}

impl PeerArgs {
    fn config(&self) -> PeerConfig {
        let default = PeerConfig::default();
        PeerConfig {
            python: self.python.clone(),
            works: self.works.clone().unwrap_or(default.works),
            modes: self.modes.clone().unwrap_or(default.modes),
            num_repetitions: self.n.unwrap_or(default.num_repetitions),
            precisions: self.precisions.clone().unwrap_or(default.precisions),
            fused: self.fused,
            joint_qkv: self.joint_qkv,
        }
    }
}

/// Flags of `esper bench compile-bench`.
#[derive(Debug, Clone, clap::Args)]
pub struct CompileBenchArgs {
    #[command(flatten)]
    measure: MeasureArgs,
    /// Works, of `ref`, `mlp`, `tfm5m`, `tfm30m`, `mlp4096`; all when absent.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub works: Option<Vec<String>>,
    /// Precisions, of `f32`, `tf32`, `bf16`; all when absent.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = precision)]
    pub precisions: Option<Vec<Precision>>,
    /// Measures the same works in PyTorch afterwards, and adds the ratios.
    #[arg(long)]
    pub with_peer: bool,
    /// Interpreter with PyTorch.
    #[arg(long, value_name = "PROGRAM", default_value = "python3", requires = "with_peer")]
    pub python: PathBuf,
    /// Modes of the peer; the ratios are to `graph`.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "graph", requires = "with_peer")]
    pub peer_modes: Vec<String>,
}

impl CompileBenchArgs {
    fn config(&self) -> CompileBenchConfig {
        let default = CompileBenchConfig::default();
        let peer = || PeerConfig {
            python: self.python.clone(),
            modes: self.peer_modes.clone(),
            num_repetitions: 200,
            ..PeerConfig::default()
        };
        CompileBenchConfig {
            works: self.works.clone().unwrap_or(default.works),
            precisions: self.precisions.clone().unwrap_or(default.precisions),
            peer: self.with_peer.then(peer),
        }
    }
}

fn precision(name: &str) -> Result<Precision, String> {
    let known = Precision::ALL;
    let found = known.into_iter().find(|precision| precision.name() == name);
    found.ok_or_else(|| format!("expected one of {}", known.map(Precision::name).join(", ")))
}

/// Flags of `esper bench peer-gradient`.
#[derive(Debug, Clone, clap::Args)]
pub struct PeerGradientArgs {
    /// Folder for the result as JSON; printed only when absent.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Interpreter with PyTorch.
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    pub python: PathBuf,
    /// Numbers of microbatches; 2, 4, 8 and 16 when absent.
    #[arg(long, value_name = "COUNTS", value_delimiter = ',')]
    pub rows: Option<Vec<usize>>,
    /// Numbers of parameters; 1, 10 and 100 million when absent.
    #[arg(long, value_name = "COUNTS", value_delimiter = ',')]
    pub elements: Option<Vec<usize>>,
    /// Ways of combining, of `jd`, `jd_floats`, `torchjd`, `sequential`; all when absent.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub forms: Option<Vec<String>>,
    /// Repetitions of a quantity at most.
    #[arg(long, value_name = "N")]
    pub n: Option<usize>,
    /// On the CPU instead of a GPU.
    #[arg(long)]
    pub cpu: bool,
}

impl PeerGradientArgs {
    fn config(&self) -> GradientPeerConfig {
        let default = GradientPeerConfig::default();
        GradientPeerConfig {
            python: self.python.clone(),
            num_rows: self.rows.clone().unwrap_or(default.num_rows),
            num_elements: self.elements.clone().unwrap_or(default.num_elements),
            forms: self.forms.clone().unwrap_or(default.forms),
            num_repetitions: self.n.unwrap_or(default.num_repetitions),
            on_cpu: self.cpu,
        }
    }
}

impl BenchCommand {
    /// Runs the sub-command.
    ///
    /// # Errors
    /// When a work fails or a file is no result.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Reference(args) => measure("reference", &args),
            Self::LaunchModel(args) => measure("launch-model", &args),
            Self::GradientCpu(args) => measure("gradient-cpu", &args),
            Self::Prefetch(args) => measure("prefetch", &args),
            Self::GradientBench(args) => measure("gradient-bench", &args),
            Self::Attribution(args) => measure("attribution", &args),
            Self::SeedCost(args) => measure("seed-cost", &args),
            Self::CaptureProfile(args) => measure("capture-profile", &args),
            Self::Memcheck(args) => measure("memcheck", &args),
            Self::GraphCheck(args) => measure("graph-check", &args),
            Self::GraphBench(args) => measure("graph-bench", &args),
            Self::CompileCheck(args) => measure("compile-check", &args),
            Self::CompileBench(args) => {
                let setting = setting(args.measure.device);
                measured(args.measure.out.as_ref(), || works::compile_bench(&args.config(), &setting))
            }
            Self::Staging(args) => measure("staging", &args),
            Self::ColdStart(args) => measure("cold-start", &args),
            Self::ColdStartChild { jit, device } => {
                let report = cold_start_child(jit, &setting(device))?;
                output::print(&format!("{}\n", serde_json::to_string(&report)?))?;
                Ok(ExitCode::SUCCESS)
            }
            Self::PeerTorch(args) => {
                measured(args.out.as_ref(), || works::peer(&args.config(), &setting(DeviceName::Cpu)))
            }
            Self::PeerGradient(args) => {
                measured(args.out.as_ref(), || works::gradient_peer(&args.config(), &setting(DeviceName::Cpu)))
            }
            Self::All(args) => measure_all(&args),
            Self::PeerRatio { graphs, peer } => {
                let ratios = PeerRatios::new(&BenchResult::read(&graphs)?, &BenchResult::read(&peer)?);
                if ratios.rows.is_empty() {
                    return Err(UsageError(
                        "the two results have no work in common: expected one of `graph-bench` and one of `peer-torch`"
                            .to_owned(),
                    )
                    .into());
                }
                output::print(&ratios.to_string())?;
                Ok(ExitCode::SUCCESS)
            }
            Self::Figures { check } => figures(check),
            Self::Compare { before, after } => {
                let comparison = compare(&BenchResult::read(&before)?, &BenchResult::read(&after)?);
                output::print(&comparison.to_string())?;
                Ok(if comparison.passed() { ExitCode::SUCCESS } else { ExitCode::from(crate::exit::FAILED) })
            }
        }
    }
}

fn figures(check: bool) -> anyhow::Result<ExitCode> {
    let root = Path::new(".");
    if !root.join("baselines/perf").is_dir() {
        return Err(
            UsageError("bench figures: expected the root of the repository as the current folder".to_owned()).into()
        );
    }
    let found = stale(root)?;
    for Stale { path, text, difference } in &found {
        output::print(&format!("{}: {difference}\n", path.display()))?;
        if !check {
            std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
        }
    }
    Ok(if check && !found.is_empty() { ExitCode::from(crate::exit::FAILED) } else { ExitCode::SUCCESS })
}

fn measure(name: &str, args: &MeasureArgs) -> anyhow::Result<ExitCode> {
    measured(args.out.as_ref(), || works::run(name, &setting(args.device)))
}

fn measured(out: Option<&PathBuf>, work: impl FnOnce() -> Result<Outcome, Error>) -> anyhow::Result<ExitCode> {
    may_be_written(out.map(PathBuf::as_path), BUILD)?;
    show(work()?, out)?;
    Ok(ExitCode::SUCCESS)
}

/// Results under `baselines/perf` are committed, so they must say which code they belong to.
pub(crate) fn may_be_written(out: Option<&Path>, build: Build) -> anyhow::Result<()> {
    let Some(dir) = out else { return Ok(()) };
    let dir = std::path::absolute(dir).with_context(|| dir.display().to_string())?;
    let parts: Vec<_> = dir.components().map(|part| part.as_os_str()).collect();
    let is_kept = parts.windows(2).any(|pair| pair == ["baselines", "perf"]);
    if is_kept && !build.is_known() {
        let why = if build.commit.is_none() { "knows no commit" } else { "has sources that differ from its commit" };
        return Err(UsageError(format!(
            "{}: results there are committed, and this build {why}; expected a build of a committed tree, or \
             another folder",
            dir.display()
        ))
        .into());
    }
    Ok(())
}

/// Works that cannot run here are named with what they lack; one that fails ends the command.
fn measure_all(args: &MeasureArgs) -> anyhow::Result<ExitCode> {
    may_be_written(args.out.as_deref(), BUILD)?;
    let setting = setting(args.device);
    for name in works::NAMES {
        match works::run(name, &setting) {
            Ok(outcome) => show(outcome, args.out.as_ref())?,
            Err(error) if error.is_unavailable() => {
                output::print(&format!("{name}\n  skipped: {}\n", error.chain()))?;
            }
            Err(error) => return Err(anyhow::Error::new(error).context(format!("bench {name}"))),
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn setting(device: DeviceName) -> Setting {
    let gpu = match device {
        DeviceName::Cpu => None,
        DeviceName::Cuda(index) => Some(index),
    };
    Setting { clock: Arc::new(SystemClock::new()), gpu }
}

/// Prints a result as a table, and writes it when a folder is given.
fn show(mut outcome: Outcome, out: Option<&PathBuf>) -> anyhow::Result<()> {
    outcome.result.environment = outcome.result.environment.built_from(BUILD);
    let result = &outcome.result;
    let mut text = format!("{}\n", result.name);
    if let Some(gpu) = &result.environment.gpu {
        text += &format!("  on {gpu}\n");
    }
    text += &table(&result.measurements);
    if let Some(dir) = out {
        for path in outcome.write(dir)? {
            text += &format!("  written to {}\n", path.display());
        }
    }
    Ok(output::print(&text)?)
}

pub(crate) fn device_name(name: &str) -> Result<DeviceName, String> {
    DeviceName::parse(name).ok_or_else(|| format!("expected one of {}", DeviceName::ACCEPTED.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(out: &str, commit: Option<&'static str>, dirty: bool, complaint: Option<&str>) {
        let found = may_be_written(Some(Path::new(out)), Build { commit, dirty });
        match (found, complaint) {
            (Ok(()), None) => {}
            (Err(error), Some(complaint)) => assert!(error.to_string().contains(complaint), "{error}"),
            (found, complaint) => panic!("{out}: {found:?}, expected {complaint:?}"),
        }
    }

    #[test]
    fn committed_results_need_a_build_of_a_committed_tree() {
        check("baselines/perf/seeds", Some("abc"), false, None);
        check("baselines/perf/seeds", Some("abc"), true, Some("differ from its commit"));
        check("/any/baselines/perf", None, false, Some("knows no commit"));
        check("perf", Some("abc"), true, None);
        check("/tmp/out", None, false, None);
    }

    #[test]
    fn the_build_names_the_commit_of_its_repository() {
        let head = std::process::Command::new("git").args(["rev-parse", "HEAD"]).output();
        let head = head.ok().filter(|output| output.status.success());
        let head = head.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
        if let (Some(head), Some(commit)) = (head, BUILD.commit) {
            assert_eq!(commit, head);
        }
    }
}
