//! Signals: a checkpoint is written, the exit code says so, and the resumed run ends like the uninterrupted one.
#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use assert_cmd::cargo::cargo_bin;
use leyline::clock::{Clock as _, SystemClock};
use leyline::durable::SavedState;
use serde_json::Value;
use tolaria::checkpoint::{CheckpointReader, StdFs};
use tolaria::host_read::{HostReads, read_vec};

const INTERRUPTED: i32 = 130;

fn esper(args: &[&str], out: &Path) -> Child {
    let program = std::env::var_os("ESPER_PROGRAM").map_or_else(|| cargo_bin!("esper").to_owned(), PathBuf::from);
    Command::new(program)
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

/// Waits until the run has written so many epochs, so that the signal meets it at work.
fn wait_for(num_epochs: usize, out: &Path) {
    let metrics = out.join("metrics.jsonl");
    for _ in 0..4_000 {
        if std::fs::read_to_string(&metrics).is_ok_and(|text| text.lines().count() >= num_epochs) {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("no epoch within 20 s");
}

/// Whether the signals found the process. The shell's own `kill`: the program of that name is not on every machine.
fn signal(child: &Child, names: &[&str]) -> bool {
    let kills: Vec<String> = names.iter().map(|name| format!("kill -{name} {}", child.id())).collect();
    Command::new("sh").args(["-c", &kills.join(" && ")]).stderr(Stdio::null()).status().unwrap().success()
}

/// Everything that the newest checkpoint holds: documents, but for the commands of a process and the numbers of its layouts, and
/// bits of tensors.
fn newest_checkpoint(out: &Path) -> Vec<(String, Value, Vec<u32>)> {
    let reader = CheckpointReader::new(out.join("checkpoints"), Arc::new(StdFs));
    let snapshot = reader.load_latest().unwrap().unwrap().snapshot;
    let bits = |tensor: &candle_core::Tensor| {
        read_vec(tensor, "test", &mut HostReads::default()).unwrap().into_iter().map(f32::to_bits)
    };
    let of = |(name, state): (String, SavedState)| {
        let mut document: Value = serde_json::from_str(&state.json).unwrap();
        if let Some(fields) = document.as_object_mut() {
            fields.retain(|field, _| !["replay_window", "sequence", "revision"].contains(&&**field));
        }
        (name, document, state.tensors.values().flat_map(bits).collect())
    };
    snapshot.components.into_iter().map(of).collect()
}

/// A number at random below another: [Steele et al. 2014](https://doi.org/10.1145/2714064.2660195).
fn random(state: &mut u64, below: u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (mixed ^ (mixed >> 31)) % below
}

/// A longer one of this, with a record: `ESPER_SIGTERMS=200 ESPER_SIGTERMS_LOG=FILE cargo test -p esper --test interrupted random`;
/// faster with `ESPER_PROGRAM=target/release/esper`.
#[test]
fn a_run_that_is_stopped_at_random_times_by_any_signal_is_resumable_each_time_and_ends_with_the_same_bits() {
    let asked: Option<usize> = std::env::var("ESPER_SIGTERMS").ok().map(|number| number.parse().unwrap());
    let num_signals = asked.unwrap_or(3);
    let names = if asked.is_some() { &["TERM"][..] } else { &["INT", "TERM", "HUP"] };
    let settings = |seed: u64| {
        let seed = seed.to_string();
        let every = ["--set", "checkpoint.every_steps=7", "--set", "train.eval_every_steps=9"];
        let fixed = ["--epochs", "40", "--json", "--progress", "plain", "--seed", &seed];
        fixed.iter().chain(&every).map(ToString::to_string).collect::<Vec<String>>()
    };
    let (mut state, mut stops, mut num_runs, mut num_early) = (7, Vec::new(), 0, 0);
    while stops.len() < num_signals {
        num_runs += 1;
        let dir = tempfile::tempdir().unwrap();
        let (whole, parts) = (dir.path().join("whole"), dir.path().join("parts"));
        let settings = settings(num_runs);
        let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
        let clock = SystemClock::new();
        let (code, expected, error) = finish(esper(&settings, &whole));
        assert_eq!(code, Some(0), "{error}");
        let whole_ms = u64::try_from(clock.now().as_millis()).unwrap();
        let mut last = 0;
        let resumed = loop {
            let is_begun = parts.join("config.toml").is_file();
            let child =
                esper(if is_begun { &["--resume", "--json", "--progress", "plain"] } else { &settings }, &parts);
            if stops.len() < num_signals {
                std::thread::sleep(Duration::from_millis(random(&mut state, whole_ms.max(2))));
                signal(&child, &[names[stops.len() % names.len()]]);
            }
            let output = child.wait_with_output().unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            let summary = || serde_json::from_str::<Value>(text.lines().last().unwrap()).unwrap();
            match output.status.code() {
                Some(0) => break summary(),
                // Before it listens, at its very start.
                None => num_early += 1,
                code => {
                    assert_eq!(code, Some(INTERRUPTED), "{}", String::from_utf8_lossy(&output.stderr));
                    assert_eq!(summary()["outcome"], "interrupted");
                    assert!(summary()["test_accuracy"].is_null(), "test data were read before the end");
                    let reader = CheckpointReader::new(parts.join("checkpoints"), Arc::new(StdFs));
                    let newest = reader.load_latest().unwrap().unwrap();
                    assert!(newest.skipped.is_empty() && newest.snapshot.meta.step.0 >= last);
                    last = newest.snapshot.meta.step.0;
                    stops.push(last);
                }
            }
        };
        for field in ["test_accuracy", "test_loss", "epochs", "steps", "parameters", "seeds"] {
            assert_eq!(resumed[field], expected[field], "run {num_runs}: {field}");
        }
        assert_eq!(newest_checkpoint(&parts), newest_checkpoint(&whole), "run {num_runs}");
        assert!(parts.join("report.html").is_file());
    }
    if let Ok(log) = std::env::var("ESPER_SIGTERMS_LOG") {
        let record = serde_json::json!({
            "signals": stops.len(), "before_the_process_listened": num_early, "runs": num_runs,
            "runs_that_ended_with_other_bits": 0, "stopped_after_step": stops,
        });
        std::fs::write(log, record.to_string() + "\n").unwrap();
    }
}

#[test]
fn a_second_signal_ends_the_process_at_once_and_a_checkpoint_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    let child = esper(&["--epochs", "4000", "--json", "--progress", "plain"], &out);
    // The second epoch comes after the checkpoint of the first.
    wait_for(2, &out);
    assert!(signal(&child, &["TERM", "HUP"]));
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(INTERRUPTED));
    assert!(output.stdout.is_empty(), "an orderly end has a summary");
    assert!(!newest_checkpoint(&out).is_empty());
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
