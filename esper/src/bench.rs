//! `esper bench`: measures, and compares measurements.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use baselines::compare::compare;
use baselines::environment::Build;
use baselines::figures::{Stale, stale};
use baselines::peer::PeerRatios;
use baselines::result::BenchResult;
use baselines::table::table;
use baselines::work::{Needs, Outcome, Setting, Work};
use baselines::works;
use clap::{ArgMatches, Args, Command, FromArgMatches, Subcommand};
use leyline::clock::SystemClock;

use crate::config::DeviceName;
use crate::exit::UsageError;
use crate::output;
use crate::run::surround;
use crate::wire::DESCRIPTORS;

/// From the build script, which looked at the repository.
pub(crate) const BUILD: Build = Build {
    commit: if env!("ESPER_BUILD_COMMIT").is_empty() { None } else { Some(env!("ESPER_BUILD_COMMIT")) },
    dirty: env!("ESPER_BUILD_DIRTY").len() == "true".len(),
};

/// What this build can do.
pub(crate) const DEFAULT_DEVICE: &str = if cfg!(feature = "cuda") { "cuda:0" } else { "cpu" };

/// Sub-commands of `esper bench`: the works that `baselines` has, and what is done with their results.
#[derive(Debug, Clone)]
pub enum BenchCommand {
    /// Measures.
    Work(&'static Work, ArgMatches),
    /// All else.
    Tool(Tool),
}

/// Sub-commands of `esper bench` that are no work.
#[derive(Debug, Clone, Subcommand)]
pub enum Tool {
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

/// Where a measurement goes.
#[derive(Debug, Clone, Args)]
pub struct OutArgs {
    /// Folder for the result as JSON; printed only when absent.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

/// Flags of a measurement.
#[derive(Debug, Clone, Args)]
pub struct MeasureArgs {
    #[command(flatten)]
    out: OutArgs,
    /// `cpu` or `cuda:N`; most works need a GPU.
    #[arg(long, value_name = "DEVICE", default_value = DEFAULT_DEVICE, value_parser = device_name)]
    pub device: DeviceName,
}

/// PyTorch has flags of its own for the device.
fn command_of(work: &Work) -> Command {
    let command = Command::new(work.name);
    work.flags(match work.needs {
        Needs::Torch => OutArgs::augment_args(command),
        Needs::Nothing | Needs::Gpu => MeasureArgs::augment_args(command),
    })
}

impl Subcommand for BenchCommand {
    fn augment_subcommands(command: Command) -> Command {
        Tool::augment_subcommands(command.subcommands(works::ALL.iter().map(command_of)))
    }

    fn augment_subcommands_for_update(command: Command) -> Command {
        Self::augment_subcommands(command)
    }

    fn has_subcommand(name: &str) -> bool {
        works::named(name).is_some() || Tool::has_subcommand(name)
    }
}

impl FromArgMatches for BenchCommand {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let work = matches.subcommand().and_then(|(name, flags)| Some((works::named(name)?, flags)));
        match work {
            Some((work, flags)) => Ok(Self::Work(work, flags.clone())),
            None => Tool::from_arg_matches(matches).map(Self::Tool),
        }
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl BenchCommand {
    /// Runs the sub-command.
    ///
    /// # Errors
    /// When a work fails or a file is no result.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Work(work, flags) => measure(work, &flags),
            Self::Tool(Tool::All(args)) => measure_all(&args),
            Self::Tool(Tool::PeerRatio { graphs, peer }) => {
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
            Self::Tool(Tool::Figures { check }) => figures(check),
            Self::Tool(Tool::Compare { before, after }) => {
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

fn measure(work: &Work, flags: &ArgMatches) -> anyhow::Result<ExitCode> {
    let OutArgs { out } = OutArgs::from_arg_matches(flags)?;
    let device = match work.needs {
        Needs::Torch => DeviceName::Cpu,
        Needs::Nothing | Needs::Gpu => MeasureArgs::from_arg_matches(flags)?.device,
    };
    may_be_written(out.as_deref(), BUILD)?;
    show(work.run(flags, &setting(device))?, out.as_deref())?;
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
fn measure_all(MeasureArgs { out: OutArgs { out }, device }: &MeasureArgs) -> anyhow::Result<ExitCode> {
    may_be_written(out.as_deref(), BUILD)?;
    let setting = setting(*device);
    for work in works::ALL {
        match work.run_as_it_is(&setting) {
            Ok(outcome) => show(outcome, out.as_deref())?,
            Err(error) if error.is_unavailable() => {
                output::print(&format!("{}\n  skipped: {}\n", work.name, error.chain()))?;
            }
            Err(error) => return Err(anyhow::Error::new(error).context(format!("bench {}", work.name))),
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn setting(device: DeviceName) -> Setting {
    let gpu = match device {
        DeviceName::Cpu => None,
        DeviceName::Cuda(index) => Some(index),
    };
    Setting { surround, descriptors: DESCRIPTORS, ..Setting::alone(Arc::new(SystemClock::new()), gpu) }
}

/// Prints a result as a table, and writes it when a folder is given.
fn show(mut outcome: Outcome, out: Option<&Path>) -> anyhow::Result<()> {
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
    fn the_cost_of_telemetry_is_measured_beside_a_server_that_is_asked_and_attacked_with_every_packet_accounted_for() {
        let work = works::named("telemetry-cost").unwrap();
        let flags = ["", "--pairs", "1", "--block-ms", "20", "--stall-s", "0.2", "--requests", "48"];
        let flags = work.flags(Command::new(work.name)).get_matches_from(flags);
        let result = work.run(&flags, &setting(DeviceName::Cpu)).unwrap().result;
        let median = |name: &str| result.measurements[name].median;
        for arm in ["nothing", "everything", "hostile", "sink_works", "sink_stalled", "sink_closed", "disk_full"] {
            assert!(median(&format!("{arm}.p99_over")) > 0.0, "{arm}");
            let [emitted, delivered, dropped] =
                ["emitted", "delivered", "dropped"].map(|part| median(&format!("{arm}.{part}")));
            assert!(emitted > 0.0 && (emitted - delivered - dropped).abs() < 0.5, "{arm}");
        }
        for (arm, drops) in [("everything", false), ("sink_works", false), ("disk_full", true)] {
            assert_eq!(median(&format!("{arm}.dropped")) > 0.0, drops, "{arm}");
        }
        assert!(median("hostile.requests") >= 48.0 && median("packet.metrics") > 100.0);
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
