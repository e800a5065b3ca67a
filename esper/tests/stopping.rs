//! When a run of the command ends, and what it keeps.
#![expect(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use serde_json::Value;
use tolaria::checkpoint::{CheckpointReader, StdFs};

/// Exit code, standard output, standard error of `esper train --out out`.
fn train(out: &Path, args: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("esper"));
    command.args(["train", "--json", "--policy", "off", "--out", out.to_str().unwrap()]).args(args);
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[track_caller]
fn trained(out: &Path, args: &[&str]) -> (Value, String) {
    let (code, summary, error) = train(out, args);
    assert_eq!(code, Some(0), "{args:?}: {error}");
    (serde_json::from_str(summary.lines().last().unwrap()).unwrap(), error)
}

#[track_caller]
fn refused(args: &[&str], expected: &str) {
    let dir = tempfile::tempdir().unwrap();
    let (code, _, error) = train(&dir.path().join("run"), args);
    assert_eq!(code, Some(2), "{args:?}: {error}");
    assert!(error.contains(expected), "{args:?}: {error}");
}

fn lines(out: &Path) -> Vec<Value> {
    let text = fs::read_to_string(out.join("metrics.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_run_that_gets_no_better_ends_with_the_reason_and_keeps_its_best_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    let stop = ["--epochs", "99", "--set", "train.early_stop.patience=2", "--set", "train.early_stop.min_delta=0.3"];
    let (summary, error) = trained(&out, &stop);
    let epochs = lines(&out);
    assert!((3..99).contains(&epochs.len()), "{summary}");
    assert_eq!((&summary["outcome"], &summary["epochs"]), (&"completed".into(), &epochs.len().into()));
    let reason = summary["reason"].as_str().unwrap();
    assert!(
        reason.starts_with("stopped early: validation loss did not improve by more than 0.3 in 2 epochs"),
        "{reason}"
    );
    assert!(error.contains(reason), "{error}");
    assert!(fs::read_to_string(out.join("report.html")).unwrap().contains("stopped early"));
    assert!(summary["test_accuracy"].is_f64(), "{summary}");

    let loss = |epoch: &Value| epoch["validation"]["loss"].as_f64().unwrap();
    let lowest = epochs.iter().map(loss).fold(f64::INFINITY, f64::min);
    let best = &summary["best"];
    assert_eq!(best["loss"].as_f64(), Some(lowest));
    let at = usize::try_from(best["epoch"].as_u64().unwrap()).unwrap() - 1;
    assert_eq!(loss(&epochs[at]).to_bits(), lowest.to_bits());
    let kept = CheckpointReader::new(out.join("checkpoints"), Arc::new(StdFs)).load_pinned().unwrap().unwrap();
    assert_eq!(Some(kept.snapshot.meta.step.0), best["step"].as_u64());

    // It is over already, until it may go on.
    assert_eq!(trained(&out, &["--resume"]).0["reason"].as_str(), Some(reason));
    assert_eq!(lines(&out).len(), epochs.len());
    let num_epochs = (epochs.len() + 1).to_string();
    let more = ["--resume", "--epochs", &num_epochs, "--set", "train.early_stop.patience=50"];
    assert_eq!(trained(&out, &more).0["epochs"], epochs.len() + 1);
}

#[test]
fn a_run_of_so_many_steps_is_evaluated_and_kept_in_the_middle_of_an_epoch() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    let knobs = ["--set", "train.eval_every_steps=15", "--set", "checkpoint.every_steps=10"];
    let (summary, error) = trained(&out, &[&["--max-steps", "50"], &knobs[..]].concat());
    assert_eq!((&summary["steps"], &summary["epochs"]), (&50.into(), &1.into()));
    assert_eq!(summary["reason"], "stopped at `max_steps`: 50 optimizer steps were taken");
    for step in [15, 30, 45, 50] {
        assert!(error.contains(&format!("step {step}  loss ")), "{error}");
    }
    let evaluated: Vec<u64> =
        lines(&out)[0]["evaluations"].as_array().unwrap().iter().map(|at| at["step"].as_u64().unwrap()).collect();
    assert_eq!(evaluated, [15, 30]);

    let (code, _, error) = train(&out, &["--resume", "--max-steps", "49"]);
    assert_eq!(code, Some(2), "{error}");
    assert!(error.contains("`run.max_steps` is 49, but the run has taken 50 steps; expected at least 50"), "{error}");
    assert_eq!(trained(&out, &["--resume", "--max-steps", "60"]).0["steps"], 60);
    let whole = dir.path().join("whole");
    trained(&whole, &["--max-steps", "60"]);
    let newest = |out: &Path| {
        let loaded = CheckpointReader::new(out.join("checkpoints"), Arc::new(StdFs)).load_latest().unwrap().unwrap();
        fs::read(out.join("checkpoints").join(loaded.generation.directory_name()).join("tensors.safetensors")).unwrap()
    };
    assert!(newest(&out) == newest(&whole), "the parameters differ from those of a run without a break");
}

#[test]
fn mistakes_name_the_key_and_what_is_accepted() {
    refused(&["--max-steps", "0"], "`run.max_steps` is 0, expected a whole number above 0");
    refused(&["--set", "train.eval_every_steps=-1"], "`train.eval_every_steps` is -1, expected a whole number above 0");
    refused(&["--set", "checkpoint.every_steps=often"], "expected a whole number above 0");
    refused(&["--set", "checkpoint.keep_best=1"], "`checkpoint.keep_best` is 1, expected true or false");
    refused(
        &["--set", "train.early_stop.patience=0"],
        "`train.early_stop.patience` is 0, expected a whole number above 0",
    );
    let patience = ["--set", "train.early_stop.patience=3"];
    refused(
        &[&patience[..], &["--set", "train.early_stop.measure=f1"]].concat(),
        "`train.early_stop.measure` is \"f1\", expected one of what is measured: loss, accuracy",
    );
    refused(
        &[&patience[..], &["--set", "train.early_stop.min_delta=-1.0"]].concat(),
        "`train.early_stop.min_delta` is -1.0, expected a finite number, at least 0",
    );
    refused(&["--set", "train.early_stop.min_delta=0.1"], "patience");
}
