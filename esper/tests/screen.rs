//! `--tui`: refused without a terminal, and the terminal comes back after a run on one.
#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a helper of a test fails the test")]
#![expect(
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "how long a real process takes; what was left out"
)]

use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

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

/// A run on a terminal that `script` makes; what it wrote there, and how long it took after the last of the keys, which are
/// typed one by one on its screen. Absent where there is no such program.
fn on_a_terminal(args: &[&str], keys: &[u8]) -> Option<(Duration, String)> {
    let program = assert_cmd::cargo::cargo_bin!("esper");
    let command =
        format!("stty rows 24 cols 80; {} train --tui {}; echo exit $?; stty -a", program.display(), args.join(" "));
    let child = Command::new("script")
        .args(["-qec", &command, "/dev/null"])
        .env("TERM", "xterm")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let Ok(mut child) = child else {
        eprintln!("SKIPPED: there is no `script` to make a terminal with");
        return None;
    };
    // The terminal is there as long as somebody may type.
    let (mut input, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let (mut bytes, mut piece, mut typed) = (Vec::new(), [0; 4096], None);
    loop {
        let count = output.read(&mut piece).unwrap();
        bytes.extend(&piece[..count]);
        if typed.is_none() && bytes.windows(8).any(|found| found == b"\x1b[?1049h") {
            for key in keys {
                std::thread::sleep(Duration::from_millis(500));
                input.write_all(&[*key]).and_then(|()| input.flush()).unwrap();
            }
            typed = Some(Instant::now());
        }
        if count == 0 {
            break;
        }
    }
    child.wait().unwrap();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    Some((typed.unwrap_or_else(|| panic!("the screen was not opened: {text}")).elapsed(), text))
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

#[test]
fn the_second_interrupt_ends_a_run_in_the_middle_of_a_step_and_gives_the_terminal_back() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    // A step of many seconds.
    let settings = ["host.mlp.hidden=[3072,3072]", "train.batch.batch_size=1079"].map(|set| ["--set", set]).concat();
    let args = [&["--policy", "off", "--out", out.to_str().unwrap()][..], &settings].concat();
    let Some((took, text)) = on_a_terminal(&args, b"\x03\x03") else { return };
    let (_, after) = text.split_once("\u{1b}[?1049l").unwrap_or_else(|| panic!("the screen was not left: {text}"));
    assert!(after.contains("exit 130"), "{after}");
    assert!(after.contains(" icanon") && after.contains(" echo "), "{after}");
    assert!(took < Duration::from_secs(2), "{took:?}");
}
