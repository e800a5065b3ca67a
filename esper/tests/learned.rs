//! The policy `learned` from its training to runs that it decides: what it decided can be asked again, and no network passes the limits.
#![expect(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::fs;
use std::path::Path;

use assert_cmd::Command;
use esper::policy::{Training, write};
use esper_disk::StdFs;
use serde_json::Value;
use tamiyo::policy::learned::{NUM_FEATURES, NUM_OUTPUTS, Network, Parts};

/// Standard output and standard error of `esper ARGS` in `dir`.
#[track_caller]
fn esper(dir: &Path, args: &[&str], code: i32) -> (String, String) {
    let output = Command::cargo_bin("esper").unwrap().current_dir(dir).args(args).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let (out, error) = (text(output.stdout), text(output.stderr));
    assert_eq!(output.status.code(), Some(code), "{out}{error}");
    (out, error)
}

/// Says the same whatever it is shown.
fn stubborn(dir: &Path, output_bias: [f32; NUM_OUTPUTS]) {
    stubborn_of(dir, output_bias, Training::default());
}

fn stubborn_of(dir: &Path, output_bias: [f32; NUM_OUTPUTS], training: Training) {
    let network = Network::new(Parts {
        mean: vec![0.0; NUM_FEATURES],
        scale: vec![1.0; NUM_FEATURES],
        hidden_weight: vec![0.0; NUM_FEATURES],
        hidden_bias: vec![0.0],
        output_weight: vec![0.0; NUM_OUTPUTS],
        output_bias: output_bias.to_vec(),
    });
    write(&StdFs, dir, &network.unwrap(), training, None).unwrap();
}

fn lines(path: &Path) -> Vec<Value> {
    fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_policy_is_trained_decides_a_run_that_is_taken_up_again_and_says_the_same_when_it_is_asked_anew() {
    let dir = tempfile::tempdir().unwrap();
    let train = ["policy", "train", "--runs", "17", "--held-out", "1", "--set", "run.epochs=32", "--out", "policy"];
    let (told, _) = esper(dir.path(), &train, 0);
    assert!(["rules: ", "cloned: ", "learned: "].iter().all(|who| told.contains(who)), "{told}");
    let manifest: Value = serde_json::from_slice(&fs::read(dir.path().join("policy/policy.json")).unwrap()).unwrap();
    let training = &manifest["training"];
    assert!(training["data"]["digits"].is_string() && training["curve"].as_array().unwrap().len() == 2, "{training}");
    // As many runs as were made, and no more; the same command again gives the same bits.
    let weights = fs::read(dir.path().join("policy/policy.safetensors")).unwrap();
    esper(dir.path(), &train, 0);
    assert!(fs::read(dir.path().join("policy/policy.safetensors")).unwrap() == weights);
    esper(dir.path(), &[&train[..], &["--resume"]].concat(), 0);
    let (_, error) = esper(dir.path(), &[&train[..], &["--resume", "--first-seed", "3"]].concat(), 2);
    assert!(error.contains("other data, seeds or settings"), "{error}");
    let (_, error) = esper(dir.path(), &[&train[..], &["--resume", "--hidden", "8"]].concat(), 2);
    assert!(error.contains("--hidden is 8: the policy in policy has 32"), "{error}");

    let run = ["train", "--policy", "learned", "--policy-file", "policy", "--progress", "off", "--out", "run"];
    let drawn = ["--set", "policy.learned.choose=\"drawn\"", "--epochs", "32"];
    esper(dir.path(), &[&run[..], &drawn].concat(), 0);
    // What decided was kept: what the folder has now is of no importance to the past.
    stubborn(&dir.path().join("policy"), [0.0; NUM_OUTPUTS]);
    esper(dir.path(), &["train", "--resume", "--epochs", "36", "--progress", "off", "--out", "run"], 0);
    let loaded = |report: &Value| report["waiting"].to_string().contains("policy_loaded");
    let epochs: Vec<bool> = lines(&dir.path().join("run/metrics.jsonl")).iter().map(loaded).collect();
    let at: Vec<usize> = epochs.iter().enumerate().filter(|(_, loaded)| **loaded).map(|(index, _)| index + 1).collect();
    assert_eq!(at, [1, 33]);
    let (told, _) = esper(dir.path(), &["decisions", "run", "--replay"], 0);
    assert!(told.contains("decides the same at the ends of 36 epochs"), "{told}");
}

#[test]
fn a_study_trains_anew_what_another_network_would_decide() {
    let dir = tempfile::tempdir().unwrap();
    let study = ["study", "--data", "digits", "--policies", "learned,off", "--seeds", "2", "--set", "run.epochs=1"];
    let study = [&study[..], &["--set", "policy.learned.file=\"policy\"", "--out", "runs.json"]].concat();
    let trained_by = |output_bias| {
        stubborn(&dir.path().join("policy"), [output_bias; NUM_OUTPUTS]);
        esper(dir.path(), &study, 0);
        let runs = fs::read_to_string(dir.path().join("runs.json")).unwrap();
        let networks = runs.split("\"network\"").skip(1).map(|rest| rest.split('"').nth(1).unwrap().to_owned());
        networks.collect::<Vec<_>>()
    };
    let (one, other) = (trained_by(0.0), trained_by(1.0));
    // What was trained stays in the file.
    assert!(one.len() == 2 && other.len() == 4 && other[..2] == one && one.iter().all(|by| !other[2..].contains(by)));
}

#[test]
fn a_network_that_is_not_there_or_is_damaged_is_a_mistake_before_anything_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let run = ["train", "--policy", "learned", "--out", "run"];
    let (_, error) = esper(dir.path(), &run, 2);
    assert!(error.contains("`policy.learned.file` is absent: expected a folder"), "{error}");
    stubborn(&dir.path().join("policy"), [0.0; NUM_OUTPUTS]);
    fs::write(dir.path().join("policy/policy.safetensors"), "no numbers").unwrap();
    let (_, error) = esper(dir.path(), &[&run[..], &["--policy-file", "policy"]].concat(), 2);
    assert!(error.contains("half written") && !dir.path().join("run").exists(), "{error}");
}

#[test]
fn a_run_on_data_that_its_policy_was_trained_on_says_what_is_not_claimed_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let json = |path: &str| -> Value { serde_json::from_slice(&fs::read(dir.path().join(path)).unwrap()).unwrap() };
    let run = |out: &str, digest: Option<&str>, expected: Option<&str>| {
        let data = digest.map(|digest| ("digits".to_owned(), digest.to_owned())).into_iter().collect();
        stubborn_of(&dir.path().join("policy"), [0.0; NUM_OUTPUTS], Training { data, ..Training::default() });
        let train = ["train", "--policy", "learned", "--policy-file", "policy", "--epochs", "1", "--progress", "off"];
        let (told, error) = esper(dir.path(), &[&train[..], &["--out", out]].concat(), 0);
        let page = fs::read_to_string(dir.path().join(out).join("report.html")).unwrap();
        let warnings = json(&format!("{out}/summary.json"))["warnings"].to_string();
        let expected = expected.unwrap_or("the policy was trained");
        for (text, times) in [(told, 1), (error, 1), (page, 1), (warnings, 1)] {
            let times = if digest.is_some() { times } else { 0 };
            assert_eq!(text.matches(expected).count(), times, "{out}: {text}");
        }
    };
    run("others", None, None);
    let digest = json("others/run.json")["data"]["digest"].as_str().unwrap().to_owned();
    run("same", Some(&digest), Some("the policy was trained on these data (digits), divided alike"));
    run("divided", Some("other"), Some("the policy was trained on these data (digits), divided otherwise"));
}

#[test]
fn a_network_with_all_mass_on_growing_keeps_only_what_is_confirmed_and_looks_no_longer_than_it_may() {
    let dir = tempfile::tempdir().unwrap();
    // onward and germinate, whatever is measured.
    stubborn(&dir.path().join("policy"), [0.0, 1e30, 0.0, 0.0, 1e30, 0.0, 0.0]);
    let run = ["train", "--policy", "learned", "--policy-file", "policy", "--epochs", "80", "--progress", "off"];
    esper(dir.path(), &[&run[..], &["--out", "run"]].concat(), 0);
    let epochs = lines(&dir.path().join("run/metrics.jsonl"));
    let (mut network, mut looking, mut tried) = (0.0, 0.0, 0);
    for report in &epochs {
        let seeds = report["seeds"].as_array().unwrap();
        let live = seeds.iter().filter(|seed| {
            ["germinated", "training", "blending", "holding"].contains(&seed["stage"].as_str().unwrap())
        });
        assert!(live.count() <= 2, "{report}");
        let (asked, number) = (&report["asked"], |value: &Value| value.as_f64().unwrap());
        let samples = ["train", "validation"].map(|part| number(&asked[part]["num_samples"]));
        let operations =
            |cost: &Value| samples[0] * number(&cost["training"]) + samples[1] * number(&cost["evaluation"]);
        network += operations(&asked["costs"]["network"]);
        looking +=
            asked["costs"]["seeds"].as_array().unwrap().iter().map(|of_seed| operations(&of_seed[1])).sum::<f64>();
        tried += report["commands"].to_string().matches("germinate ").count();
        let permanent = seeds.iter().filter(|seed| seed["stage"] == "fossilized");
        assert!(permanent.into_iter().all(|seed| seed["confirmation"]["passed"] == true), "{report}");
    }
    let share = looking / (network + looking);
    assert!(tried > 0 && (0.01..=0.2).contains(&share), "{tried} seeds tried, {share} of all operations to look");
}
