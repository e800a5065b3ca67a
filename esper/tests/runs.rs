//! Many runs in a table and two arms of them on a page: damaged ones are listed as such, and pairs are of the same seed.
#![expect(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::fs;
use std::path::Path;

use assert_cmd::Command;
use esper::report::{Run, render_text};
use serde_json::{Value, json};

/// Writes the files of a run without training one.
fn make(dir: &Path, name: &str, policy: &str, seed: u64, accuracy: Option<f64>) {
    let run = dir.join(name);
    fs::create_dir_all(&run).unwrap();
    fs::write(run.join("config.toml"), format!("[run]\nseed = {seed}\n[policy]\npolicy = \"{policy}\"\n")).unwrap();
    let record = json!({
        "run_id": name, "versions": { "esper": "0.1.0", "rustc": null, "target": "x", "git_commit": null },
        "data": { "name": "digits", "digest": "d", "num_train": 1, "num_validation": 1, "num_test": 1 },
        "device": "cpu", "seed": seed, "started_unix_ms": 1000 * seed, "resume_command": "", "reproduce_command": "",
    });
    fs::write(run.join("run.json"), record.to_string()).unwrap();
    fs::write(run.join("metrics.jsonl"), "").unwrap();
    if let Some(accuracy) = accuracy {
        let summary = json!({
            "test_accuracy": accuracy, "test_loss": 1.0 - accuracy, "validation_accuracy": accuracy, "epochs": 3, "steps": 9,
            "parameters": 10, "host_parameters": 10, "wall_s": 1.5, "out": "", "resumed_from": null, "outcome": "completed",
            "seeds": [],
        });
        fs::write(run.join("summary.json"), summary.to_string()).unwrap();
    }
}

#[track_caller]
fn printed(dir: &Path, args: &[&str]) -> String {
    let output = Command::cargo_bin("esper").unwrap().current_dir(dir).args(args).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn runs_are_listed_by_their_start_and_damaged_ones_are_listed_as_such() {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path(), "b", "heuristic", 1, Some(0.75));
    make(dir.path(), "a", "off", 2, None);
    make(dir.path(), "broken", "off", 3, Some(0.5));
    fs::write(dir.path().join("broken/summary.json"), "{\"epochs\": 3").unwrap();
    make(dir.path(), "cut", "off", 4, None);
    fs::remove_file(dir.path().join("cut/run.json")).unwrap();
    fs::create_dir(dir.path().join("nothing")).unwrap();
    fs::write(dir.path().join("notes.txt"), "").unwrap();
    let rows: Vec<Value> = serde_json::from_str(&printed(dir.path(), &["runs", "list", ".", "--json"])).unwrap();
    let found: Vec<_> = rows.iter().map(|row| (row["dir"].as_str().unwrap(), row["state"].as_str().unwrap())).collect();
    assert_eq!(found, [("./broken", "damaged"), ("./cut", "damaged"), ("./b", "completed"), ("./a", "unfinished")]);
    assert!(rows[0]["problem"].as_str().unwrap().contains("summary.json:1:"), "{rows:?}");
    assert_eq!((&rows[2]["policy"], &rows[2]["test_measures"]["accuracy"]), (&json!("heuristic"), &json!(0.75)));
    assert_eq!((&rows[3]["test_loss"], &rows[3]["epochs"]), (&Value::Null, &json!(0)), "not measured is absent");
    let text = printed(dir.path(), &["runs", "list", "."]);
    let line = text.lines().find(|line| line.starts_with("b ")).unwrap();
    for part in ["digits", "heuristic", "75.00%", "completed"] {
        assert!(line.contains(part), "`{part}` is missing in: {line}");
    }
    assert!(text.contains("broken damaged: ") && text.contains(" – "), "{text}");
    assert_eq!(printed(dir.path(), &["runs", "list", "b"]).lines().count(), 2, "a run folder is a list of one");
}

#[test]
fn arms_differ_in_settings_and_pairs_have_the_same_seed() {
    let dir = tempfile::tempdir().unwrap();
    for (seed, [heuristic, off]) in [(1, [0.75, 0.5]), (2, [0.875, 0.5]), (3, [1.0, 0.5])] {
        make(dir.path(), &format!("heuristic-{seed}"), "heuristic", seed, Some(heuristic));
        make(dir.path(), &format!("off-{seed}"), "off", seed, Some(off));
    }
    make(dir.path(), "off-9", "off", 9, Some(0.0));
    let runs = ["heuristic-1", "heuristic-2", "heuristic-3", "off-3", "off-2", "off-1", "off-9"];
    let found: Value =
        serde_json::from_str(&printed(dir.path(), &[&["runs", "compare", "--json"][..], &runs].concat())).unwrap();
    assert_eq!(found["arms"][1], json!({ "label": "policy.policy = \"off\"", "runs": 4 }));
    let difference = &found["differences"][1];
    assert_eq!((&difference["of"], &difference["pairs"]), (&json!("accuracy"), &json!(3)));
    // Differences 0.25, 0.375, 0.5: mean 0.375, standard error 0.125 / √3, t(0.975, 2) = 4.302653.
    let half = 4.302_653 * 0.125 / 3_f64.sqrt();
    for (key, expected) in [("mean", 0.375), ("low", 0.375 - half), ("high", 0.375 + half)] {
        assert!((difference[key].as_f64().unwrap() - expected).abs() < 1e-6, "{key}: {difference}");
    }
    let page = fs::read_to_string(dir.path().join("comparison.html")).unwrap();
    let document = roxmltree::Document::parse_with_options(
        &page,
        roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() },
    );
    assert!(document.is_ok(), "{document:?}");
    assert!(
        !page.contains("<script") && !page.contains("://") && page.contains("policy.policy = "),
        "it needs no other file"
    );
    let text = printed(dir.path(), &["runs", "compare", "heuristic-1", "off-1"]);
    assert!(text.contains("note: there are fewer than two pairs of arms 1 and 2"), "{text}");
}

#[test]
fn what_is_in_no_pair_and_what_cannot_be_compared_is_told() {
    let dir = tempfile::tempdir().unwrap();
    for seed in 1..=3 {
        make(dir.path(), &format!("off-{seed}"), "off", seed, Some(0.5));
        // The third one failed.
        make(dir.path(), &format!("smooth-{seed}"), "off", seed, (seed < 3).then_some(0.75));
        let config = dir.path().join(format!("smooth-{seed}/config.toml"));
        let text = fs::read_to_string(&config).unwrap() + "[task]\nkind = \"classification\"\nlabel_smoothing = 0.1\n";
        fs::write(&config, text).unwrap();
    }
    make(dir.path(), "again", "off", 2, Some(0.25));
    let runs = ["smooth-1", "smooth-2", "smooth-3", "off-1", "off-2", "off-3", "again"];
    let found: Value =
        serde_json::from_str(&printed(dir.path(), &[&["runs", "compare", "--json"][..], &runs].concat())).unwrap();
    let of: Vec<_> = found["differences"].as_array().unwrap().iter().map(|one| (&one["of"], &one["pairs"])).collect();
    assert_eq!(of, [(&json!("accuracy"), &json!(2))], "losses of different tasks are no difference");
    let notes: Vec<&str> = found["notes"].as_array().unwrap().iter().map(|note| note.as_str().unwrap()).collect();
    let expected = [
        "1 runs of arm 2 have the random seed and the data of another one there: the one that was given last counts",
        "the test losses of arms 1 and 2 are not compared: they are of different tasks (task.kind, task.label_smoothing)",
        "2 runs of arms 1 and 2 are of no pair: the other arm has none with their random seed and data, or one of both was \
         not done to its end",
    ];
    assert_eq!(notes, expected);
}

/// Changes one file of a run as JSON.
fn edit(dir: &Path, file: &str, change: impl FnOnce(&mut Value)) {
    let path = dir.join(file);
    let mut value: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    change(&mut value);
    fs::write(&path, value.to_string()).unwrap();
}

#[test]
fn parameters_beside_test_measures_are_those_of_the_network_that_was_tested() {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path(), "a", "off", 1, Some(0.5));
    make(dir.path(), "b", "off", 2, Some(0.5));
    edit(&dir.path().join("a"), "summary.json", |summary| {
        summary["parameters"] = json!(460);
        summary["tested"] = json!({ "network": "best", "epoch": 2, "step": 6, "parameters": 2588 });
    });
    let list = printed(dir.path(), &["runs", "list", "."]);
    assert!(list.contains("parameters, tested or last") && list.contains("2,588") && !list.contains("460"), "{list}");
    let found: Value = serde_json::from_str(&printed(dir.path(), &["runs", "compare", "--json", "a", "b"])).unwrap();
    assert_eq!((&found["runs"][0]["parameters"], &found["runs"][1]["parameters"]), (&json!(2588), &json!(10)));
    let report = |run: &str| render_text(&Run::read(&dir.path().join(run)).unwrap());
    let (text, same) = (report("a"), report("b"));
    let line = text.lines().find(|line| line.contains("parameters")).unwrap();
    assert!(line.contains(" 460 ") && line.contains("; the tested network has 2,588"), "{text}");
    assert!(!same.contains("tested network has"), "{same}");
}

#[test]
fn names_of_a_foreign_folder_cannot_write_to_the_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let runs = ["off-1", "off-2", "fixed-1", "fixed-2", "\u{1b}[31mbad", "\u{1b}[31moff"];
    for (name, policy, seed) in
        [("off-1", "off", 1), ("off-2", "off", 2), ("fixed-1", "fixed", 1), ("fixed-2", "fixed", 2)]
    {
        make(dir.path(), name, policy, seed, Some(0.5));
        edit(&dir.path().join(name), "summary.json", |summary| {
            summary["test_measures"] = json!({ "f1\u{1b}[2J\u{9b}": 0.5 + 0.25 * seed as f64 });
        });
    }
    make(dir.path(), "bad", "off", 3, Some(0.5));
    fs::write(dir.path().join("bad/summary.json"), "{").unwrap();
    fs::rename(dir.path().join("bad"), dir.path().join(runs[4])).unwrap();
    make(dir.path(), "off", "off", 4, Some(0.5));
    fs::rename(dir.path().join("off"), dir.path().join(runs[5])).unwrap();
    let check = |args: &[&str], parts: &[&str]| {
        let output = Command::cargo_bin("esper").unwrap().current_dir(dir.path()).args(args).output().unwrap();
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
    };
    check(&["runs", "list", "."], &["f1[2J", "./[31mbad"]);
    check(&[&["runs", "compare"][..], &runs].concat(), &["arm 1 less arm 2: f1[2J", "[31mbad is left out"]);
    check(&["runs", "earlier", runs[5]], &["[31moff is left out"]);
}

#[test]
fn runs_of_different_builds_are_named() {
    let dir = tempfile::tempdir().unwrap();
    for seed in 1..=3 {
        make(dir.path(), &format!("off-{seed}"), "off", seed, Some(0.5));
    }
    edit(&dir.path().join("off-3"), "run.json", |record| record["versions"]["git_commit"] = json!("abc"));
    let noted = |runs: &[&str]| printed(dir.path(), &[&["runs", "compare"][..], runs].concat());
    let text = noted(&["off-1", "off-2", "off-3"]);
    let note = "note: the runs are of different builds: off-1, off-2 of esper 0.1.0 for x; off-3 of esper 0.1.0 for x, commit abc\n";
    assert!(text.contains(note), "{text}");
    assert!(!noted(&["off-1", "off-2"]).contains("different builds"));
}

#[test]
fn what_became_of_seeds_is_counted_over_runs_of_one_host_and_told_to_the_next_one() {
    let dir = tempfile::tempdir().unwrap();
    let train = |name: &str, set: &[&str]| {
        let args = ["train", "--data", "digits", "--policy", "fixed", "--progress", "off", "--out", name];
        let epochs = if set.contains(&"--epochs") { &[][..] } else { &["--epochs", "16"] };
        printed(dir.path(), &[&args[..], epochs, set].concat());
    };
    let fixed = ["--set", "policy.fixed.germinations=[{epoch=1,slot=\"input\",blueprint=\"mlp\"}]"];
    // Decided by a schedule, so that it is known what germinates; but a schedule weighs nothing, and does not count.
    let decided = |name: &str| {
        let path = dir.path().join(name).join("config.toml");
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains("policy = \"fixed\""), "{text}");
        fs::write(&path, text.replacen("policy = \"fixed\"", "policy = \"heuristic\"", 1)).unwrap();
    };
    train("scheduled", &fixed);
    train("a", &fixed);
    train("b", &[&["--seed", "7"][..], &fixed].concat());
    ["a", "b"].into_iter().for_each(decided);
    let text = printed(dir.path(), &["runs", "earlier", "a", "b"]);
    let told: toml::Value = toml::from_str(&text).unwrap();
    let rows = told["policy"]["heuristic"]["earlier"]["tries"].as_array().unwrap();
    let ended = |run: &str| {
        let metrics = fs::read_to_string(dir.path().join(run).join("metrics.jsonl")).unwrap();
        let of = |stage: &str| metrics.matches(&format!("\"to\":\"{stage}\"")).count() as i64;
        (of("pruned") + of("fossilized"), of("fossilized"))
    };
    let ((a, kept_a), (b, kept_b)) = (ended("a"), ended("b"));
    let sum = |key: &str| rows.iter().map(|row| row[key].as_integer().unwrap()).sum::<i64>();
    assert_eq!((sum("tries"), sum("kept")), (a + b, kept_a + kept_b), "{text}");
    assert!(a == 1 && b == 1 && rows[0]["grown"].as_bool() == Some(false), "{text}");
    assert_eq!((rows[0]["slot"].as_str(), rows[0]["parameters"].as_integer()), (Some("input"), Some(2128)), "{text}");
    // It is a configuration, and a setting.
    fs::write(dir.path().join("told.toml"), &text).unwrap();
    printed(dir.path(), &["check-config", "told.toml"]);
    let inline = printed(dir.path(), &["runs", "earlier", "--inline", "a", "b"]);
    printed(dir.path(), &["train", "--data", "digits", "--epochs", "1", "--progress", "off", "--set", inline.trim()]);
    let told = Command::cargo_bin("esper")
        .unwrap()
        .current_dir(dir.path())
        .args(["runs", "earlier", "a", "scheduled", "b"])
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&told.stdout), text);
    let left_out = String::from_utf8_lossy(&told.stderr);
    assert!(left_out.contains("scheduled is left out: `policy.policy` is \"fixed\""), "{left_out}");
    let refused = |args: &[&str], expected: &str| {
        let output = Command::cargo_bin("esper").unwrap().current_dir(dir.path()).args(args).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && told.contains(expected), "{told}");
    };
    // Another host: by its runs, and by what they say.
    train("wide", &[&["--set", "host.mlp.hidden=[8]"][..], &fixed].concat());
    decided("wide");
    refused(
        &["runs", "earlier", "a", "wide"],
        "`host.mlp.hidden` is [6] in a, and [8] in wide: expected runs of one host",
    );
    // Another length, in which more or fewer seeds have the time to be kept.
    train("long", &[&["--epochs", "18"][..], &fixed].concat());
    decided("long");
    refused(&["runs", "earlier", "a", "long"], "`run.epochs` is 16 in a, and 18 in long");
    // Another blend, which has elements of its own.
    train("gated", &[&["--set", "policy.blend=gate"][..], &fixed].concat());
    decided("gated");
    refused(&["runs", "earlier", "a", "gated"], "`policy.blend` is ");
    let of_gate = 64 * 16 + 16 + 16 + 1;
    let text = printed(dir.path(), &["runs", "earlier", "gated"]);
    assert!(text.contains(&format!("parameters = {},", 2128 + of_gate)), "{text}");
    refused(
        &["train", "--data", "digits", "--set", "seeds.seed_width=8", "--set", inline.trim()],
        "`policy.heuristic.earlier.tries[0].parameters` is 2128: expected ",
    );
    refused(&["runs", "earlier", "nowhere"], "nowhere");
    refused(&["runs", "earlier", "a", "b", "./a"], "which was given before: expected each run once");
    make(dir.path(), "off", "off", 1, None);
    refused(&["runs", "earlier", "off", "scheduled"], "expected runs that `heuristic` or `learned` decided");
    make(dir.path(), "short", "heuristic", 1, None);
    refused(&["runs", "earlier", "short"], "no seed of these runs was kept or removed");
}
