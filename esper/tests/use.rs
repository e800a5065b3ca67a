//! What can be done with a network after its training: measuring it anew, exporting it.
#![expect(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::LazyLock;

use assert_cmd::Command;
use esper_export::Network;
use serde_json::Value;
use tempfile::TempDir;

/// A run whose only seed is being blended in when it ends.
static RUN: LazyLock<(TempDir, PathBuf)> = LazyLock::new(|| {
    let dir = tempfile::tempdir().unwrap();
    let set = ["policy.fixed.training_epochs=1", "train.batch.microbatches_per_step=1", "run.epochs=8"];
    let args: Vec<&str> = set.iter().flat_map(|set| ["--set", set]).collect();
    let trained = esper(dir.path(), &[&["train", "--policy", "fixed", "--out", "run"][..], &args].concat());
    assert!(trained.status.success(), "{}", String::from_utf8_lossy(&trained.stderr));
    let run = dir.path().join("run");
    (dir, run)
});

fn esper(dir: &Path, args: &[&str]) -> Output {
    Command::cargo_bin("esper").unwrap().current_dir(dir).args(args).output().unwrap()
}

/// What `esper ARGS` prints, in the folder of the run.
#[track_caller]
fn printed(args: &[&str]) -> String {
    let output = esper(RUN.0.path(), args);
    assert_eq!(output.status.code(), Some(0), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn check_refused(args: &[&str], parts: &[&str]) {
    let output = esper(RUN.0.path(), args);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
    for part in parts {
        assert!(error.contains(part), "{args:?}: `{part}` is missing in: {error}");
    }
}

fn summary() -> Value {
    serde_json::from_slice(&fs::read(RUN.1.join("summary.json")).unwrap()).unwrap()
}

#[test]
fn an_evaluation_is_that_of_the_run_to_the_last_digit() {
    let (summary, found): (_, Value) =
        (summary(), serde_json::from_str(&printed(&["evaluate", "run", "--json"])).unwrap());
    assert_eq!(found["loss"], summary["test_loss"]);
    assert_eq!(found["measures"]["accuracy"], summary["test_accuracy"]);
    let matrix: Vec<Vec<u64>> = serde_json::from_value(found["matrix"].clone()).unwrap();
    let (all, hits): (u64, u64) = (matrix.iter().flatten().sum(), (0..10).map(|class| matrix[class][class]).sum());
    assert_eq!(all, found["samples"].as_u64().unwrap());
    let accuracy = summary["test_accuracy"].as_f64().unwrap();
    assert!((hits as f64 / all as f64 - accuracy).abs() < 1e-12, "{hits} of {all}");
    let text = printed(&["evaluate", "run"]);
    assert!(text.starts_with("test part of digits, 359 samples\n") && text.contains("recall"), "{text}");
}

#[test]
fn an_export_holds_what_acts_and_replaces_nothing_unasked() {
    let text = printed(&["export", "run", "--to", "net"]);
    assert!(
        text.contains("after epoch 8") && text.contains("mlp with 1 seeds") && text.contains("net/model.json"),
        "{text}"
    );
    let dir = RUN.0.path().join("net");
    let network = Network::load(&dir).unwrap();
    let seed = &network.document().network.seeds[0];
    assert!(seed.alpha.get() > 0.0 && seed.alpha.get() < 1.0, "{seed:?}");
    check_refused(&["export", "run", "--to", "net"], &["--to net holds an export", "--force"]);
    let before = fs::read(dir.join("model.json")).unwrap();
    printed(&["export", "run", "--to", "net", "--force"]);
    assert_eq!(fs::read(dir.join("model.json")).unwrap(), before);
    check_refused(&["export", "run", "--to", "run", "--force"], &["--to run holds ", "expected a new or empty folder"]);
    check_refused(&["export", "net", "--to", "other"], &["net is not a run folder", "run.json"]);
    check_refused(&["evaluate", "net"], &["net is an export", "expected a run folder"]);
}
