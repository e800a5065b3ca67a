//! `--tui`: refused without a terminal, and the terminal comes back after a run on one.
#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::process::{Command, Stdio};

fn esper() -> Command {
    Command::new(assert_cmd::cargo::cargo_bin!("esper"))
}

#[test]
fn a_screen_is_refused_where_there_is_none_and_nothing_is_made() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    let output = esper().args(["train", "--tui", "--out", out.to_str().unwrap()]).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("--tui: standard output is not a terminal; expected a terminal there"), "{error}");
    assert!(!out.exists());
    let both = esper().args(["train", "--tui", "--progress", "plain"]).output().unwrap();
    assert_eq!(both.status.code(), Some(2), "{}", String::from_utf8_lossy(&both.stderr));
}

/// A run on a terminal that `script` makes; what it wrote there. Absent where there is no such program.
fn on_a_terminal(args: &[&str], keys: &'static [u8]) -> Option<(bool, String)> {
    use std::io::Write as _;
    let program = assert_cmd::cargo::cargo_bin!("esper");
    let command =
        format!("stty rows 24 cols 80; {} train --tui {}; echo exit $?; stty -a", program.display(), args.join(" "));
    let mut child = Command::new("script")
        .args(["-qec", &command, "/dev/null"])
        .env("TERM", "xterm")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .ok()?;
    let mut input = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(1500));
        input.write_all(keys).and_then(|()| input.flush()).ok();
        // The terminal is there as long as somebody may type.
        input
    });
    let output = child.wait_with_output().unwrap();
    drop(writer.join().unwrap());
    Some((output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned()))
}

#[test]
fn a_run_on_a_terminal_draws_ends_on_a_key_and_gives_the_terminal_back() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    let args = ["--out", out.to_str().unwrap(), "--epochs", "100000", "--set", "checkpoint.every_epochs=100000"];
    let Some((_, text)) = on_a_terminal(&args, b"q") else { return };
    let (drawn, after) = text.split_once("\u{1b}[?1049l").unwrap_or_else(|| panic!("the screen was not left: {text}"));
    assert!(drawn.contains("\u{1b}[?1049h") && drawn.contains("events"), "{drawn}");
    // As after a signal, with a checkpoint, and lines are read as lines again.
    assert!(after.contains("exit 130") && after.contains("interrupted"), "{after}");
    assert!(after.contains(" icanon") && after.contains(" echo "), "{after}");
    assert!(out.join("checkpoints").read_dir().unwrap().count() > 1, "the lock and a checkpoint");
}
