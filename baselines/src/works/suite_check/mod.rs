//! Whole runs of `esper train`, with everything that a run has: the same decisions, metrics by seed and bits in every mode of steps, and no
//! packet lost.

mod run;

use std::num::NonZeroU64;
use std::path::Path;
use std::process::Command;

use clap::Args;

use self::run::Run;
use crate::error::Error;
use crate::gpu::Gpu;
use crate::gpu::report::{Broken, Report, promise};
use crate::samples::{Samples, ms};
use crate::work::{Flags, Needs, Outcome, Setting, Work};

pub(super) const WORK: Work = Work::with_flags::<SuiteCheckFlags>(
    "suite-check",
    "Whole runs in every mode of steps: the same decisions, metrics by seed and bits, no packet lost",
    Needs::Nothing,
);

const NOTES: &str = "suite.JOB.WAY: `esper train` as a process of its own, with policy, seed manager, signed commands, checkpoints and telemetry in files, compared with \
    JOB.eager: reports of all epochs but for their times, every metric with a label `seed_id` in every packet, and the tensors of the last checkpoint. check.* is 1 when they are the same, \
    the packets are there without a gap, none was dropped and no sink failed; a work with a broken promise writes no result. blocking: compiled steps with CUDA_LAUNCH_BLOCKING=1, on a GPU. \
    .process: from start to end; .replays, .compiled: steps; .packets.seeds_of_replays: packets whose last step was a replay, with metrics by seed";

/// Runs of the shipped data. In the first one seeds come and go by what is measured of them, and averages of parameters are evaluated, at the end those of a checkpoint; in the second the steps are windows of several
/// microbatches, in which conflicts of owners are resolved.
const JOBS: [(&str, &[&str]); 2] = [
    (
        "heuristic",
        &[
            "--set",
            "policy.heuristic.looking.max_share=1.0",
            "--set",
            "policy.heuristic.plateau.min_relative_gain=1.0",
            "--set",
            "train.ema_decay=0.99",
        ],
    ),
    (
        "pcgrad",
        &["--policy", "fixed", "--set", "train.conflict=pcgrad", "--set", "train.batch.microbatches_per_step=4"],
    ),
];

/// How steps reach the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Way {
    name: &'static str,
    mode: &'static str,
    /// Whether each launch is waited for.
    is_blocking: bool,
}

const WAYS: [Way; 4] = [
    Way { name: "eager", mode: "eager", is_blocking: false },
    Way { name: "graph", mode: "graph", is_blocking: false },
    Way { name: "compiled", mode: "compiled", is_blocking: false },
    Way { name: "blocking", mode: "compiled", is_blocking: true },
];

/// Has the driver wait for each launch.
const BLOCKING: &str = "CUDA_LAUNCH_BLOCKING";

#[derive(Debug, Args)]
struct SuiteCheckFlags {
    /// Epochs of each run.
    #[arg(long, value_name = "N", default_value = "120")]
    epochs: NonZeroU64,
}

impl Flags for SuiteCheckFlags {
    fn measure(&self, setting: &Setting) -> Result<Outcome, Error> {
        let gpu = setting.gpu.map(|_| Gpu::open(setting)).transpose()?;
        let (mut samples, mut report) = (Samples::default(), Report::default());
        for (job, arguments) in JOBS {
            let mut eager = None;
            for way in WAYS.iter().filter(|way| gpu.is_some() || !way.is_blocking) {
                let name = format!("suite.{job}.{}", way.name);
                report.check(&name, |samples| {
                    let run = self.train(setting, arguments, way, (&name, &mut *samples))?;
                    run.push(&name, samples);
                    run.complete()?;
                    replayed(&run, way, gpu.is_some())?;
                    let told = match &eager {
                        None if way.mode != "eager" => {
                            return Err(Broken("there is no eager run beside it".to_owned()));
                        }
                        None => run.told(),
                        Some(eager) => run.same(eager)?,
                    };
                    eager.get_or_insert(run);
                    Ok(told)
                });
            }
        }
        let config = report.finish(&mut samples)?;
        let result = match gpu {
            Some(gpu) => gpu.result(WORK.name, NOTES, config, samples),
            None => samples.into_result(WORK.name, WORK.name, NOTES, config, setting.clock.as_ref()),
        };
        Ok(result.into())
    }
}

impl SuiteCheckFlags {
    /// Trains by the program itself, in a folder that goes again.
    fn train(
        &self,
        setting: &Setting,
        arguments: &[&str],
        way: &Way,
        (name, samples): (&str, &mut Samples),
    ) -> Result<Run, Broken> {
        let failed = |message: String| Broken(format!("esper train: {message}"));
        let dir = tempfile::tempdir().map_err(|error| failed(error.to_string()))?;
        let folder = dir.path().join("run");
        let program = std::env::current_exe().map_err(|error| failed(error.to_string()))?;
        let began = setting.clock.now();
        let output = self.command(&program, setting.gpu, arguments, way, &folder).output();
        samples.push(format!("{name}.process"), "ms", ms(setting.clock.now() - began));
        let output = output.map_err(|error| failed(error.to_string()))?;
        promise(output.status.success(), || format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr)))?;
        Run::read(&folder)
    }

    fn command(&self, program: &Path, gpu: Option<usize>, arguments: &[&str], way: &Way, folder: &Path) -> Command {
        let mut command = Command::new(program);
        command
            .args(["train", "--progress", "off", "--epochs", &self.epochs.to_string(), "--device"])
            .arg(gpu.map_or("cpu".to_owned(), |ordinal| format!("cuda:{ordinal}")))
            .args(arguments)
            .args(["--set", &format!("train.execution.mode={}", way.mode), "--out"])
            .arg(folder)
            .env_remove(BLOCKING);
        if way.is_blocking {
            command.env(BLOCKING, "1");
        }
        command
    }
}

/// Steps were replayed where they should be, and metrics by seed were told meanwhile.
fn replayed(run: &Run, way: &Way, on_gpu: bool) -> Result<(), Broken> {
    let (replays, compiled) = (on_gpu && way.mode != "eager", on_gpu && way.mode == "compiled");
    promise((run.replays > 0.0) == replays && (run.compiled > 0.0) == compiled, || {
        format!("{} replays, {} of compiled graphs", run.replays, run.compiled)
    })?;
    promise((run.seeds_of_replays > 0) == replays, || {
        format!("{} packets of replayed steps have metrics by seed", run.seeds_of_replays)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launches_are_waited_for_where_that_is_asked_for_alone() {
        for way in WAYS {
            let flags = SuiteCheckFlags::by_default();
            let command = flags.command(Path::new("esper"), Some(1), JOBS[0].1, &way, Path::new("out"));
            let blocking = command.get_envs().find(|(name, _)| *name == BLOCKING).and_then(|(_, value)| value);
            assert_eq!(blocking.is_some(), way.name == "blocking");
            let arguments: Vec<_> = command.get_args().map(|argument| argument.to_string_lossy()).collect();
            let mode = format!("train.execution.mode={}", way.mode);
            for expected in ["cuda:1", JOBS[0].1[1], "120", &mode] {
                assert!(arguments.iter().any(|argument| argument == expected), "{expected}: {arguments:?}");
            }
        }
    }
}
