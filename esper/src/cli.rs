//! The command line: sub-commands, each handed to its own module.
//!
//! A new one is a module here with its flags and its function, a variant, and a line of [`Cli::run`].

mod completions;
mod config;
mod decisions;
mod decode;
mod drill;
mod emergency;
mod evaluate;
mod export;
mod generate;
mod man;
mod predict;
mod profile;
mod report;
mod runs;
mod warm_up;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::{bench, check, diagnose, library, policy, run, study};

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
    Train(run::TrainArgs),
    /// Train as `train` does, print where the time of its epochs went, and write it as a trace.
    Profile(profile::ProfileArgs),
    /// Measure a trained network on the test part of its run or on a file: all measures, each class, and what was taken for what.
    Evaluate(evaluate::EvaluateArgs),
    /// Write the network of a run as two files, for use without this command.
    Export(export::ExportArgs),
    /// Tell what a trained network answers to the rows of a file.
    Predict(predict::PredictArgs),
    /// Let a language model go on with a text.
    Generate(generate::GenerateArgs),
    /// Write the report page of a run again and print its summary.
    Report(report::ReportArgs),
    /// Tell of every decision of a run what was observed after it, and ask the policy anew.
    Decisions(decisions::DecisionsArgs),
    /// List runs, and compare them.
    #[command(subcommand)]
    Runs(runs::RunsCommand),
    /// Write a configuration file to begin with, and explain settings.
    #[command(subcommand)]
    Config(config::ConfigCommand),
    /// Check a configuration file without training.
    CheckConfig(check::CheckArgs),
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
    WarmUp(warm_up::WarmUpArgs),
    /// Train a network of pictures and text for a few steps, and tell what this machine makes of them: captures, memory, time.
    Diagnose(diagnose::DiagnoseArgs),
    /// Make things go wrong in small runs, and check what training does about it.
    Drill(drill::DrillArgs),
    /// Print the emergency level of a run that is under way, or order one: from a notice to a halt.
    Emergency(emergency::EmergencyArgs),
    /// Train the network of the policy `learned`.
    #[command(subcommand)]
    Policy(PolicyCommand),
    /// Compare policies over paired random seeds and print the table.
    Study(study::StudyArgs),
    /// Print what a shell needs to complete this command.
    Completions(completions::CompletionsArgs),
    /// Print the manual page of this command, or write those of all sub-commands.
    Man(man::ManArgs),
}

#[derive(Debug, Subcommand)]
enum SeedsCommand {
    /// Publish the weights of a seed in a library, from which other runs can start: `[seeds.library]`.
    Export(library::SeedsExportArgs),
}

#[derive(Debug, Subcommand)]
enum PolicyCommand {
    /// Train it over many short runs: it copies the rules of `heuristic`, then learns from the gains that are confirmed.
    Train(policy::PolicyTrainArgs),
}

#[derive(Debug, Subcommand)]
enum TelemetryCommand {
    /// Print the packets of a frame file.
    Decode(decode::DecodeArgs),
}

impl Cli {
    /// Whether phases are to be recorded.
    #[must_use]
    pub fn records_phases(&self) -> bool {
        matches!(self.command, Command::Profile(_))
    }

    /// Runs the sub-command.
    ///
    /// # Errors
    /// What [`crate::exit::report`] explains to the user.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            Command::Train(args) => run::train(&args),
            Command::Profile(args) => profile::command(&args),
            Command::Evaluate(args) => evaluate::command(&args),
            Command::Export(args) => export::command(&args),
            Command::Predict(args) => predict::command(&args),
            Command::Generate(args) => generate::command(&args),
            Command::Report(args) => report::command(&args),
            Command::Decisions(args) => decisions::command(&args),
            Command::Runs(command) => runs::command(&command),
            Command::Config(command) => config::command(&command),
            Command::CheckConfig(args) => check::command(&args),
            Command::Seeds(SeedsCommand::Export(args)) => library::export(&args),
            Command::Telemetry(TelemetryCommand::Decode(args)) => decode::command(&args),
            Command::Bench(command) => command.run(),
            Command::WarmUp(args) => warm_up::command(&args),
            Command::Diagnose(args) => diagnose::command(&args),
            Command::Drill(args) => drill::command(&args),
            Command::Emergency(args) => emergency::command(&args),
            Command::Policy(PolicyCommand::Train(args)) => policy::command(&args),
            Command::Study(args) => study::command(&args),
            Command::Completions(args) => completions::command(&args),
            Command::Man(args) => man::command(&args),
        }
    }
}
