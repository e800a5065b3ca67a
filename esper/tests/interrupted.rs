//! Ctrl-C: a checkpoint is written, the exit code says so, and the resumed run ends like the uninterrupted one.
#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

const INTERRUPTED: i32 = 130;
/// Long enough to be interrupted, short enough to wait for.
const SETTINGS: &[&str] = &["--epochs", "80", "--seed", "3", "--json", "--progress", "plain"];

fn esper(args: &[&str], out: &Path) -> Child {
    Command::new(assert_cmd::cargo::cargo_bin!("esper"))
        .args(["train", "--out", out.to_str().unwrap()])
        .args(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Waits for the end and reads the last line of standard output.
fn finish(child: Child) -> (Option<i32>, Value, String) {
    let output = child.wait_with_output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    let text = String::from_utf8(output.stdout).unwrap();
    let last = text.lines().last().unwrap_or_else(|| panic!("no summary: {error}"));
    (output.status.code(), serde_json::from_str(last).unwrap(), error)
}

/// Waits until the run has written an epoch, so that the signal meets it at work.
fn wait_for_an_epoch(out: &Path) {
    let metrics = out.join("metrics.jsonl");
    for _ in 0..2_000 {
        if std::fs::metadata(&metrics).is_ok_and(|file| file.len() > 0) {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("no epoch within 10 s");
}

#[test]
fn an_interrupted_run_continues_to_the_same_result() {
    let dir = tempfile::tempdir().unwrap();
    let (whole, parts) = (dir.path().join("whole"), dir.path().join("parts"));
    let (code, expected, _) = finish(esper(SETTINGS, &whole));
    assert_eq!(code, Some(0));

    let child = esper(SETTINGS, &parts);
    wait_for_an_epoch(&parts);
    // The shell's own `kill`: the program of that name is not on every machine.
    let interrupted = Command::new("sh").args(["-c", &format!("kill -INT {}", child.id())]).status().unwrap();
    assert!(interrupted.success());
    let (code, stopped, error) = finish(child);
    assert_eq!(code, Some(INTERRUPTED), "{error}");
    assert_eq!(stopped["outcome"], "interrupted");
    assert!(stopped["test_accuracy"].is_null(), "test data were read before the end");
    assert!(stopped["epochs"].as_u64() < expected["epochs"].as_u64());

    let (code, resumed, error) = finish(esper(&["--resume", "--json", "--progress", "plain"], &parts));
    assert_eq!(code, Some(0), "{error}");
    assert!(resumed["resumed_from"].is_string(), "{resumed}");
    for field in ["test_accuracy", "test_loss", "epochs", "steps", "parameters", "seeds"] {
        assert_eq!(resumed[field], expected[field], "{field}");
    }
    assert!(parts.join("report.html").is_file());
}

#[test]
fn a_resumed_run_refuses_another_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    assert_eq!(finish(esper(&["--epochs", "2", "--json"], &out)).0, Some(0));
    let output = esper(&["--resume", "--set", "train.batch.batch_size=5"], &out).wait_with_output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("train.batch.batch_size (8 → 5)"), "{error}");
}

#[test]
fn a_completed_run_can_be_made_longer() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    assert_eq!(finish(esper(&["--epochs", "2", "--json"], &out)).0, Some(0));
    let (code, longer, error) = finish(esper(&["--resume", "--epochs", "4", "--json"], &out));
    assert_eq!(code, Some(0), "{error}");
    assert_eq!(longer["epochs"], 4);
    let kept = std::fs::read_to_string(out.join("config.toml")).unwrap();
    assert!(kept.contains("epochs = 4"), "{kept}");
    let (_, again, _) = finish(esper(&["--resume", "--json"], &out));
    assert_eq!(again["epochs"], 4);
    assert_eq!(again["test_accuracy"], longer["test_accuracy"]);
}
