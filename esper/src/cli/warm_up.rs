//! `esper warm-up`: has the driver compile the tensor library's kernels ahead of the first run on a machine.
//!
//! The driver compiles one module after the other within a process, whatever its threads do, and keeps the result on
//! disk. So every module gets a process of its own, and the first training step finds all of them.

use std::env;
use std::process::{Child, Command, ExitCode, Stdio};

use anyhow::{Context as _, bail};
use candle_core::Device;
use clap::Args;
use esper_graph::{LIBRARY_MODULES, Session};
use leyline::clock::{Clock as _, SystemClock};

use crate::bench::device_name;
use crate::config::DeviceName;
use crate::exit::UsageError;
use crate::output;
use crate::wire;

/// Flags of `esper warm-up`.
#[derive(Debug, Clone, Args)]
pub(super) struct WarmUpArgs {
    /// `cuda:N`.
    #[arg(long, value_name = "DEVICE", default_value = "cuda:0", value_parser = device_name)]
    device: DeviceName,
    /// The one module that a process compiles.
    #[arg(long, value_name = "NAME", hide = true)]
    module: Option<String>,
}

/// Runs the sub-command.
///
/// # Errors
/// [`UsageError`] for a device that is no GPU of this build and machine; when a module cannot be compiled.
pub(super) fn command(args: &WarmUpArgs) -> anyhow::Result<ExitCode> {
    if args.device == DeviceName::Cpu {
        return Err(UsageError("--device cpu: nothing is compiled for the CPU; expected cuda:N".to_owned()).into());
    }
    if !cfg!(feature = "cuda") {
        let message = "warm-up: this build has no GPU support, so there is nothing to compile; expected a build with \
                       `--features cuda`";
        return Err(UsageError(message.to_owned()).into());
    }
    let device = wire::device(args.device).map_err(|problem| UsageError(format!("--device {problem}")))?;
    match &args.module {
        Some(module) => one(&device, module)?,
        None => {
            let started = SystemClock::new();
            let began = started.now();
            // The device stays open, so that none of the processes pays for starting the driver.
            all(args.device)?;
            let (count, seconds) = (LIBRARY_MODULES.len(), (started.now() - began).as_secs_f64());
            output::print(&format!("{count} modules are compiled and kept in the driver's cache ({seconds:.1} s)\n"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn one(device: &Device, module: &str) -> anyhow::Result<()> {
    let session = Session::open(device)?;
    session.compile_library_module(module).with_context(|| format!("compiling the module `{module}`"))
}

fn all(device: DeviceName) -> anyhow::Result<()> {
    let program = env::current_exe().context("finding this program")?;
    let start = |module: &&'static str| -> anyhow::Result<(&'static str, Child)> {
        let mut process = Command::new(&program);
        process.args(["warm-up", "--device", &device.to_string(), "--module", module]).stdin(Stdio::null());
        Ok((*module, process.spawn().with_context(|| format!("starting the process of `{module}`"))?))
    };
    let started: Vec<anyhow::Result<(&'static str, Child)>> = LIBRARY_MODULES.iter().map(start).collect();
    let mut failed = Vec::new();
    for process in started {
        let (module, mut process) = process?;
        if !process.wait().with_context(|| format!("waiting for the process of `{module}`"))?.success() {
            failed.push(module);
        }
    }
    if failed.is_empty() { Ok(()) } else { bail!("not compiled: {}", failed.join(", ")) }
}
