//! `esper emergency`: a run is told of a level by another process, says what it is, and ends at a halt with exit code 3.
#![cfg(unix)]

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

fn esper(args: &[&str]) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("esper"));
    command.args(args);
    command
}

/// Code, standard output, standard error.
fn told(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

fn wait_for_an_epoch(out: &Path) {
    for _ in 0..4_000 {
        if std::fs::read_to_string(out.join("metrics.jsonl")).is_ok_and(|text| text.lines().count() > 0) {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("no epoch within 20 s");
}

#[test]
fn another_process_raises_the_level_up_to_a_halt_and_the_run_can_be_resumed() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    let folder = out.to_str().unwrap();
    let train = ["train", "--out", folder, "--epochs", "4000", "--policy", "off", "--json", "--progress", "plain"];
    let child = esper(&train).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for_an_epoch(&out);
    let order = |args: &[&str]| told(&esper(&[&["emergency", folder], args].concat()).output().unwrap());
    assert_eq!(order(&[]), (Some(0), "0 (normal): the run begins\n".to_owned(), String::new()));
    for (level, reason, expected) in [
        ("1", "look", "1 (notice): look\n"),
        ("safe", "data are being repaired", "3 (safe): data are being repaired\n"),
        ("normal", "they are", "0 (normal): they are\n"),
    ] {
        let answer = order(&["--level", level, "--reason", reason]);
        assert_eq!((answer.0, answer.1.as_str()), (Some(0), expected), "{}", answer.2);
    }
    assert_eq!(order(&["--level", "5"]).0, Some(2));
    assert_eq!(order(&["--level", "halt", "--reason", "fire"]).1, "4 (halt): fire\n");
    let (code, printed, error) = told(&child.wait_with_output().unwrap());
    assert_eq!(code, Some(3), "{error}");
    assert!(error.contains("emergency level 3 (safe): data are being repaired"), "{error}");
    let summary: Value = serde_json::from_str(printed.lines().last().unwrap()).unwrap();
    assert_eq!((&summary["outcome"], &summary["reason"]), (&"halted".into(), &"halted by an emergency: fire".into()));
    // Nobody is there any more; what was ordered is no order to the next process.
    let (code, _, error) = order(&["--level", "4"]);
    assert!(code == Some(2) && error.contains("no process trains there"), "{error}");
    let epochs = (summary["epochs"].as_u64().unwrap() + 2).to_string();
    let resume = ["train", "--resume", "--out", folder, "--epochs", &epochs, "--json", "--progress", "off"];
    let (code, printed, error) = told(&esper(&resume).output().unwrap());
    assert_eq!(code, Some(0), "{error}");
    let summary: Value = serde_json::from_str(printed.lines().last().unwrap()).unwrap();
    assert_eq!((&summary["outcome"], summary["epochs"].to_string()), (&"completed".into(), epochs));
}
