//! Run folders of earlier releases are taken up and go on: `golden/README.md` says what to do when this fails.
#![expect(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Sums of floats are taken in another order on another processor.
const TOLERANCE: f64 = 1e-3;

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// The release folders, and what their runs come to.
fn releases() -> Vec<(PathBuf, Value)> {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let folders = fs::read_dir(golden).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir());
    let of = |path: PathBuf| {
        let expected = serde_json::from_str(&fs::read_to_string(path.join("expected.json")).unwrap()).unwrap();
        (path.join("run"), expected)
    };
    folders.map(of).collect()
}

/// Takes up a copy of the run without these parts of it; the summary.
fn resume(run: &Path, without: &[&str]) -> Value {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    copy(run, &out);
    for part in without {
        fs::remove_dir_all(out.join(part)).unwrap();
    }
    let args = ["train", "--resume", "--max-steps", "108", "--json", "--progress", "plain", "--out"];
    let output =
        Command::new(assert_cmd::cargo::cargo_bin!("esper")).args(args).arg(&out).current_dir(&dir).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {error}", run.display());
    serde_json::from_str(String::from_utf8(output.stdout).unwrap().lines().last().unwrap()).unwrap()
}

#[test]
fn the_run_of_every_release_is_taken_up_in_the_middle_of_an_epoch_and_ends_as_it_did() {
    let releases = releases();
    assert!(!releases.is_empty());
    for (run, expected) in releases {
        // The newest checkpoint, and the best one, which has a format of its own.
        let newest = format!("checkpoints/gen-{:0>8}", expected["resumed_from"].as_str().unwrap());
        for without in [&[][..], &[&*newest]] {
            let found = resume(&run, without);
            for field in ["epochs", "steps", "parameters", "host_parameters", "outcome", "seeds"] {
                assert_eq!(found[field], expected[field], "{}: {field}", run.display());
            }
            assert_eq!(found["resumed_from"] == expected["resumed_from"], without.is_empty());
            let (found, expected) = (found["test_loss"].as_f64().unwrap(), expected["test_loss"].as_f64().unwrap());
            assert!((found - expected).abs() < TOLERANCE, "{}: {found}, expected {expected}", run.display());
        }
    }
}
