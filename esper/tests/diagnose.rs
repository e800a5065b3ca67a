//! `esper diagnose` on the CPU: what it looks at, what it says of what needs a GPU, its mistakes and its exit codes.
#![expect(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::process::{Command, Output};

use serde_json::Value;

fn diagnose(args: &[&str]) -> Output {
    let esper = assert_cmd::cargo::cargo_bin!("esper");
    Command::new(esper).args(["diagnose", "--device", "cpu", "--quick"]).args(args).output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

#[test]
fn what_the_cpu_can_do_is_looked_at_and_the_rest_needs_a_gpu_and_is_absent() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("found.json");
    let output = diagnose(&["--ablate-config", "recompute;tf32=true", "--out", file.to_str().unwrap()]);
    let told = text(&output);
    assert_eq!(output.status.code(), Some(0), "{told}");
    for expected in [
        "36080 parameters on cpu",
        "checked steps: 3 steps, 27 waits, no error",
        "graph check: needs a GPU",
        "capture by part: 0 of 1 losses",
        "latency of captures: needs a GPU",
        "captured and compiled steps, device memory: needs a GPU",
        "varying batch (2x36, 32x36, 8x36, 2x36, 32x36): 5 steps; 0 of 5 losses",
        "varying sequence (2x6, 2x36, 2x36, 2x6, 2x36): 5 steps; 0 of 5 losses",
        "number of captures: needs a GPU",
        "a whole call: needs a GPU",
        "recompute=true: steps of 2 samples",
        "tf32=true: needs a GPU",
    ] {
        assert!(told.contains(expected), "no `{expected}` in {told}");
    }
    let result: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(result["name"], "found");
    let measurements = result["measurements"].as_object().unwrap();
    for name in ["modes.eager.step", "recompute=true.eager.step", "dispatch.key", "dispatch.look_up", "checked.step"] {
        assert!(measurements[name]["median"].as_f64().unwrap() > 0.0, "{name}");
    }
    for name in ["check.parts", "check.varying.batch", "check.varying.sequence"] {
        assert_eq!(measurements[name]["median"], 1.0, "{name}");
    }
    let of_gpus = ["captured", "compiled", "memory", "latency", "call", "captures", "breaks", "tf32"];
    let found = measurements.keys().find(|name| of_gpus.iter().any(|of_gpu| name.contains(of_gpu)));
    assert_eq!(found, None, "what was not measured is absent");
}

#[test]
fn sections_are_left_out_on_request_and_when_the_time_is_over() {
    let skipped = ["--skip-checked-steps", "--skip-graph-check", "--skip-capture-bench", "--skip-baseline"];
    let told = text(&diagnose(&[&skipped[..], &["--skip-vary-sequence", "--vary-batch", "1,3"]].concat()));
    assert!(told.contains("varying batch (1x36, 3x36): 2 steps; 0 of 2"), "{told}");
    for other in ["checked", "parts", "modes", "sequence", "dispatch"] {
        assert!(!told.contains(other), "{other} in {told}");
    }
    let told = text(&diagnose(&["--seconds", "0"]));
    for section in ["checked", "parts", "modes", "varying batch", "varying sequence", "dispatch"] {
        assert!(told.contains(&format!("{section}: not looked at, the 0 s of --seconds are over")), "{told}");
    }
}

#[test]
fn an_operation_that_fails_is_named_with_step_and_part_and_is_an_exit_code() {
    let output = diagnose(&["--plant", "failure:language.1:2", "--skip-capture-bench", "--skip-graph-check"]);
    let told = text(&output);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("checked steps: an error at step 2, `language.1`: planted"), "{told}");
    assert!(told.contains("varying sequence"), "the rest is looked at all the same: {told}");
}

#[track_caller]
fn mistake(args: &[&str], expected: &str) {
    let output = diagnose(args);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
    assert!(text(&output).contains(expected), "{}", text(&output));
}

#[test]
fn a_mistake_is_told_with_what_is_accepted() {
    mistake(&["--large-scale"], "cannot be used with");
    mistake(
        &["--ablate-config", "compile;speed"],
        "`speed` is no setting of execution: expected some of compile, graphs, overlap, recompute, tf32",
    );
    mistake(&["--ablate-config", "compile=maybe"], "`compile` is `maybe`: expected true or false");
    mistake(&["--vary-batch", "2,0"], "--vary-batch 0: expected 1 or more");
    mistake(&["--vary-sequence", "5"], "--vary-sequence 5: expected 6 to 36 tokens");
    mistake(&["--vary-batch", "--skip-vary-batch"], "cannot be used with");
    mistake(&["--out", "folder"], "expected the name of a file that ends in .json");
    mistake(&["--plant", "failure:language.2:0"], "there is no part `language.2`; expected one of vision.embed");
    mistake(&["--plant", "panic"], "expected host_read:PART or failure:PART:STEP");
}
