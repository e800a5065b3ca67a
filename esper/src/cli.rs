//! The command line: flags and sub-commands, each handed to its own module.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::config::DeviceName;
use crate::{bench, check, decode, library, run, study, warm_up};

/// Trains networks that grow while they train.
#[derive(Debug, Parser)]
#[command(name = "esper", version, about, propagate_version = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Train a network that grows; digits on the CPU when nothing else is said.
    Train(TrainArgs),
    /// Write the report page of a run again and print its summary.
    Report(ReportArgs),
    /// Check a configuration file without training.
    CheckConfig(CheckArgs),
    /// Take seeds out of runs.
    #[command(subcommand)]
    Seeds(SeedsCommand),
    /// Read telemetry files.
    #[command(subcommand)]
    Telemetry(TelemetryCommand),
    /// Measure, and compare measurements.
    #[command(subcommand)]
    Bench(bench::BenchCommand),
    /// Have the driver of a GPU compile the tensor library's kernels ahead of the first run on a machine.
    WarmUp(WarmUpArgs),
    /// Compare policies over paired random seeds and print the table.
    Study(study::StudyArgs),
}

/// Flags of `esper train`.
#[derive(Debug, Clone, Args)]
pub struct TrainArgs {
    /// TOML file with settings; see `esper check-config`.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// `digits`, `mnist1d`, `mnist`, `fashion-mnist`, or the path of a CSV file with the label in the last column.
    #[arg(long, value_name = "NAME|PATH")]
    pub data: Option<String>,
    /// `cpu`, or `cuda:N` in a build with the `cuda` feature.
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
    /// `heuristic`, `off`, `fixed` or `random`.
    #[arg(long, value_name = "NAME")]
    pub policy: Option<String>,
    /// Passes over the training data.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub epochs: Option<String>,
    /// Seed of everything random.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub seed: Option<String>,
    /// Run folder; must be new or empty unless `--resume` is given. Default: a name of its own,
    /// `runs/DATA-POLICY-SEED-TIME-RANDOM`.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Continue the run in `--out` from its newest checkpoint that verifies, with its configuration; only `--epochs` may
    /// differ.
    #[arg(long, requires = "out")]
    pub resume: bool,
    /// Any other setting, for example `--set train.batch.batch_size=16`; may be given several times.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Print one JSON object with the summary as the last line on standard output.
    #[arg(long)]
    pub json: bool,
    /// How progress is shown on standard error.
    #[arg(long, value_enum, default_value_t = ProgressArg::Auto)]
    pub progress: ProgressArg,
}

/// How progress is shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum ProgressArg {
    /// A display on a terminal, plain lines otherwise.
    #[default]
    Auto,
    /// Plain lines.
    Plain,
    /// Nothing.
    Off,
}

/// Flags of `esper report`.
#[derive(Debug, Clone, Args)]
pub struct ReportArgs {
    /// Folder that `esper train` wrote.
    pub run_dir: PathBuf,
}

/// Flags of `esper check-config`.
#[derive(Debug, Clone, Args)]
pub struct CheckArgs {
    /// TOML file.
    pub file: PathBuf,
    /// Settings on top of the file, as for `esper train`.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
}

#[derive(Debug, Subcommand)]
enum SeedsCommand {
    /// Publish the weights of a seed in a library, from which other runs can start: `[seeds.library]`.
    Export(SeedsExportArgs),
}

/// Flags of `esper seeds export`.
#[derive(Debug, Clone, Args)]
pub struct SeedsExportArgs {
    /// Folder that `esper train` wrote; the newest checkpoint in it that verifies is read.
    pub run_dir: PathBuf,
    /// Number of the seed.
    #[arg(long, value_name = "N")]
    pub seed: u32,
    /// Folder of the library; made when absent.
    #[arg(long, value_name = "DIR")]
    pub library: PathBuf,
    /// Name under which the weights are published. Default: the seed's blueprint.
    #[arg(long = "as", value_name = "BLUEPRINT")]
    pub blueprint: Option<String>,
    /// Replace weights of that name.
    #[arg(long)]
    pub replace: bool,
}

#[derive(Debug, Subcommand)]
enum TelemetryCommand {
    /// Print the packets of a frame file.
    Decode(DecodeArgs),
}

/// Flags of `esper telemetry decode`.
#[derive(Debug, Clone, Args)]
pub struct DecodeArgs {
    /// Frame file, for example `RUN_DIR/packets.bin`.
    pub file: PathBuf,
    /// One JSON object per packet instead of text.
    #[arg(long)]
    pub json: bool,
}

/// Flags of `esper warm-up`.
#[derive(Debug, Clone, Args)]
pub struct WarmUpArgs {
    /// `cuda:N`.
    #[arg(long, value_name = "DEVICE", default_value = "cuda:0", value_parser = bench::device_name)]
    pub device: DeviceName,
    /// The one module that a process compiles.
    #[arg(long, value_name = "NAME", hide = true)]
    pub module: Option<String>,
}

impl Cli {
    /// Runs the sub-command.
    ///
    /// # Errors
    /// What [`crate::exit::report`] explains to the user.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            Command::Train(args) => run::train(&args),
            Command::Report(args) => run::report(&args),
            Command::CheckConfig(args) => check::command(&args),
            Command::Seeds(SeedsCommand::Export(args)) => library::export(&args),
            Command::Telemetry(TelemetryCommand::Decode(args)) => decode::command(&args),
            Command::Bench(command) => command.run(),
            Command::WarmUp(args) => warm_up::command(&args),
            Command::Study(args) => study::command(&args),
        }
    }
}
