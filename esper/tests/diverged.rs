//! A run that diverges says so: in its outcome, its files, its exit code, and what can be done.
#![expect(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::process::Command;

use serde_json::Value;

struct Ran {
    code: Option<i32>,
    /// The last line of standard output.
    printed: Value,
    error: String,
    summary: Value,
    report: String,
}

fn train(learning_rate: &str) -> Ran {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    let output = Command::new(assert_cmd::cargo::cargo_bin!("esper"))
        .args(["train", "--out", out.to_str().unwrap(), "--epochs", "3", "--seed", "3", "--json", "--progress", "off"])
        .args(["--set", &format!("train.schedule.learning_rate={learning_rate}")])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    let last = text.lines().last().unwrap_or_else(|| panic!("nothing on standard output: {error}"));
    Ran {
        code: output.status.code(),
        printed: serde_json::from_str(last).unwrap(),
        error,
        summary: serde_json::from_str(&std::fs::read_to_string(out.join("summary.json")).unwrap()).unwrap(),
        report: std::fs::read_to_string(out.join("report.html")).unwrap(),
    }
}

#[test]
fn a_run_that_diverges_says_so_and_what_can_be_done() {
    for learning_rate in ["1e3", "1e30"] {
        let ran = train(learning_rate);
        assert_eq!(
            (ran.code, &ran.printed["outcome"]),
            (Some(1), &"diverged".into()),
            "{learning_rate}: {}",
            ran.error
        );
        assert_eq!(ran.printed, ran.summary);
        let reason = ran.summary["reason"].as_str().unwrap_or_else(|| panic!("{}", ran.summary));
        assert!(reason.contains("diverged") && reason.contains("clip_norm"), "{reason}");
        assert!(ran.error.contains(reason), "{}", ran.error);
        assert!(ran.report.contains("training diverged"), "the page");
    }
}

#[test]
fn a_run_that_learns_has_no_reason_to_give() {
    let ran = train("0.003");
    assert_eq!((ran.code, &ran.printed["outcome"]), (Some(0), &"completed".into()), "{}", ran.error);
    assert!(ran.summary["reason"].is_null());
}
