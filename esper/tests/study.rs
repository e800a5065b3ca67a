//! A study that ends early keeps what was done.
#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

/// A study of two short trainings for each seed.
fn study(dir: &Path, more: &[&str]) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("esper"));
    command.current_dir(dir).args(["study", "--policies", "fixed,off", "--out", "runs.json"]).args(more);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn text(output: &Output) -> (String, String) {
    (String::from_utf8_lossy(&output.stdout).into_owned(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn runs(dir: &Path) -> Vec<Value> {
    serde_json::from_slice(&std::fs::read(dir.join("runs.json")).unwrap()).unwrap_or_default()
}

#[test]
fn every_arm_is_in_the_table_and_in_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let output = study(dir.path(), &["--seeds", "2", "--set", "run.epochs=1"]).output().unwrap();
    let (table, told) = text(&output);
    assert_eq!(output.status.code(), Some(0), "{told}");
    assert_eq!((table.lines().count(), runs(dir.path()).len()), (4, 4), "{table}");
    assert!(!told.contains("runs were done"), "{told}");
}

#[test]
fn a_study_that_is_interrupted_gives_the_table_of_what_was_done() {
    let dir = tempfile::tempdir().unwrap();
    let child = study(dir.path(), &["--seeds", "500", "--set", "run.epochs=2"]).spawn().unwrap();
    for _ in 0..12_000 {
        if std::fs::metadata(dir.path().join("runs.json")).is_ok_and(|file| file.len() > 500) {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    // The shell's own `kill`: the program of that name is not on every machine.
    Command::new("sh").args(["-c", &format!("kill -INT {}", child.id())]).status().unwrap();
    let output = child.wait_with_output().unwrap();
    let (table, told) = text(&output);
    assert_eq!(output.status.code(), Some(130), "{told}");
    let done = runs(dir.path()).len();
    assert!(done >= 2 && told.contains(&format!("{done} of 1000 runs were done")), "{told}");
    assert!(table.contains("| digits | fixed |") && table.contains("| digits | off |"), "{table}");
}

#[test]
fn a_study_whose_file_cannot_be_written_any_more_still_prints_its_table() {
    let Ok(full) = std::fs::OpenOptions::new().write(true).open("/dev/full") else { return };
    drop(full);
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("esper"));
    command.current_dir(dir.path()).args(["study", "--policies", "off", "--seeds", "2", "--out", "/dev/full"]);
    let output = command.args(["--set", "run.epochs=1"]).output().unwrap();
    let (table, told) = text(&output);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("writing /dev/full") && told.contains("1 of 2 runs were done"), "{told}");
    assert!(table.contains("| digits | off |"), "{table}");
}
