//! A run whose owners conflict, from the shipped example: what it writes down, and what the page shows of it.
#![expect(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use assert_cmd::Command;
use flate2::read::GzDecoder;
use leyline::layout::Owner;
use tolaria::trainer::report::{ConflictRecord, EpochReport, OwnerRecord};

/// Both seeds act from the eighth epoch on, earlier than in the example; conflicts come in the epochs after it.
const EPOCHS: usize = 12;
const STAGES: [&str; 4] = ["--set", "policy.fixed.training_epochs=2", "--set", "policy.fixed.ramp_epochs=1"];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The shipped digits, even against odd.
fn write_parity(path: &Path) {
    let mut text = String::new();
    let packed = File::open(repository().join("data/digits/digits.csv.gz")).unwrap();
    GzDecoder::new(packed).read_to_string(&mut text).unwrap();
    let parity = |line: &str| {
        let (features, digit) = line.rsplit_once(',').unwrap();
        format!("{features},{}\n", digit.trim().parse::<u32>().unwrap() % 2)
    };
    let rows: String = text.lines().map(parity).collect();
    fs::write(path, rows).unwrap();
}

/// The epochs of a run with these settings, and its page.
fn run(settings: &[&str]) -> (Vec<EpochReport>, String) {
    let dir = tempfile::tempdir().unwrap();
    let (data, out) = (dir.path().join("parity.csv"), dir.path().join("run"));
    write_parity(&data);
    let output = Command::cargo_bin("esper")
        .unwrap()
        .args(["train", "--config", repository().join("docs/examples/conflicts.toml").to_str().unwrap()])
        .args(["--data", data.to_str().unwrap(), "--out", out.to_str().unwrap()])
        .args(["--epochs", &EPOCHS.to_string(), "--seed", "1"])
        .args(STAGES)
        .args(settings)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metrics = fs::read_to_string(out.join("metrics.jsonl")).unwrap();
    let epochs = metrics.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    (epochs, fs::read_to_string(out.join("report.html")).unwrap())
}

fn conflicts(epochs: &[EpochReport]) -> Vec<&ConflictRecord> {
    epochs.iter().filter_map(|epoch| epoch.conflict.as_ref()).collect()
}

/// What holds for every method; returns whatever the weights of the owners came to.
fn check(settings: &[&str]) -> Vec<f64> {
    let (epochs, page) = run(settings);
    let measured = conflicts(&epochs);
    assert!(measured.iter().any(|record| record.conflicts > 0), "{settings:?}: no epoch has a conflict");
    assert!(measured.iter().any(|record| record.owners.len() == 3), "{settings:?}: never three owners");
    let mut summed = 0;
    for record in &measured {
        assert_eq!(record.conflicts, record.owners.iter().map(|owner| owner.conflicts).sum::<u64>(), "{settings:?}");
        assert_eq!(record.pairs, record.owners.iter().map(|owner| owner.pairs).sum::<u64>(), "{settings:?}");
        assert!(record.owners.iter().all(|owner| !owner.layers.is_empty()), "{settings:?}: {record:?}");
        if record.owners.iter().all(|owner| owner.windows == record.windows) {
            let shares: f64 = record.owners.iter().map(|owner| owner.share).sum();
            assert!((shares - 1.0).abs() < 1e-9, "{settings:?}: shares sum to {shares}");
            summed += 1;
        }
    }
    assert!(summed > 0, "{settings:?}: no epoch in which all owners took part in all windows");

    let owners: Vec<&OwnerRecord> = measured.iter().flat_map(|record| &record.owners).collect();
    assert_eq!(owners[0].owner, Owner::Host);
    assert!(page.contains("Gradients of host and seeds"), "{settings:?}: the page has no such section");
    let layer = &owners.last().unwrap().layers[0].layer;
    for cell in ["host", "seed-1", "seed-2", layer.as_str()] {
        assert!(page.contains(cell), "{settings:?}: {cell} is not on the page");
    }
    owners.iter().map(|owner| owner.resolved_weight).collect()
}

#[test]
fn pcgrad_weighs_owners_that_conflict() {
    let weights = check(&[]);
    // Its weights are 1 plus what was projected away from others.
    assert!(weights.iter().all(|weight| *weight >= 1.0), "{weights:?}");
    assert!(weights.iter().any(|weight| *weight > 1.0), "{weights:?}");
}

#[test]
fn the_mean_measures_conflicts_and_leaves_them() {
    let weights = check(&["--set", "train.conflict=mean", "--set", "train.measure_conflicts=true"]);
    assert!(weights.iter().all(|weight| weight.to_bits() == 1.0_f64.to_bits()), "{weights:?}");
}

#[test]
fn the_mean_alone_measures_nothing() {
    let (epochs, page) = run(&["--set", "train.conflict=mean"]);
    assert_eq!(epochs.len(), EPOCHS);
    assert!(conflicts(&epochs).is_empty());
    assert!(!page.contains("Gradients of host and seeds"));
}

#[test]
fn measuring_changes_nothing_even_where_gradients_are_clipped() {
    const CLIPPED: [&str; 4] = ["--set", "train.conflict=mean", "--set", "train.clip_norm=0.1"];
    let (plain, _) = run(&CLIPPED);
    let (measured, _) = run(&[&CLIPPED[..], &["--set", "train.measure_conflicts=true"]].concat());
    assert!(conflicts(&plain).is_empty() && !conflicts(&measured).is_empty());
    let scores = |epochs: &[EpochReport]| {
        epochs.iter().map(|epoch| (epoch.train.clone(), epoch.validation.clone())).collect::<Vec<_>>()
    };
    assert_eq!(scores(&plain), scores(&measured));
}
