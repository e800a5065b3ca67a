//! Where the time of a compiled step goes, kernel by kernel, as NVIDIA's profiler sees it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use esper_graph::CompiledGraph;
use leyline::region::Eager;

use super::compile_bench::{cases, compile_meanwhile};
use crate::error::Error;
use crate::gpu::cache::CacheFolders;
use crate::gpu::open::{Gpu, refused};
use crate::gpu::optimizer_step::OptimizerStep;
use crate::gpu::precision::PrecisionGuard;
use crate::models::{Form, Precision, Variant, Workload};
use crate::samples::Samples;
use crate::work::{Flags, Needs, Outcome, Setting, Settings, Work};

pub(super) const WORK: Work = Work::with_flags::<KernelTimesConfig>(
    "kernel-times",
    "Where the time of a compiled step goes, kernel by kernel, by NVIDIA's profiler",
    Needs::Gpu,
);

const NOTES: &str = "CASE is WORK.PRECISION.FORM, as in compile-bench. CASE.kernel.NAME: launches of a kernel in one compiled step, each timed \
    alone by the profiler, its caches as the launch before left them (us); .total: their sum. CASE.kernels: the sum of all. CASE.graph: the same \
    graph without the profiler, by device events (us), where kernels run side by side and wait for each other.";
const METRIC: &str = "gpu__time_duration.sum";
/// Steps before the one that is looked at, and graphs that are timed.
const WARM_UP: usize = 5;
const REPETITIONS: usize = 50;

/// What is looked at.
#[derive(Debug, Clone, clap::Args)]
struct KernelTimesConfig {
    /// Works, as of `compile-bench`.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "tfm30m")]
    works: Vec<String>,
    /// Precisions, of `f32`, `tf32`, `bf16`, `bf16_pure`.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "bf16")]
    precisions: Vec<Precision>,
    /// The profiler.
    #[arg(long, value_name = "PROGRAM", default_value = "ncu")]
    profiler: PathBuf,
    /// Takes one step of this form while the profiler collects: the process that it watches.
    #[arg(long, hide = true, value_name = "FORM")]
    watched: Option<String>,
}

impl Flags for KernelTimesConfig {
    fn measure(&self, setting: &Setting) -> Result<Outcome, Error> {
        let (gpu, mut samples) = (Gpu::open(setting)?, Samples::default());
        let folders = CacheFolders::new(setting.clock.unix().as_nanos())?;
        let mut eager = Eager::acquire()?;
        for (work, precision) in cases(&self.works, &self.precisions)? {
            let _guard = PrecisionGuard::set(precision);
            let asked = |form: &Form| self.watched.as_deref().is_none_or(|watched| watched == form.name());
            for form in Form::ALL.into_iter().filter(asked) {
                let variant = Variant { form, precision };
                let case = format!("{work}.{variant}");
                if self.watched.is_none() {
                    self.watch(&gpu, work, variant, &case, &mut samples)?;
                }
                let network = Workload::of(work, variant, 0, &gpu.device)?;
                let mut unused = Samples::default();
                let folder = folders.of(&case)?;
                let (mut step, compiled) = compile_meanwhile(&gpu, &mut eager, network, &case, &folder, &mut unused)?;
                for _ in 0..WARM_UP {
                    take(&mut step, &compiled)?;
                }
                if self.watched.is_some() {
                    let profiled = gpu.session.profiled(|| compiled.replay()).and_then(std::convert::identity);
                    profiled.map_err(|refusal| refused("a replay that is looked at", refusal))?;
                } else {
                    time_graph(&gpu, &compiled, &format!("{case}.graph"), &mut samples)?;
                }
            }
        }
        let mut result = gpu.result(WORK.name, NOTES, Settings::new(), samples);
        let precisions: Vec<&str> = self.precisions.iter().map(|precision| precision.name()).collect();
        result.command += &format!(" --works {} --precisions {}", self.works.join(","), precisions.join(","));
        Ok(result.into())
    }
}

fn take(step: &mut OptimizerStep, compiled: &CompiledGraph) -> Result<(), Error> {
    step.load()?;
    compiled.replay().map_err(|refusal| refused("a compiled replay", refusal))
}

fn time_graph(gpu: &Gpu, compiled: &CompiledGraph, name: &str, samples: &mut Samples) -> Result<(), Error> {
    let mut timer = gpu.session.timer().map_err(|refusal| refused("a timer", refusal))?;
    for _ in 0..REPETITIONS {
        let launched = gpu.session.time(&mut timer, || compiled.replay());
        launched.map_err(|refusal| refused("a compiled replay", refusal))?;
        gpu.wait()?;
        samples.extend_from(name, "us", timer.last_ms().map(|ms| ms * 1e3));
    }
    Ok(())
}

impl KernelTimesConfig {
    /// Has the profiler watch a process of this command that takes the step.
    fn watch(&self, gpu: &Gpu, work: &str, variant: Variant, case: &str, samples: &mut Samples) -> Result<(), Error> {
        let failed = |message: String| Error::Process { what: self.profiler.display().to_string(), message };
        let folder = tempfile::tempdir().map_err(|error| failed(error.to_string()))?;
        let log = folder.path().join("kernels.csv");
        let program = std::env::current_exe().map_err(|error| failed(error.to_string()))?;
        let output = Command::new(&self.profiler)
            .args(["--profile-from-start", "off", "--graph-profiling", "node", "--clock-control", "none"])
            .args(["--cache-control", "none", "--kernel-name-base", "function", "--csv", "--page", "raw"])
            .args(["--print-units", "base", "--metrics", METRIC, "--log-file"])
            .args([log.as_os_str(), program.as_os_str()])
            .args(["bench", WORK.name, "--works", work, "--precisions", variant.precision.name()])
            .args(["--watched", variant.form.name(), "--device", &format!("cuda:{}", gpu.ordinal), "--out"])
            .arg(folder.path())
            .output()
            .map_err(|error| failed(error.to_string()))?;
        // The profiler writes what it has to say there, too.
        let told = std::fs::read_to_string(&log).unwrap_or_default();
        let kernels = parsed(&told).filter(|kernels| output.status.success() && !kernels.is_empty());
        let kernels = kernels.ok_or_else(|| {
            let all =
                [told, String::from_utf8_lossy(&output.stdout).into(), String::from_utf8_lossy(&output.stderr).into()];
            failed(format!("{}: {}", output.status, last_lines(&all.concat())))
        })?;
        let mut all = 0.0;
        for (name, times) in kernels {
            let total = times.iter().sum::<f64>();
            all += total;
            samples.push(format!("{case}.kernel.{name}.total"), "us", total);
            samples.extend(format!("{case}.kernel.{name}"), "us", times);
        }
        samples.push(format!("{case}.kernels"), "us", all);
        Ok(())
    }
}

/// Microseconds of each launch by kernel, from rows of quoted cells: names, units, and a row for each launch.
fn parsed(text: &str) -> Option<BTreeMap<String, Vec<f64>>> {
    let mut rows = text.lines().filter(|line| line.starts_with('"')).map(cells);
    let names = rows.next()?;
    let units = rows.next()?;
    let column = |wanted: &str| names.iter().position(|name| *name == wanted);
    let (name, time) = (column("Kernel Name")?, column(METRIC)?);
    let to_us = match *units.get(time)? {
        "ns" | "nsecond" => 1e-3,
        "us" | "usecond" => 1.0,
        _ => return None,
    };
    let mut kernels: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for row in rows {
        let value: f64 = row.get(time)?.replace(',', "").parse().ok()?;
        kernels.entry((*row.get(name)?).to_owned()).or_default().push(value * to_us);
    }
    Some(kernels)
}

fn cells(line: &str) -> Vec<&str> {
    line.trim_matches('"').split("\",\"").collect()
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(6)..].join(" | ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"==PROF== Connected to process 7
"ID","Process ID","Kernel Name","Grid Size","gpu__time_duration.sum"
"","","","","ns"
"0","7","fused_3","(4, 1, 1)","1,536"
"1","7","gemm<f, 2>","(8, 1, 1)","20480"
"2","7","fused_3","(4, 1, 1)","1024"
"#;

    #[test]
    fn launches_are_found_by_kernel_and_in_microseconds() {
        let expected =
            BTreeMap::from([("fused_3".to_owned(), vec![1.536, 1.024]), ("gemm<f, 2>".to_owned(), vec![20.48])]);
        assert_eq!(parsed(TEXT), Some(expected));
        assert_eq!(parsed(&TEXT.replace("\"ns\"", "\"us\"")).unwrap()["fused_3"], [1536.0, 1024.0]);
    }

    #[test]
    fn what_is_not_understood_is_no_time() {
        for text in [
            "",
            "no such program",
            &TEXT.replace("\"ns\"", "\"cycle\""),
            &TEXT.replace(METRIC, "other"),
            &TEXT.replace("20480", "n/a"),
        ] {
            assert_eq!(parsed(text), None, "{text}");
        }
    }
}
