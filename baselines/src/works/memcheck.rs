//! A training run that grows and replays, under NVIDIA's memory checker.

use std::process::Command;

use leyline::region::Eager;

use crate::error::Error;
use crate::gpu::Gpu;
use crate::samples::Samples;
use crate::work::{Settings, Work};

const CHECKER: &str = "compute-sanitizer";
pub(super) const WORK: Work = Work::on_gpu("memcheck", "A training run under NVIDIA's memory checker", NOTES, run);

const NOTES: &str = "errors: wrong accesses that the checker counted over a run of `esper train` that captures, replays, \
                     compiles, grafts a seed and does so again; replays: of that run, compiled_replays: those of compiled \
                     graphs. Calls of the driver that fail are not counted: the compiler asks whether numbers are addresses, \
                     and how many parameters a kernel has, until the driver says no.";

fn run(gpu: &Gpu, _eager: &mut Eager, samples: &mut Samples) -> Result<Settings, Error> {
    let failed = |message: String| Error::Process { what: CHECKER.to_owned(), message };
    let folder = std::env::temp_dir().join(format!("esper-memcheck-{}", std::process::id()));
    let program = std::env::current_exe().map_err(|error| failed(error.to_string()))?;
    let output = Command::new(CHECKER)
        .args(["--tool", "memcheck", "--report-api-errors", "no"])
        .arg(program)
        .args(["train", "--epochs", "10", "--policy", "fixed", "--progress", "off", "--device"])
        .arg(format!("cuda:{}", gpu.ordinal))
        .arg("--out")
        .arg(&folder)
        .output()
        .map_err(|error| failed(error.to_string()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let packets = std::fs::read_to_string(folder.join("packets.jsonl")).unwrap_or_default();
    if let Err(error) = std::fs::remove_dir_all(&folder) {
        return Err(failed(format!("{}: {error}; the run wrote: {}", folder.display(), tail(&text))));
    }
    let errors = errors(&text).ok_or_else(|| failed(tail(&text)))?;
    let replays = last_value(&packets, "tolaria.graph.replays_total").unwrap_or(0.0);
    if errors > 0 {
        return Err(Error::WrongResult { what: "the memory checker".to_owned(), expected: 0.0, found: errors as f64 });
    }
    if replays < 1.0 {
        return Err(failed("nothing was replayed".to_owned()));
    }
    let compiled = last_value(&packets, "tolaria.compile.replays_total").unwrap_or(0.0);
    if compiled < 1.0 {
        return Err(failed("nothing was compiled".to_owned()));
    }
    samples.push("errors", "count", errors as f64);
    samples.push("replays", "count", replays);
    samples.push("compiled_replays", "count", compiled);
    Ok(Settings::new())
}

/// The number in the checker's last line.
fn errors(text: &str) -> Option<u64> {
    let summary = text.lines().rev().find_map(|line| line.split_once("ERROR SUMMARY: "))?.1;
    summary.split_whitespace().next()?.parse().ok()
}

/// The last value of a metric in lines of packets.
pub(super) fn last_value(packets: &str, name: &str) -> Option<f64> {
    let pattern = format!("\"name\":\"{name}\",\"value\":");
    let (_, rest) = packets.rsplit_once(&pattern)?;
    rest.split([',', '}']).next()?.parse().ok()
}

fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(5)..].join(" | ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_that_of_the_summary() {
        assert_eq!(errors("========= COMPUTE-SANITIZER\nepoch 1\n========= ERROR SUMMARY: 0 errors"), Some(0));
        assert_eq!(errors("========= ERROR SUMMARY: 12 errors\n"), Some(12));
        assert_eq!(errors("no such program"), None);
    }

    #[test]
    fn the_last_packet_counts() {
        let packets = r#"{"metrics":[{"name":"a","value":1.0,"unit":"count"}]}
{"metrics":[{"name":"a","value":7.0,"unit":"count"},{"name":"b","value":3.0}]}"#;
        assert_eq!(
            (last_value(packets, "a"), last_value(packets, "b"), last_value(packets, "c")),
            (Some(7.0), Some(3.0), None)
        );
    }
}
