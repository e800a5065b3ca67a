//! What a profiler of NVIDIA sees of a run: the ranges of its phases, as CUPTI tells them.
//!
//! `ESPER_CUPTI=/usr/local/cuda/lib64/libcupti.so.13 cargo test --release -p esper --features cuda --test profiler`, on a machine with
//! a GPU, a C compiler and NVTX's library where the dynamic linker finds it. Without the variable the test says so and passes.
#![cfg(unix)]
#![expect(clippy::print_stdout, reason = "what was not tested is said")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

#[test]
fn a_profiler_sees_each_phase_of_a_run_as_often_as_the_run_tells_it() {
    let Some(cupti) = std::env::var_os("ESPER_CUPTI") else {
        println!("ESPER_CUPTI is not set: nothing was tested");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/profiler/cupti.c");
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let compiled = Command::new(compiler)
        .args(["-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o"])
        .arg(path("ranges.so"))
        .arg(source)
        .arg("-ldl")
        .status();
    assert!(compiled.unwrap().success(), "cupti.c is not compiled");
    let profile = Command::new(env!("CARGO_BIN_EXE_esper"))
        .args(["profile", "--data", "digits", "--epochs", "12", "--progress", "off", "--trace"])
        .arg(path("trace.json"))
        .arg("--out")
        .arg(path("run"))
        .args(std::env::var("ESPER_TEST_DEVICE").iter().flat_map(|device| ["--device", device]))
        .env("ESPER_NVTX", "1")
        .env("NVTX_INJECTION64_PATH", path("ranges.so"))
        .env("ESPER_CUPTI", cupti)
        .env("ESPER_RANGES", path("ranges"))
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&profile.stderr);
    assert!(profile.status.success() && !told.contains("CUPTI's error"), "{told}");

    let ranges = fs::read_to_string(path("ranges")).unwrap();
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for name in ranges.lines().filter_map(|line| line.strip_prefix("begin ")) {
        *seen.entry(name.to_owned()).or_default() += 1;
    }
    let ended = ranges.lines().filter(|line| *line == "end").count();
    assert_eq!(seen.values().sum::<usize>(), ended, "each range ends");
    let trace: Value = serde_json::from_str(&fs::read_to_string(path("trace.json")).unwrap()).unwrap();
    let mut own: BTreeMap<String, usize> = BTreeMap::new();
    for span in trace["traceEvents"].as_array().unwrap() {
        *own.entry(span["name"].as_str().unwrap().to_owned()).or_default() += 1;
    }
    println!("ranges that CUPTI told: {seen:?}");
    assert_eq!(seen, own);
    assert!(own["epoch"] == 12 && own.contains_key("load") && own.contains_key("evaluate"), "{own:?}");
}
