//! Weights from one run to another: exported from a checkpoint, published in a library, and the start of a new seed.
#![expect(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::fs;
use std::path::Path;
use std::process::Output;
use std::sync::Arc;

use assert_cmd::Command;
use esper_weights::{CancelToken, DirectoryStore, KernelStore as _};
use leyline::durable::SavedState;
use leyline::id::BlueprintId;
use serde_json::Value;
use tolaria::checkpoint::{CheckpointReader, StdFs};

const USAGE: i32 = 2;

/// Digits with stages cut down so that seeds are kept within 14 epochs.
const RUN: &str = r#"
[run]
epochs = 14
[data]
validation_fraction = 0.2
test_fraction = 0.6
[train.batch]
batch_size = 8
microbatches_per_step = 4
[seeds]
seed_width = 8
blueprints = ["mlp"]
[seeds.gates]
training_min_epochs = 1
holding_min_epochs = 1
confidence_z = 0.0
[policy.heuristic.germination]
min_epoch = 1
max_parameter_ratio = 1000.0
[policy.heuristic.plateau]
patience_epochs = 1
min_relative_gain = 1.0
[policy.heuristic.evidence]
confidence_z = 0.0
[policy.heuristic.looking]
max_share = 1.0
[policy.heuristic.training]
min_epochs = 1
max_epochs = 2
[policy.heuristic.blending]
ramp_epochs = 1
[policy.heuristic.holding]
min_epochs = 1
max_epochs = 2
min_gain = 0.0
"#;

fn esper(dir: &Path, args: &[&str]) -> Output {
    Command::cargo_bin("esper").unwrap().current_dir(dir).args(args).output().unwrap()
}

#[track_caller]
fn run(dir: &Path, args: &[&str]) -> String {
    let output = esper(dir, args);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{args:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

/// The command is refused with these words.
#[track_caller]
fn refused(dir: &Path, args: &[&str], parts: &[&str]) {
    let output = esper(dir, args);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(USAGE), "{args:?}: {error}");
    for part in parts {
        assert!(error.contains(part), "{args:?}: `{part}` is missing in: {error}");
    }
}

/// The seed manager in the oldest checkpoint of a run in which the first seed has what is asked for.
fn saved(run_dir: &Path, wanted: impl Fn(&Value) -> bool) -> (SavedState, Value) {
    let reader = CheckpointReader::new(run_dir.join("checkpoints"), Arc::new(StdFs));
    for generation in reader.list().unwrap() {
        let state = reader.load(generation).unwrap().components.remove("seeds").unwrap();
        let document: Value = serde_json::from_str(&state.json).unwrap();
        if let Some(seed) = document["seeds"].as_array().unwrap().iter().find(|seed| wanted(seed)) {
            return (state, seed.clone());
        }
    }
    panic!("no checkpoint of {} has such a seed", run_dir.display());
}

/// The bits of the weights of seed 1, as `f64`, by their names.
#[allow(clippy::disallowed_methods, reason = "tests look at values")]
fn weights(state: &SavedState) -> Vec<(String, Vec<u64>)> {
    let own = state.tensors.iter().filter_map(|(name, tensor)| Some((name.strip_prefix("seed.0001.")?, tensor)));
    own.map(|(name, tensor)| {
        let values = tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        (name.to_owned(), values.into_iter().map(|value| f64::from(value).to_bits()).collect())
    })
    .collect()
}

fn published(library: &Path) -> Vec<(String, Vec<u64>)> {
    let store = DirectoryStore::open(library).unwrap();
    let artifact = store.fetch(&BlueprintId::new("mlp").unwrap(), &CancelToken::never()).unwrap();
    let bits = |values: Vec<f64>| values.into_iter().map(f64::to_bits).collect();
    artifact.weights().tensors().map(|(name, _, values)| (name.to_owned(), bits(values))).collect()
}

/// Names of the events of a run, in order, of those about weights from a library.
fn events(run_dir: &Path) -> Vec<String> {
    let text = fs::read_to_string(run_dir.join("packets.jsonl")).unwrap();
    let mut names = Vec::new();
    for line in text.lines() {
        let packet: Value = serde_json::from_str(line).unwrap();
        collect(&packet, &mut names);
    }
    names
}

fn collect(value: &Value, names: &mut Vec<String>) {
    match value {
        Value::String(text) if text.starts_with("prefetch_") || text == "fallback_applied" => names.push(text.clone()),
        Value::Array(items) => items.iter().for_each(|item| collect(item, names)),
        Value::Object(fields) => fields.values().for_each(|field| collect(field, names)),
        Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[test]
fn a_seed_starts_from_the_weights_that_one_of_another_run_was_trained_to() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    fs::write(dir.join("run.toml"), RUN).unwrap();
    let train = |out: &str, more: &[&str]| {
        let common = ["train", "--config", "run.toml", "--progress", "off", "--out", out];
        let keep = ["keep_last=99", "every_epochs=1", "keep_best=false"].map(|set| format!("checkpoint.{set}"));
        let keep: Vec<&str> = keep.iter().flat_map(|set| ["--set", set]).collect();
        run(dir, &[&common[..], &keep, more].concat());
    };
    train("first", &[]);
    let reader = CheckpointReader::new(dir.join("first/checkpoints"), Arc::new(StdFs));
    let trained = weights(&reader.load_latest().unwrap().unwrap().snapshot.components["seeds"]);
    let (before, young) = saved(&dir.join("first"), |seed| seed["id"] == "seed-1");
    assert_eq!(young["stage"], "germinated");
    assert_ne!(weights(&before), trained, "the seed of the first run was trained");

    let text = run(dir, &["seeds", "export", "first", "--seed", "1", "--library", "library"]);
    assert!(
        text.starts_with("seed-1 (mlp, fossilized) of checkpoint 14, epoch 14")
            && text.contains("published as `mlp` in library"),
        "{text}"
    );
    let library = published(&dir.join("library"));
    assert_eq!(library, trained);

    // The same seed of everything random: without the library it would start as the first one did.
    let with_library = [
        "seeds.library.path=library",
        "seeds.library.on_failure=fresh",
        // A busy machine may take its time: many epochs, and a deadline beyond all of them.
        "run.epochs=40",
        "seeds.library.prefetch.deadline_ms=60000",
    ];
    train("second", &with_library.map(|setting| ["--set", setting]).concat());
    // Weights are put in place when a step ends, and the gate before training is asked when an epoch ends: in the first
    // checkpoint after that it has not trained.
    let (state, seed) = saved(&dir.join("second"), |seed| seed["id"] == "seed-1" && seed["weights_pending"] == false);
    assert_eq!(seed["slot"], young["slot"]);
    assert!(seed["stage"] == "germinated" || (seed["stage"] == "training" && seed["epochs_in_stage"] == 0), "{seed}");
    assert_eq!(weights(&state), library);
    let events = events(&dir.join("second"));
    assert_eq!(events[..2], ["prefetch_requested", "prefetch_ready"], "{events:?}");
    // A seed of the same blueprint in a slot of another shape: its own weights are drawn.
    let misfit = ["prefetch_requested", "prefetch_attach_failed", "fallback_applied"];
    assert!(events.windows(3).any(|names| names == misfit), "{events:?}");

    // Mistakes, with what there is.
    let export = |more: &[&'static str]| [&["seeds", "export", "first", "--library", "library"], more].concat();
    refused(dir, &export(&["--seed", "1"]), &["`mlp` is published already", "--replace", "--as"]);
    refused(dir, &export(&["--seed", "99"]), &["--seed 99", "seed-99 is not in the checkpoint", "1 (mlp, "]);
    refused(dir, &export(&["--seed", "1", "--as", "My Mlp"]), &["--as", "`My Mlp` is not a blueprint id"]);
    run(dir, &export(&["--seed", "1", "--replace"]));
    run(dir, &export(&["--seed", "1", "--as", "norm_mlp"]));
    let names: Vec<String> =
        DirectoryStore::open(dir.join("library")).unwrap().blueprints().map(ToString::to_string).collect();
    assert_eq!(names, ["mlp", "norm_mlp"]);
}

#[test]
fn a_folder_without_a_checkpoint_exports_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["seeds", "export", "nowhere", "--seed", "1", "--library", "library"];
    refused(dir.path(), &args, &["nowhere has no checkpoint"]);
    fs::create_dir_all(dir.path().join("nowhere/checkpoints")).unwrap();
    refused(dir.path(), &args, &["nowhere has no checkpoint"]);
    assert!(!dir.path().join("library").exists());
}

#[test]
fn a_library_that_is_not_there_is_answered_before_anything_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["train", "--epochs", "1", "--out", "run", "--set", "seeds.library.path=absent"];
    refused(dir.path(), &args, &["seeds.library.path", "absent", "esper seeds export"]);
    assert!(!dir.path().join("run").exists());
}

#[test]
fn check_config_shows_the_library_with_where_each_value_comes_from() {
    let dir = tempfile::tempdir().unwrap();
    let file = "[seeds.library]\npath = \"weights\"\non_failure = \"fresh\"\n[seeds.isolation]\nstrict = true\n";
    fs::write(dir.path().join("a.toml"), file).unwrap();
    refused(dir.path(), &["check-config", "a.toml"], &["a.toml:2:1", "seeds.library.path", "weights"]);
    fs::create_dir(dir.path().join("weights")).unwrap();
    fs::write(dir.path().join("weights/manifest.json"), "{}").unwrap();
    let text = run(dir.path(), &["check-config", "a.toml"]);
    for part in [
        "[seeds.library]",
        "path = \"weights\"  # file: a.toml:2:1",
        "on_failure = \"fresh\"  # file: a.toml:3:1",
        "device_capacity = 32  # default",
        "deadline_ms = 1000  # default",
        "strict = true  # file: a.toml:5:1",
        "attribution_scope = \"batch\"  # default",
        "nonce_capacity = 10000  # default",
    ] {
        assert!(text.contains(part), "`{part}` is missing in: {text}");
    }
    refused(
        dir.path(),
        &["check-config", "a.toml", "--set", "seeds.library.prefetch.concurrency=0"],
        &["seeds.library.prefetch.concurrency", "is 0: expected 1 to 256"],
    );
}
