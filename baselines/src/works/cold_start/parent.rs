//! Starts the processes and collects what they measured.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use super::WORK;
use super::child::Jit;
use crate::error::Error;
use crate::gpu::Gpu;
use crate::gpu::cache::{CacheFolders, size_bytes};
use crate::measure::Measurement;
use crate::result::BenchResult;
use crate::samples::{Samples, ms};
use crate::torch::tail;
use crate::work::{Outcome, Setting, settings};

/// Name, way of loading, cache. The third finds the cache of the second, which the second found empty; the fifth finds
/// what `esper warm-up` has left.
const RUNS: [(&str, Jit, &str); 5] = [
    ("sequential", Jit::Sequential, "sequential"),
    ("parallel", Jit::Parallel, "parallel"),
    ("warm", Jit::Sequential, "parallel"),
    (DEMAND, Jit::Demand, DEMAND),
    (WARMED, Jit::Demand, WARMED),
];
/// The run in which nothing is loaded ahead: the only one where nothing is left to compile.
const DEMAND: &str = "demand";
/// The run after `esper warm-up`.
const WARMED: &str = "processes";
/// Measures the start of a process in each of the ways, once. Nothing in this process waits for the device.
pub(super) fn run(setting: &Setting, with_candle: bool) -> Result<Outcome, Error> {
    let gpu = Gpu::open(setting)?;
    let folders = CacheFolders::new(setting.clock.unix().as_nanos())?;
    let mut samples = Samples::default();
    for (name, jit, cache) in RUNS.into_iter().filter(|(name, ..)| !with_candle || *name == DEMAND) {
        let cache = folders.of(cache)?;
        if name == WARMED {
            let started = gpu.now();
            warm_up(gpu.ordinal, &cache)?;
            samples.push(format!("{name}.0_warm_up"), "ms", ms(gpu.now() - started));
        }
        samples.push(format!("{name}.cache_before"), "bytes", size_bytes(&cache) as f64);
        let started = gpu.now();
        let parts = measured(name, jit, gpu.ordinal, &cache, &folders.of("results")?)?;
        samples.push(format!("{name}.process"), "ms", ms(gpu.now() - started));
        let compiled = size_bytes(&cache) as f64;
        if with_candle && compiled > 0.0 {
            let what = "what the driver compiles for a program with machine code of this card".to_owned();
            return Err(Error::WrongResult { what, expected: 0.0, found: compiled });
        }
        samples.push(format!("{name}.cache_after"), "bytes", compiled);
        for (part, time) in parts {
            samples.push(format!("{name}.{part}"), "ms", time.median);
        }
    }
    let loading = std::env::var("CUDA_MODULE_LOADING").unwrap_or_else(|_| "not set".to_owned());
    let config =
        settings([("CUDA_MODULE_LOADING", loading), ("step", "mlp: 784-512-512-10, batch 128, SGD".to_owned())]);
    let notes = "A fresh process each, in this order. sequential: empty cache of compiled kernels, all modules one after \
                 the other; parallel: empty cache, a thread per module; warm: as sequential, with the cache of parallel; \
                 demand: empty cache, nothing loaded ahead; processes: an empty cache that `esper warm-up` has filled, a \
                 process per module, in 0_warm_up, then as demand. Parts are numbered as they happen; 5_candle_modules: all \
                 modules, then each; 9_all: from opening the device to the second step; process: as the starting process \
                 sees it. The starting process keeps the device open, so that none of the others pays for starting the \
                 driver. cache_before is 0 where a cache is empty";
    Ok(gpu.result(WORK.name, notes, config, samples).into())
}

fn measured(
    name: &str,
    jit: Jit,
    ordinal: usize,
    cache: &Path,
    results: &Path,
) -> Result<BTreeMap<String, Measurement>, Error> {
    let (device, jit, out) = (format!("cuda:{ordinal}"), jit.to_string(), results.display().to_string());
    let args = ["bench", WORK.name, "--jit", &jit, "--device", &device, "--out", &out];
    succeeded(&format!("{} {name}", WORK.name), this_program(&args, cache))?;
    Ok(BenchResult::read(&results.join(WORK.name).with_extension("json"))?.measurements)
}

fn warm_up(ordinal: usize, cache: &Path) -> Result<(), Error> {
    succeeded("esper warm-up", this_program(&["warm-up", "--device", &format!("cuda:{ordinal}")], cache))
}

fn succeeded(what: &str, output: std::io::Result<Output>) -> Result<(), Error> {
    let message = match output {
        Ok(output) if output.status.success() => return Ok(()),
        Ok(output) => format!("{}: {}", output.status, tail(&String::from_utf8_lossy(&output.stderr))),
        Err(error) => error.to_string(),
    };
    Err(Error::Process { what: what.to_owned(), message })
}

/// Runs this program with a cache of its own for compiled kernels.
fn this_program(args: &[&str], cache: &Path) -> std::io::Result<Output> {
    Command::new(std::env::current_exe()?)
        .args(args)
        .env("CUDA_CACHE_PATH", cache)
        .env("CUDA_CACHE_DISABLE", "0")
        .env("CUDA_CACHE_MAXSIZE", (1_u32 << 30).to_string())
        .stdin(Stdio::null())
        .output()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_fails_is_told_with_the_end_of_its_messages() {
        let of_shell = |script: &str| succeeded("a shell", Command::new("sh").args(["-c", script]).output());
        of_shell("echo done").unwrap();
        let error = of_shell("echo out of memory >&2; exit 1").unwrap_err().to_string();
        assert!(error.contains("a shell") && error.ends_with("out of memory"), "{error}");
    }

    #[test]
    fn an_empty_cache_is_compared_with_the_one_that_a_run_left() {
        for (index, (name, _, cache)) in RUNS.iter().enumerate() {
            let used_before = RUNS[..index].iter().any(|(_, _, before)| before == cache);
            assert_eq!(used_before, *name == "warm", "{name}");
        }
    }
}
