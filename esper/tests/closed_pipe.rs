//! Readers that leave early, as `head` does: no sub-command panics, and each ends with the code of one that was read.
#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::path::Path;
use std::process::{Command, Stdio};

use clap::CommandFactory as _;
use esper::cli::Cli;

/// A seed after the first epoch, which trains in the next ones.
const GROWING: [&str; 6] =
    ["--policy", "fixed", "--set", "policy.fixed.training_epochs=1", "--set", "train.batch.microbatches_per_step=1"];

/// A pipe that nobody reads.
fn closed() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

/// The exit code of `esper ARGS` in `dir`, which is put back as it was found, but for what `keep` names.
fn code(dir: &Path, args: &[&str], stdout: Stdio, stderr: Stdio) -> Option<i32> {
    for made in ["new", "library", "study.json"] {
        let path = dir.join(made);
        std::fs::remove_dir_all(&path).or_else(|_| std::fs::remove_file(&path)).ok();
    }
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("esper"));
    // Diagnostic lines are written too.
    command.current_dir(dir).args(args).env("RUST_LOG", "trace").env("RAYON_NUM_THREADS", "1");
    command.stdin(Stdio::null()).stdout(stdout).stderr(stderr).status().unwrap().code()
}

#[test]
fn every_sub_command_ends_as_it_does_when_somebody_reads() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a.toml"), "[run]\nepochs = 3\n").unwrap();
    std::fs::write(dir.path().join("rows.csv"), "0".to_owned() + &",3".repeat(63) + "\n").unwrap();
    let results = Path::new(env!("CARGO_MANIFEST_DIR")).join("../baselines/perf/wp100/graph-bench.json");
    let results = results.to_str().unwrap();
    let train = |out| [&["train", "--epochs", "3", "--out", out][..], &GROWING].concat();
    assert_eq!(code(dir.path(), &train("run"), Stdio::null(), Stdio::null()), Some(0));
    let cases: &[(&[&str], i32)] = &[
        (&train("new"), 0),
        (&[&train("new")[..], &["--json", "--progress", "off"]].concat(), 0),
        (&["train", "--policy", "clever"], 2),
        (&["train", "--resume", "--out", "run"], 0),
        (&["report", "run"], 0),
        (&["report", "."], 2),
        (&["emergency", "run"], 2),
        (&["emergency", "."], 2),
        (&["evaluate", "run"], 0),
        (&["evaluate", "run", "--json"], 0),
        (&["evaluate", "."], 2),
        (&["predict", "run", "--data", "rows.csv"], 0),
        (&["predict", "run", "--data", "rows.csv", "--json"], 0),
        (&["predict", "run", "--data", "no.csv"], 2),
        (&["generate", "run", "--prompt", "a"], 2),
        (&["config", "init", "--out", "new"], 0),
        (&["config", "init", "--out", "a.toml"], 2),
        (&["config", "explain"], 0),
        (&["config", "explain", "run.epochs"], 0),
        (&["config", "explain", "run.epochz"], 2),
        (&["decisions", "run", "--replay"], 0),
        (&["decisions", "new"], 2),
        (&["runs", "list", "."], 0),
        (&["runs", "list", ".", "--json"], 0),
        (&["runs", "list", "new"], 2),
        (&["runs", "compare", "run", "run"], 0),
        (&["runs", "compare", "run", "new"], 2),
        (&["export", "run", "--to", "new"], 0),
        (&["export", "run", "--to", "run"], 2),
        (&["check-config", "a.toml"], 0),
        (&["check-config", "b.toml"], 2),
        (&["seeds", "export", "run", "--seed", "1", "--library", "library"], 0),
        (&["seeds", "export", "run", "--seed", "9", "--library", "library"], 2),
        (&["telemetry", "decode", "run/packets.bin"], 0),
        (&["telemetry", "decode", "run/packets.bin", "--json"], 0),
        (&["telemetry", "decode", "no.bin"], 1),
        (&["bench", "compare", results, results], 0),
        (&["bench", "compare", results, "a.toml"], 1),
        (&["bench", "peer-torch", "--python", "no-such-python"], 1),
        (&["warm-up", "--device", "cpu"], 2),
        (&["study", "--policies", "off", "--seeds", "1", "--set", "run.epochs=1", "--out", "study.json"], 0),
        (&["study", "--policies", "off", "--seeds", "0"], 2),
        (&["policy", "train", "--runs", "1", "--held-out", "1", "--set", "run.epochs=1", "--out", "new"], 0),
        (&["policy", "train", "--hidden", "0", "--out", "new"], 2),
        (&["diagnose", "--quick"], 0),
        (&["completions", "zsh"], 0),
        (&["man"], 0),
        (&["--help"], 0),
        (&["--version"], 0),
        (&["trian"], 2),
    ];
    for (args, expected) in cases {
        check(dir.path(), args, *expected);
    }
    // Any other is tried by its name alone, where that does more than to tell what is missing.
    for command in Cli::command().get_subcommands().map(clap::Command::get_name) {
        if cases.iter().all(|(args, _)| args[0] != command) {
            let expected = code(dir.path(), &[command], Stdio::null(), Stdio::null()).unwrap();
            assert_ne!(expected, 2, "esper {command} needs arguments: add a case of it");
            check(dir.path(), &[command], expected);
        }
    }
}

#[track_caller]
fn check(dir: &Path, args: &[&str], expected: i32) {
    for (what, stdout, stderr) in [
        ("both are read", Stdio::null(), Stdio::null()),
        ("standard output is closed", closed(), Stdio::null()),
        ("standard error is closed", Stdio::null(), closed()),
        ("both are closed", closed(), closed()),
    ] {
        assert_eq!(code(dir, args, stdout, stderr), Some(expected), "esper {args:?}: {what}");
    }
}

#[test]
fn a_result_that_cannot_be_written_for_another_reason_is_a_failure() {
    let Ok(full) = std::fs::OpenOptions::new().write(true).open("/dev/full") else { return };
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a.toml"), "").unwrap();
    assert_eq!(code(dir.path(), &["check-config", "a.toml"], full.into(), Stdio::null()), Some(1));
}
