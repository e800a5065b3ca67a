//! What can be done with a network after its training: measuring it anew, predicting, exporting it.
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
    let set = [
        "policy.fixed.training_epochs=1",
        "seeds.gates.require_gain=false",
        "train.batch.microbatches_per_step=1",
        "run.epochs=8",
    ];
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

/// The test part of the run as somebody would write it down: levels from 0 to 16, with the digit behind them, or without.
fn test_rows(with_target: bool) -> String {
    let digits = esper_data::load(&esper_data::DataConfig::default()).unwrap().splits.test;
    let labels = digits.targets().labels().unwrap();
    let row = |(values, label): (&[f32], &u32)| {
        let mut cells: Vec<String> = values.iter().map(|value| (value * 16.0).to_string()).collect();
        cells.extend(with_target.then(|| label.to_string()));
        cells.join(",") + "\n"
    };
    digits.values().chunks(64).zip(labels).map(row).collect()
}

#[test]
fn a_file_of_the_test_part_gives_the_tests_of_the_run_from_a_run_and_from_an_export() {
    let (summary, dir) = (summary(), RUN.0.path());
    fs::write(dir.join("test.csv"), test_rows(true)).unwrap();
    fs::write(dir.join("bare.csv"), test_rows(false)).unwrap();
    printed(&["export", "run", "--to", "exported"]);
    let mut predicted = Vec::new();
    for subject in ["run", "exported"] {
        let found: Value =
            serde_json::from_str(&printed(&["evaluate", subject, "--data", "test.csv", "--json"])).unwrap();
        assert_eq!(found["loss"], summary["test_loss"], "{subject}");
        assert_eq!(found["measures"]["accuracy"], summary["test_accuracy"], "{subject}");
        let table = printed(&["predict", subject, "--data", "test.csv"]);
        assert_eq!(table, printed(&["predict", subject, "--data", "bare.csv"]), "the target is not looked at");
        predicted.push(table);
    }
    assert_eq!(predicted[0], predicted[1]);
    let mut lines = predicted[0].lines();
    let head: Vec<&str> = lines.next().unwrap().split(',').collect();
    assert_eq!((head[0], head[1], head[2], head.len()), ("row", "class", "probability of 0", 12));
    let rows: Vec<Vec<&str>> = lines.map(|line| line.split(',').collect()).collect();
    let labels: Vec<String> = test_rows(true).lines().map(|line| line.rsplit(',').next().unwrap().to_owned()).collect();
    let hits = rows.iter().zip(&labels).filter(|(row, label)| row[1] == **label).count();
    let accuracy = summary["test_accuracy"].as_f64().unwrap();
    assert!((hits as f64 / labels.len() as f64 - accuracy).abs() < 1e-12, "{hits} of {}", labels.len());
    let sum: f64 = rows[0][2..].iter().map(|cell| cell.parse::<f64>().unwrap()).sum();
    assert!((sum - 1.0).abs() < 1e-12, "{sum}");
}

/// Rows of which little can be learned, so that a network soon gets worse again.
fn noisy_rows() -> Vec<String> {
    let number = |row: usize, column: usize| ((row * 7919 + column * 104_729) * 31 % 1009) as f64 / 100.0;
    (0..150).map(|row| format!("{},{},{}", number(row, 0), number(row, 1), 40.0 + number(row * row, 2))).collect()
}

#[test]
fn the_best_network_is_the_one_that_is_tested_predicted_with_and_exported() {
    let dir = tempfile::tempdir().unwrap();
    let rows = noisy_rows();
    let head = "width,height,price";
    let table = |rows: &[&str]| format!("{head}\n{}\n", rows.join("\n"));
    fs::write(dir.path().join("rows.csv"), table(&rows.iter().map(String::as_str).collect::<Vec<_>>())).unwrap();
    let done = |args: &[&str]| {
        let output = esper(dir.path(), args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let text = done(&["train", "--data", "./rows.csv", "--out", "run", "--policy", "off"]);
    let json = |file: &str| -> Value { serde_json::from_slice(&fs::read(dir.path().join(file)).unwrap()).unwrap() };
    let summary = json("run/summary.json");
    let (best, tested) = (&summary["best"], &summary["tested"]);
    assert_eq!(
        (&tested["network"], &tested["epoch"], &tested["step"]),
        (&"best".into(), &best["epoch"], &best["step"])
    );
    assert!(best["step"].as_u64() < summary["steps"].as_u64(), "{summary}");
    assert!(text.contains(&format!("the best network, of epoch {}", best["epoch"])), "{text}");

    let test: Vec<usize> = serde_json::from_value(json("run/rows.json")["test"].clone()).unwrap();
    let of_test: Vec<&str> = test.iter().map(|&row| &*rows[row]).collect();
    fs::write(dir.path().join("test.csv"), table(&of_test)).unwrap();
    let exported = done(&["export", "run", "--to", "net"]);
    assert!(exported.contains(&format!("after epoch {}", best["epoch"])), "{exported}");
    for args in [&["evaluate", "run", "--json"][..], &["evaluate", "net", "--data", "test.csv", "--json"]] {
        let found: Value = serde_json::from_str(&done(args)).unwrap();
        assert_eq!(
            (&found["loss"], &found["measures"]),
            (&summary["test_loss"], &summary["test_measures"]),
            "{args:?}"
        );
    }
    let predicted = done(&["predict", "net", "--data", "test.csv"]);
    assert_eq!(predicted, done(&["predict", "run", "--data", "test.csv"]));
    let errors = predicted.lines().skip(1).zip(&of_test).map(|(found, row)| {
        let last = |line: &str| line.rsplit(',').next().unwrap().parse::<f64>().unwrap();
        (last(found) - last(row)).abs()
    });
    let error = errors.sum::<f64>() / of_test.len() as f64;
    let expected = summary["test_measures"]["mean_abs_error"].as_f64().unwrap();
    assert!((error - expected).abs() < 1e-5 * expected, "{error} from what was written, {expected} in the summary");

    // A target that is a number, and whose square is none.
    let far = of_test[0].rsplit_once(',').unwrap().0.to_owned() + ",3e38";
    fs::write(dir.path().join("far.csv"), table(&[&far])).unwrap();
    let output = esper(dir.path(), &["evaluate", "net", "--data", "far.csv", "--json"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && error.contains("the loss over far.csv is inf"), "{error}");

    // The last one, where no other is kept.
    let last = ["--set", "checkpoint.keep_best=false", "--epochs", "3"];
    done(&[&["train", "--data", "./rows.csv", "--out", "last", "--policy", "off"], &last[..]].concat());
    let summary = json("last/summary.json");
    assert_eq!((&summary["tested"]["network"], &summary["tested"]["epoch"]), (&"last".into(), &3.into()));
    let found: Value = serde_json::from_str(&done(&["evaluate", "last", "--json"])).unwrap();
    assert_eq!(found["loss"], summary["test_loss"]);
    // Another one is not taken for it.
    let newest = fs::read_dir(dir.path().join("last/checkpoints")).unwrap().map(|entry| entry.unwrap().path());
    let newest = newest.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("gen-")).max().unwrap();
    fs::remove_dir_all(newest).unwrap();
    for command in [&["evaluate", "last"][..], &["export", "last", "--to", "older"]] {
        let output = esper(dir.path(), command);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && error.contains("but the newest checkpoint is of step"), "{error}");
    }

    // Checkpoints of another run.
    fs::remove_dir_all(dir.path().join("run/checkpoints")).unwrap();
    fs::rename(dir.path().join("last/checkpoints"), dir.path().join("run/checkpoints")).unwrap();
    let output = esper(dir.path(), &["export", "run", "--to", "other"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && error.contains("run has no checkpoint"), "{error}");

    // A description of a later version.
    let document = fs::read_to_string(dir.path().join("net/model.json")).unwrap();
    fs::write(dir.path().join("net/model.json"), document.replacen("\"format\": 1", "\"format\": 2", 1)).unwrap();
    for command in ["predict", "evaluate"] {
        let output = esper(dir.path(), &[command, "net", "--data", "test.csv"]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains("net/model.json: `format` is 2: expected 1, the format of this version"), "{error}");
    }
}

#[test]
fn predictions_are_written_as_tables_or_as_objects() {
    let dir = RUN.0.path();
    fs::write(
        dir.join("few.csv"),
        test_rows(false).lines().take(3).map(|line| line.to_owned() + "\n").collect::<String>(),
    )
    .unwrap();
    let lines = printed(&["predict", "run", "--data", "few.csv", "--json"]);
    let rows: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.iter().map(|row| row["row"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 2, 3]);
    assert!(rows[0]["class"].is_string() && rows[0]["probabilities"]["7"].is_number(), "{lines}");
    assert_eq!(printed(&["predict", "run", "--data", "few.csv", "--out", "out.csv"]), "3 rows in out.csv\n");
    let table = fs::read_to_string(dir.join("out.csv")).unwrap();
    assert_eq!(table, printed(&["predict", "run", "--data", "few.csv"]));
    // A file that is there is replaced where that is asked for, and the data never are.
    check_refused(&["predict", "run", "--data", "few.csv", "--out", "out.csv"], &["--out out.csv is there", "--force"]);
    fs::write(dir.join("out.csv"), "mine").unwrap();
    printed(&["predict", "run", "--data", "few.csv", "--out", "out.csv", "--force"]);
    assert_eq!(fs::read_to_string(dir.join("out.csv")).unwrap(), table);
    let data = fs::read(dir.join("few.csv")).unwrap();
    for flags in [&["--out", "run/../few.csv"][..], &["--out", "run/../few.csv", "--force"]] {
        let args = [&["predict", "run", "--data", "few.csv"][..], flags].concat();
        check_refused(&args, &["--out run/../few.csv is the file of --data"]);
    }
    assert_eq!(fs::read(dir.join("few.csv")).unwrap(), data);
    fs::write(dir.join("narrow.csv"), "1,2,3\n").unwrap();
    check_refused(&["predict", "run", "--data", "narrow.csv"], &["narrow.csv:1", "64"]);
    fs::write(dir.join("words.csv"), test_rows(false).replacen('0', "zero", 1)).unwrap();
    check_refused(&["predict", "run", "--data", "words.csv"], &["words.csv:1", "zero"]);
    check_refused(&["predict", "run", "--data", "none.csv"], &["none.csv"]);
    check_refused(&["evaluate", "run", "--data", "few.csv"], &["no targets to compare with"]);
}

#[test]
fn an_export_holds_what_acts_and_replaces_nothing_unasked() {
    let text = printed(&["export", "run", "--to", "net"]);
    assert!(
        text.contains("after epoch 7") && text.contains("mlp with 1 seeds") && text.contains("net/model.json"),
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
    let text = printed(&["export", "run", "--to", "net", "--force", "--onnx"]);
    assert!(text.ends_with("model.safetensors, model.onnx\n") && dir.join("model.onnx").is_file(), "{text}");
    check_refused(&["export", "run", "--to", "run", "--force"], &["--to run holds ", "expected a new or empty folder"]);
    check_refused(&["export", "net", "--to", "other"], &["net is not a run folder", "run.json"]);
    check_refused(&["evaluate", "net"], &["net is an export", "expected --data FILE"]);
}

/// Trains on 60 rows with the settings, and gives the loss of the test part as the run and as its export say it, the training file gone.
#[track_caller]
fn check_loss(target: fn(usize) -> String, settings: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let rows = |target: fn(usize) -> String| -> Vec<String> {
        (0..60).map(|i| format!("{},{},{}", i % 7, (i * i) % 11, target(i))).collect()
    };
    let all = rows(target);
    fs::write(dir.path().join("rows.csv"), all.join("\n") + "\n").unwrap();
    let set: Vec<&str> = settings.iter().chain(&["run.epochs=2"]).flat_map(|set| ["--set", set]).collect();
    let run = |args: &[&str]| -> String {
        let output = esper(dir.path(), args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    run(&[&["train", "--data", "./rows.csv", "--policy", "off", "--out", "run"][..], &set].concat());
    run(&["export", "run", "--to", "net"]);
    let read = |name: &str| -> Value { serde_json::from_slice(&fs::read(dir.path().join(name)).unwrap()).unwrap() };
    let test: Vec<usize> = serde_json::from_value(read("run/rows.json")["test"].clone()).unwrap();
    let test: String = test.iter().map(|&row| all[row].clone() + "\n").collect();
    fs::write(dir.path().join("test.csv"), test).unwrap();
    fs::remove_file(dir.path().join("rows.csv")).unwrap();
    let expected = &read("run/summary.json")["test_loss"];
    let evaluated = |subject| -> Value {
        serde_json::from_str(&run(&["evaluate", subject, "--data", "test.csv", "--json"])).unwrap()
    };
    for subject in ["run", "net"] {
        assert_eq!(&evaluated(subject)["loss"], expected, "{subject} of {settings:?}");
    }
    // An earlier version wrote no preparation: it follows from the data, if they are what they were.
    fs::remove_file(dir.path().join("run/preparation.json")).unwrap();
    fs::write(dir.path().join("rows.csv"), all[1..].join("\n") + "\n").unwrap();
    let refused = esper(dir.path(), &["evaluate", "run", "--data", "test.csv"]);
    let error = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(2), "{error}");
    assert!(error.contains("the data of the run are not what they were"), "{error}");
    fs::write(dir.path().join("rows.csv"), all.join("\n") + "\n").unwrap();
    assert_eq!(&evaluated("run")["loss"], expected, "{settings:?}");
    // An earlier version did not say what the network was trained for.
    let mut document = read("net/model.json");
    document.as_object_mut().unwrap().remove("task").unwrap();
    fs::write(dir.path().join("net/model.json"), document.to_string()).unwrap();
    let found = evaluated("net");
    assert!(found.get("loss").is_none() && !found["measures"].as_object().unwrap().is_empty(), "{found}");
}

#[test]
fn the_loss_of_an_export_is_that_of_the_task_whose_training_file_is_gone() {
    check_loss(|i| (i as f64 * 0.37).sin().to_string(), &["task.kind=regression", "task.loss=huber", "task.delta=0.1"]);
    let class = |i: usize| ["a", "b", "a"][i % 3].to_owned();
    check_loss(class, &["task.kind=classification", "task.class_weights=balanced", "task.label_smoothing=0.1"]);
}
