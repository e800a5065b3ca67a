//! Starts the processes and collects what they measured.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use super::cache::{CacheFolders, size_bytes};
use super::child::{ChildReport, Jit};
use crate::error::Error;
use crate::works::gpu::Gpu;
use crate::works::gpu::samples::{Samples, ms};
use crate::works::{Outcome, Setting};

const NAME: &str = "cold-start";
/// Name, way of loading, cache. The third finds the cache of the second, which the second found empty; the fifth finds
/// what `esper warm-up` has left.
const RUNS: [(&str, Jit, &str); 5] = [
    ("sequential", Jit::Sequential, "sequential"),
    ("parallel", Jit::Parallel, "parallel"),
    ("warm", Jit::Sequential, "parallel"),
    ("demand", Jit::Demand, "demand"),
    (WARMED, Jit::Demand, WARMED),
];
/// The run after `esper warm-up`.
const WARMED: &str = "processes";
/// Characters of a failed process's messages that the error repeats.
const TAIL_CHARS: usize = 2_000;

/// Measures the start of a process in each of the ways, once.
///
/// # Errors
/// [`Error::NeedsGpu`], [`Error::File`], [`Error::Process`].
/// # Sync
/// none in this process
pub fn run(setting: &Setting) -> Result<Outcome, Error> {
    let gpu = Gpu::open(setting)?;
    let folders = CacheFolders::new(setting.clock.unix().as_nanos())?;
    let mut samples = Samples::default();
    for (name, jit, cache) in RUNS {
        let cache = folders.of(cache)?;
        if name == WARMED {
            let started = gpu.now();
            warm_up(gpu.ordinal, &cache)?;
            samples.push(format!("{name}.0_warm_up"), "ms", ms(gpu.now() - started));
        }
        samples.push(format!("{name}.cache_before"), "bytes", size_bytes(&cache) as f64);
        let started = gpu.now();
        let report = measured(name, jit, gpu.ordinal, &cache)?;
        samples.push(format!("{name}.process"), "ms", ms(gpu.now() - started));
        samples.push(format!("{name}.cache_after"), "bytes", size_bytes(&cache) as f64);
        for (part, time_ms) in report.parts {
            samples.push(format!("{name}.{part}"), "ms", time_ms);
        }
    }
    let loading = std::env::var("CUDA_MODULE_LOADING").unwrap_or_else(|_| "not set".to_owned());
    let config = [("CUDA_MODULE_LOADING", loading), ("step", "mlp: 784-512-512-10, batch 128, SGD".to_owned())];
    let notes = "A fresh process each, in this order. sequential: empty cache of compiled kernels, all modules one after \
                 the other; parallel: empty cache, a thread per module; warm: as sequential, with the cache of parallel; \
                 demand: empty cache, nothing loaded ahead; processes: an empty cache that `esper warm-up` has filled, a \
                 process per module, in 0_warm_up, then as demand. Parts are numbered as they happen; 5_candle_modules: all \
                 modules, then each; 9_all: from opening the device to the second step; process: as the starting process \
                 sees it. The starting process keeps the device open, so that none of the others pays for starting the \
                 driver. cache_before is 0 where a cache is empty";
    Ok(gpu.result(NAME, notes, &config, samples).into())
}

fn measured(name: &str, jit: Jit, ordinal: usize, cache: &Path) -> Result<ChildReport, Error> {
    let failed = |message: String| Error::Process { what: format!("{NAME} {name}"), message };
    let device = format!("cuda:{ordinal}");
    let output = this_program(&["bench", "cold-start-child", "--jit", &jit.to_string(), "--device", &device], cache);
    report(&output.map_err(|error| failed(error.to_string()))?).map_err(failed)
}

fn warm_up(ordinal: usize, cache: &Path) -> Result<(), Error> {
    let failed = |message: String| Error::Process { what: "esper warm-up".to_owned(), message };
    let output = this_program(&["warm-up", "--device", &format!("cuda:{ordinal}")], cache);
    let output = output.map_err(|error| failed(error.to_string()))?;
    if output.status.success() { Ok(()) } else { Err(failed(tail(&output))) }
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

/// The status of a process with the end of its messages.
fn tail(output: &Output) -> String {
    let messages = String::from_utf8_lossy(&output.stderr);
    let messages = messages.trim();
    let skipped = messages.chars().count().saturating_sub(TAIL_CHARS);
    format!("{}: {}", output.status, messages.chars().skip(skipped).collect::<String>())
}

/// The last line of the output; what went before it is not the report.
fn report(output: &Output) -> Result<ChildReport, String> {
    if !output.status.success() {
        return Err(tail(output));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.trim_end().lines().next_back().unwrap_or_default();
    serde_json::from_str(line).map_err(|error| format!("it printed `{line}`: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_shell(script: &str) -> Result<ChildReport, String> {
        report(&Command::new("sh").args(["-c", script]).output().unwrap())
    }

    #[test]
    fn the_last_line_is_the_report() {
        let found = of_shell(r#"echo noise; echo '{"parts": [["1_open_device", 12.5], ["9_all", 20.0]]}'"#).unwrap();
        let expected = [("1_open_device", 12.5), ("9_all", 20.0)].map(|(name, time)| (name.to_owned(), time));
        assert_eq!(found.parts, expected);
    }

    #[test]
    fn a_process_that_fails_is_not_measured() {
        let error = of_shell("echo '{\"parts\": []}'; echo out of memory >&2; exit 1").unwrap_err();
        assert!(error.ends_with("out of memory"), "{error}");
        assert!(of_shell("echo done").unwrap_err().starts_with("it printed `done`"));
        assert!(of_shell("true").unwrap_err().starts_with("it printed ``"));
    }

    #[test]
    fn an_empty_cache_is_compared_with_the_one_that_a_run_left() {
        for (index, (name, _, cache)) in RUNS.iter().enumerate() {
            let used_before = RUNS[..index].iter().any(|(_, _, before)| before == cache);
            assert_eq!(used_before, *name == "warm", "{name}");
        }
    }
}
