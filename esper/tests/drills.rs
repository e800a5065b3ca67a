//! `esper drill`: every drill passes here, or says that it needs a GPU; what it leaves is compared; a failure is an exit code.
#![expect(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn esper(args: &[&str]) -> Output {
    Command::new(assert_cmd::cargo::cargo_bin!("esper")).args(args).output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

fn read(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn every_drill_passes_or_needs_a_gpu_and_leaves_its_telemetry() {
    let dir = tempfile::tempdir().unwrap();
    let output = esper(&["drill", "--out", dir.path().to_str().unwrap()]);
    let told = text(&output);
    assert_eq!(output.status.code(), Some(0), "{told}");
    let mut num_passed = 0;
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        let (name, outcome) = line.split_once(' ').unwrap();
        let result = dir.path().join(format!("drill-{name}.json"));
        match outcome.trim_start() {
            outcome if outcome.starts_with("passed") => {
                let result = read(&result);
                assert_eq!(result["measurements"]["check.drill"]["median"], 1.0, "{name}");
                assert!(result["metrics"].as_array().unwrap().len() > 40, "{name}");
                num_passed += 1;
            }
            outcome => assert!(outcome.starts_with("needs a GPU") && !result.exists(), "{line}"),
        }
    }
    assert!(num_passed >= 9, "{told}");

    // A name that goes missing is a failure.
    let (before, after) = (dir.path().join("drill-nan.json"), dir.path().join("after.json"));
    let mut result = read(&before);
    for (lost, code) in [(None, 0), (Some("tolaria.rollback.fast_hits_total"), 1), (Some("event tolaria.diverged"), 1)]
    {
        if let Some(lost) = lost {
            result["metrics"].as_array_mut().unwrap().retain(|name| name != lost);
        }
        std::fs::write(&after, result.to_string()).unwrap();
        let compared = esper(&["bench", "compare", before.to_str().unwrap(), after.to_str().unwrap()]);
        assert_eq!(compared.status.code(), Some(code), "{}", text(&compared));
        assert_eq!(lost.is_some(), text(&compared).contains("lost: metric"));
    }
}

#[test]
fn a_drill_that_fails_is_an_exit_code_and_one_that_is_unknown_lists_those_there_are() {
    let failed = esper(&["drill", "nan", "--device", "cuda:7"]);
    assert_eq!(failed.status.code(), Some(1), "{}", text(&failed));
    assert!(text(&failed).starts_with("nan") && text(&failed).contains("FAILED"), "{}", text(&failed));
    let unknown = esper(&["drill", "flood"]);
    assert_eq!(unknown.status.code(), Some(2));
    for expected in ["`flood`", "rollback-deadline: ", "disk-full: ", "lost-device: "] {
        assert!(text(&unknown).contains(expected), "{}", text(&unknown));
    }
}
