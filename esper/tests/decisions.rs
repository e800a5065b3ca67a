//! What is written down of decisions suffices to make them anew, and to see what came after each.
#![expect(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::fs;
use std::path::Path;

use assert_cmd::Command;
use serde_json::Value;

/// Exit code, standard output and standard error.
fn esper(args: &[&str], run: &Path) -> (i32, String, String) {
    let output = Command::cargo_bin("esper").unwrap().args(args).arg(run).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

fn train(policy: &str, epochs: &str, run: &Path) {
    let args = ["train", "--data", "digits", "--policy", policy, "--epochs", epochs, "--progress", "off"];
    let (code, _, error) = esper(&[&args[..], &["--out"]].concat(), run);
    assert_eq!(code, 0, "{error}");
}

/// The decisions of a run, and what came of asking anew.
fn replayed(run: &Path) -> (i32, Vec<Value>, Value) {
    let (code, text, error) = esper(&["decisions", "--replay", "--json", "--window", "3"], run);
    let mut lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let last = lines.pop().unwrap_or_else(|| panic!("{error}"));
    (code, lines, last)
}

#[test]
fn every_policy_decides_the_same_when_it_is_shown_the_same_also_of_a_run_that_was_taken_up_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut germinations = 0;
    for policy in ["heuristic", "fixed", "random", "off"] {
        let run = dir.path().join(policy);
        train(policy, "14", &run);
        let (code, _, error) = esper(&["train", "--resume", "--epochs", "20", "--progress", "off", "--out"], &run);
        assert_eq!(code, 0, "{error}");
        let (code, decisions, last) = replayed(&run);
        assert_eq!((code, &last["same"], &last["difference"]), (0, &20.into(), &Value::Null), "{policy}: {last}");
        for made in decisions.iter().filter(|made| made["operation"].as_str().unwrap().starts_with("germinate")) {
            germinations += 1;
            let is_over = made["epoch"].as_u64().unwrap() + 3 <= 20;
            assert_eq!((made["loss_change"].is_f64(), made["stage"].is_string()), (is_over, is_over), "{made}");
            assert!(made["seed"].is_string(), "{made}");
        }
    }
    assert!(germinations >= 3, "{germinations}");
}

#[test]
fn a_decision_that_was_changed_is_found_and_a_run_that_says_too_little_is_not_called_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    train("fixed", "12", &run);
    let metrics = run.join("metrics.jsonl");
    let whole = fs::read_to_string(&metrics).unwrap();
    let check = |changed: String, place: &str| {
        assert_ne!(changed, whole);
        fs::write(&metrics, changed).unwrap();
        let (code, _, last) = replayed(&run);
        let difference = last["difference"].as_str().unwrap();
        assert!(code == 1 && difference.contains(place), "{code}, {difference}");
    };
    // The first command that was given, and the state that it was given on.
    check(whole.replacen("\"operation\":\"germinate ", "\"operation\":\"cull ", 1), "the policy says [(\"germinate");
    let second = whole.lines().nth(1).unwrap();
    let mut state: Value = serde_json::from_str(second).unwrap();
    state.as_object_mut().unwrap().remove("asked").unwrap();
    check(whole.replace(second, &state.to_string()), "epoch 2: what the policy was shown was not written down");
    check(whole.split_once('\n').unwrap().1.to_owned(), "epoch 2: expected epoch 1");
    // What is missing at the end was not compared.
    let short: String = whole.split_inclusive('\n').take(11).collect();
    check(short, "epoch 12: metrics.jsonl does not have it, and summary.json speaks of 12 epochs");
    let (code, text, error) = esper(&["decisions", "--replay"], &run);
    assert!(code == 1 && text.contains("replayed: the same for 11 epochs, then epoch 12: "), "{code}, {text}");
    assert!(error.contains("note: summary.json speaks of 12 epochs but metrics.jsonl ends at epoch 11"), "{error}");
    check(String::new(), "epoch 1: metrics.jsonl does not have it");
    fs::remove_file(run.join("summary.json")).unwrap();
    check(String::new(), "there is no epoch to compare");
    let (code, _, error) = esper(&["decisions"], dir.path());
    assert!(code == 2 && error.contains("run.json"), "{code}, {error}");
}
