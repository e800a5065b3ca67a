//! What a run folder goes through: kills before and after the run has begun, processes that start together, damaged files,
//! edited data, checkpoints that are gone or cannot be written.
#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use leyline::clock::{Clock as _, SystemClock};
use serde_json::Value;

const FAILED: i32 = 1;
const USAGE: i32 = 2;

/// `esper train --out out`, running in the folder that `out` is in.
fn start(out: &Path, args: &[&str]) -> Child {
    Command::new(assert_cmd::cargo::cargo_bin!("esper"))
        .current_dir(out.parent().unwrap())
        .args(["train", "--json", "--out", out.to_str().unwrap()])
        .args(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn train(out: &Path, args: &[&str]) -> (Option<i32>, String, String) {
    told(start(out, args).wait_with_output().unwrap())
}

/// Exit code, standard output, standard error.
fn told(output: Output) -> (Option<i32>, String, String) {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[track_caller]
fn trained(out: &Path, args: &[&str]) -> Value {
    let (code, summary, error) = train(out, args);
    assert_eq!(code, Some(0), "{args:?}: {error}");
    serde_json::from_str(summary.lines().last().unwrap()).unwrap()
}

/// Every file below a folder with a digest of its content.
fn tree(dir: &Path) -> BTreeMap<PathBuf, Option<blake3::Hash>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(tree(&path));
            found.insert(path, None);
        } else {
            let digest = blake3::hash(&fs::read(&path).unwrap());
            found.insert(path, Some(digest));
        }
    }
    found
}

/// A resume that must be refused, with every one of `parts` in the error, and leave every byte as it is.
#[track_caller]
fn check_refused(out: &Path, args: &[&str], parts: &[&str]) {
    let before = tree(out);
    let (code, _, error) = train(out, &[&["--resume"], args].concat());
    assert_eq!(code, Some(USAGE), "{args:?}: {error}");
    for part in parts {
        assert!(error.contains(part), "{args:?}: `{part}` is missing in: {error}");
    }
    assert!(tree(out) == before, "{args:?}: a refused resume changed the folder");
}

/// 569 rows of two features and a class.
fn rows(change: impl Fn(usize, &mut [i32; 3])) -> String {
    let mut text = String::new();
    for index in 0..569 {
        let at = i32::try_from(index).unwrap();
        let mut row = [at * 37 % 101 - 50 + at % 2 * 20, at * 53 % 89, at % 2];
        change(index, &mut row);
        writeln!(text, "{},{},{}", f64::from(row[0]) / 50.0, f64::from(row[1]) / 50.0, row[2]).unwrap();
    }
    text
}

#[test]
fn a_run_writes_one_event_file_of_tensorboard_each_time_that_it_begins() {
    let dir = tempfile::tempdir().unwrap();
    let (out, events) = (dir.path().join("out"), dir.path().join("events"));
    let flags = ["--epochs", "2", "--data", "digits", "--tensorboard", events.to_str().unwrap()];
    trained(&out, &flags);
    trained(&out, &["--resume", "--epochs", "3", "--tensorboard", events.to_str().unwrap()]);
    let files: Vec<PathBuf> = tree(&events).into_keys().filter(|path| path.is_file()).collect();
    assert!(files.len() == 2 && files[0].parent() == files[1].parent(), "{files:?}");
    for (file, epochs) in files.iter().zip([2, 1]) {
        let bytes = fs::read(file).unwrap();
        let named = bytes.windows(22).filter(|tag| tag == b"tolaria/training.loss\x15").count();
        assert_eq!(named, epochs, "{}", file.display());
    }
    // Nothing is left to do.
    trained(&out, &["--resume", "--tensorboard", events.to_str().unwrap()]);
    let begins = |bytes: &[u8]| bytes.windows(4).any(|bytes| bytes == b"\x3a\x02\x08\x01");
    let begun = tree(&events).into_keys().filter(|path| path.is_file() && begins(&fs::read(path).unwrap()));
    assert_eq!(begun.collect::<Vec<_>>(), files, "what TensorBoard has is forgotten");
    let (code, _, error) = train(&dir.path().join("other"), &["--tensorboard", files[0].join("in").to_str().unwrap()]);
    assert!(code == Some(FAILED) && error.contains("tfevents"), "{code:?}: {error}");
}

fn packets(out: &Path) -> Vec<Value> {
    let text = fs::read_to_string(out.join("packets.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn packets_are_of_the_run_and_not_of_the_network_that_is_tested_after_it() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    let settings = ["--set", "telemetry.jsonl=true", "--set", "train.schedule.learning_rate=0.05"];
    let summary = trained(
        &out,
        &[&["--data", "digits", "--policy", "heuristic", "--epochs", "60", "--seed", "2"], &settings[..]].concat(),
    );
    assert!(summary["tested"]["step"].as_u64() < summary["steps"].as_u64(), "{summary}");
    let packets = packets(&out);
    let seeds = |packet: &Value| -> Vec<Value> {
        let metrics = packet["metrics"].as_array().unwrap().iter();
        metrics.filter(|metric| metric["name"].as_str().unwrap().starts_with("kasmina.seed")).cloned().collect()
    };
    let boundary = packets.iter().rfind(|packet| packet["source"] == "tolaria").unwrap();
    assert_eq!(seeds(packets.last().unwrap()), seeds(boundary));
    assert_eq!(packets.last().unwrap()["step"], summary["steps"]);
    // Where nothing is taken any more of what is passed over on the way to that network, the log tells it.
    let checkpoints = fs::read_dir(out.join("checkpoints")).unwrap().map(|entry| entry.unwrap().path());
    let newest = checkpoints.filter(|path| path.is_dir()).max().unwrap();
    fs::write(newest.join("manifest.json"), "{}").unwrap();
    let (code, _, error) = train(&out, &["--resume"]);
    assert_eq!((code, error.matches("does not verify and is passed over").count()), (Some(0), 2), "{error}");
}

#[test]
fn steps_of_packets_never_fall_where_a_run_that_is_over_is_resumed() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    trained(&out, &["--data", "digits", "--epochs", "2", "--set", "telemetry.jsonl=true"]);
    let num_before = packets(&out).len();
    trained(&out, &["--resume"]);
    let packets = packets(&out);
    assert!(packets.len() > num_before, "nothing was told of the resume");
    assert!(packets.is_sorted_by_key(|packet| (packet["epoch"].as_u64(), packet["step"].as_u64())));
}

#[test]
fn a_run_goes_on_with_its_own_data_only() {
    let dir = tempfile::tempdir().unwrap();
    let (data, out) = (dir.path().join("data.csv"), dir.path().join("run"));
    let whole = rows(|_, _| {});
    fs::write(&data, &whole).unwrap();
    trained(&out, &["--data", "data.csv", "--epochs", "2"]);
    let record: Value = serde_json::from_slice(&fs::read(out.join("run.json")).unwrap()).unwrap();
    let digest = record["data"]["digest"].as_str().unwrap();

    let edits = [
        rows(|index, row| row[0] += i32::from(index == 300)),
        rows(|_, row| row[2] = 1 - row[2]),
        whole.lines().take(300).map(|line| format!("{line}\n")).collect(),
    ];
    for edited in edits {
        fs::write(&data, &edited).unwrap();
        let other = dir.path().join("other");
        trained(&other, &["--data", "data.csv", "--epochs", "1"]);
        let record: Value = serde_json::from_slice(&fs::read(other.join("run.json")).unwrap()).unwrap();
        let found = record["data"]["digest"].as_str().unwrap();
        assert_ne!(found, digest);
        check_refused(&out, &["--epochs", "3"], &["data.csv", digest, found, "esper train --config"]);
        fs::remove_dir_all(other).unwrap();
    }
    fs::write(&data, &whole).unwrap();
    assert_eq!(trained(&out, &["--resume", "--epochs", "3"])["epochs"], 3);
}

#[test]
fn a_resume_that_would_lose_something_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    trained(&out, &["--epochs", "2"]);
    check_refused(&out, &["--epochs", "1"], &["`run.epochs` is 1", "at least 2"]);
    check_refused(&out, &["--set", "train.batch.batch_size=5"], &["train.batch.batch_size"]);

    let config = fs::read_to_string(out.join("config.toml")).unwrap();
    fs::write(out.join("config.toml"), config.replace("clip_norm = 1.0", "clip_norm = 3.0")).unwrap();
    check_refused(&out, &[], &["configuration", "config.toml", "digest"]);
    fs::write(out.join("config.toml"), config).unwrap();

    let (kept, lost) = (out.join("checkpoints"), dir.path().join("lost"));
    fs::rename(&kept, &lost).unwrap();
    check_refused(&out, &["--epochs", "3"], &["holds no checkpoint", "2 epochs", "esper train --config"]);
    fs::create_dir(&kept).unwrap();
    check_refused(&out, &["--epochs", "3"], &["holds no checkpoint", "2 epochs"]);
    fs::remove_dir(&kept).unwrap();
    fs::rename(&lost, &kept).unwrap();
    assert_eq!(trained(&out, &["--resume", "--epochs", "3"])["epochs"], 3);
}

#[test]
fn a_resume_with_a_file_keeps_what_the_file_does_not_say() {
    let dir = tempfile::tempdir().unwrap();
    let (file, out) = (dir.path().join("esper.toml"), dir.path().join("run"));
    fs::write(&file, "[run]\nseed = 5\n").unwrap();
    trained(&out, &["--config", "esper.toml", "--epochs", "2", "--set", "checkpoint.keep_last=7"]);
    assert_eq!(trained(&out, &["--resume", "--config", "esper.toml"])["epochs"], 2);
    let kept = || fs::read_to_string(out.join("config.toml")).unwrap().parse::<toml::Table>().unwrap();
    assert_eq!(kept()["checkpoint"]["keep_last"].as_integer(), Some(7));
    fs::write(&file, "[run]\nseed = 5\nepochs = 3\n").unwrap();
    assert_eq!(trained(&out, &["--resume", "--config", "esper.toml"])["epochs"], 3);
    assert_eq!(kept()["checkpoint"]["keep_last"].as_integer(), Some(7));
    fs::write(&file, "[run]\nseed = 6\n").unwrap();
    check_refused(&out, &["--config", "esper.toml"], &["run.seed (5 → 6)"]);
}

#[test]
fn a_folder_is_taken_as_it_is_written_and_the_commands_of_its_record_work_in_a_shell() {
    let dir = tempfile::tempdir().unwrap();
    let train = |out: &OsStr| {
        let mut esper = Command::new(assert_cmd::cargo::cargo_bin!("esper"));
        let flag = [OsStr::new("--out="), out].into_iter().collect::<OsString>();
        let esper = esper.current_dir(dir.path()).args(["train", "--epochs", "1"]).arg(flag);
        told(esper.output().unwrap())
    };
    for (out, shown, config) in [
        ("7", "7", "7/config.toml"),
        ("-new", "./-new", "./-new/config.toml"),
        ("my run", "'my run'", "'my run/config.toml'"),
        ("it's", r"'it'\''s'", r"'it'\''s/config.toml'"),
    ] {
        let (code, _, error) = train(OsStr::new(out));
        assert_eq!(code, Some(0), "{error}");
        let record: Value = serde_json::from_slice(&fs::read(dir.path().join(out).join("run.json")).unwrap()).unwrap();
        assert_eq!(record["resume_command"], format!("esper train --resume --out {shown}"));
        assert_eq!(record["reproduce_command"], format!("esper train --config {config} --out NEW_DIR"));
    }
    let before = tree(dir.path());
    let (code, _, error) = train(OsStr::from_bytes(b"\xff"));
    assert!(code == Some(USAGE) && error.contains("--out"), "{code:?}: {error}");
    assert!(tree(dir.path()) == before, "a refused run wrote something");
}

#[test]
fn a_run_that_died_before_its_first_checkpoint_is_begun_anew_and_one_that_lost_its_checkpoints_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (whole, out) = (dir.path().join("whole"), dir.path().join("run"));
    trained(&whole, &["--epochs", "5"]);
    let lines = fs::read_to_string(whole.join("metrics.jsonl")).unwrap();
    // Lines that a run may write before its first checkpoint is on the disk: what is on its way there waits for nobody, until
    // there are two.
    for (in_background, most) in [("true", 3), ("false", 1)] {
        for known in [most, most + 1] {
            let background = format!("checkpoint.in_background={in_background}");
            trained(&out, &["--epochs", "5", "--set", &background]);
            fs::remove_file(out.join("summary.json")).unwrap();
            fs::remove_dir_all(out.join("checkpoints")).unwrap();
            fs::create_dir(out.join("checkpoints")).unwrap();
            let known_lines: String = lines.split_inclusive('\n').take(known).collect();
            fs::write(out.join("metrics.jsonl"), known_lines).unwrap();
            if known <= most {
                assert_eq!(trained(&out, &["--resume"])["epochs"], 5);
                assert_eq!(fs::read_to_string(out.join("metrics.jsonl")).unwrap().lines().count(), 5);
            } else {
                check_refused(&out, &[], &["holds no checkpoint", &format!("{known} epochs")]);
            }
            fs::remove_dir_all(&out).unwrap();
        }
    }
}

#[test]
fn a_final_checkpoint_that_cannot_be_written_is_a_failure() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    let child = start(&out, &["--epochs", "60", "--set", "checkpoint.every_epochs=1000"]);
    wait_for(|| fs::metadata(out.join("metrics.jsonl")).is_ok_and(|file| file.len() > 0));
    fs::rename(out.join("checkpoints"), dir.path().join("away")).unwrap();
    fs::write(out.join("checkpoints"), "").unwrap();
    let (code, _, error) = told(child.wait_with_output().unwrap());
    assert_eq!(code, Some(FAILED), "{error}");
    let summary: Value = serde_json::from_slice(&fs::read(out.join("summary.json")).unwrap()).unwrap();
    assert_eq!((&summary["outcome"], &summary["epochs"]), (&"failed".into(), &60.into()));
    assert!(summary["test_accuracy"].is_null(), "{summary}");
    let cause = std::io::Error::from_raw_os_error(20).to_string();
    for text in [&error, summary["reason"].as_str().unwrap()] {
        assert!(text.contains(out.join("checkpoints").to_str().unwrap()) && text.contains(&cause), "{text}");
    }
}

#[test]
fn damaged_files_are_set_aside_and_the_run_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    trained(&out, &["--epochs", "4"]);
    let spoil = |name: &str, part: usize| {
        let mut bytes = fs::read(out.join(name)).unwrap();
        let at = bytes.len() * part / 8;
        bytes[at] ^= 0x80;
        fs::write(out.join(name), &bytes).unwrap();
        bytes
    };
    let (metrics, packets) = (spoil("metrics.jsonl", 3), spoil("packets.bin", 3));
    let (code, _, error) = train(&out, &["--resume", "--epochs", "5"]);
    assert_eq!(code, Some(0), "{error}");
    for name in ["metrics.damaged-1.jsonl", "packets.damaged-1.bin"] {
        assert!(error.contains(name), "{name} is not told: {error}");
    }
    assert_eq!(fs::read(out.join("metrics.damaged-1.jsonl")).unwrap(), metrics);
    assert_eq!(fs::read(out.join("packets.damaged-1.bin")).unwrap(), packets);
    let text = fs::read_to_string(out.join("metrics.jsonl")).unwrap();
    let epochs: Vec<u64> =
        text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["epoch"].as_u64().unwrap()).collect();
    assert_eq!(epochs, [1, 3, 4, 5]);
    let decode = Command::new(assert_cmd::cargo::cargo_bin!("esper"))
        .args(["telemetry", "decode", "--json", out.join("packets.bin").to_str().unwrap()])
        .output()
        .unwrap();
    assert!(decode.status.success());
    let packets = String::from_utf8(decode.stdout).unwrap();
    let last: Value = serde_json::from_str(packets.lines().last().unwrap()).unwrap();
    assert_eq!(last["epoch"], 5);
}

#[track_caller]
fn wait_for(condition: impl Fn() -> bool) {
    let clock = SystemClock::new();
    while !condition() {
        assert!(clock.now() < Duration::from_secs(30), "waited for 30 s");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_run_that_is_killed_at_any_moment_can_be_started_or_resumed() {
    let dir = tempfile::tempdir().unwrap();
    let (mut num_started, mut num_resumed) = (0, 0);
    for round in 0..12 {
        let out = dir.path().join(format!("run-{round}"));
        let mut child = start(&out, &["--epochs", "2"]);
        // From before the folder is there until after the first epochs.
        if round > 1 {
            wait_for(|| out.exists());
        }
        std::thread::sleep(Duration::from_micros(
            [0, 5_000, 0, 200, 500, 1_000, 2_000, 4_000, 8_000, 20_000, 60_000, 150_000][round],
        ));
        child.kill().unwrap();
        child.wait().unwrap();
        if out.join("config.toml").exists() {
            num_resumed += 1;
            assert_eq!(trained(&out, &["--resume"])["epochs"], 2, "round {round}");
        } else {
            num_started += 1;
            assert_eq!(trained(&out, &["--epochs", "2"])["epochs"], 2, "round {round}");
        }
        for path in tree(&out).into_keys() {
            let name = path.file_name().unwrap().to_str().unwrap();
            assert!(!name.starts_with('.') && !name.contains("tmp"), "round {round}: {name} stayed");
        }
    }
    assert!(num_started > 0, "{num_started} started, {num_resumed} resumed");
}

#[test]
fn of_processes_that_start_together_one_trains_and_the_others_change_nothing() {
    let dir = tempfile::tempdir().unwrap();
    for round in 0..3 {
        let out = dir.path().join(format!("run-{round}"));
        let children: Vec<Child> =
            (0..4).map(|seed| start(&out, &["--epochs", "2", "--seed", &seed.to_string()])).collect();
        let ended: Vec<_> = children.into_iter().map(|child| told(child.wait_with_output().unwrap())).collect();
        let winners: Vec<usize> = (0..4).filter(|&seed| ended[seed].0 == Some(0)).collect();
        assert_eq!(winners.len(), 1, "{ended:?}");
        for (code, _, error) in ended.iter().filter(|(code, ..)| *code != Some(0)) {
            assert_eq!(*code, Some(USAGE), "{error}");
            assert!(error.contains("another process is training") || error.contains("not empty"), "{error}");
        }
        let record: Value = serde_json::from_slice(&fs::read(out.join("run.json")).unwrap()).unwrap();
        assert_eq!(record["seed"], winners[0]);
        let config = fs::read_to_string(out.join("config.toml")).unwrap();
        assert!(config.contains(&format!("seed = {}", winners[0])), "{config}");
    }
}

#[test]
fn runs_that_start_in_one_second_have_names_of_their_own() {
    let dir = tempfile::tempdir().unwrap();
    let children: Vec<Child> = (0..4)
        .map(|_| {
            Command::new(assert_cmd::cargo::cargo_bin!("esper"))
                .current_dir(dir.path())
                .args(["train", "--epochs", "1", "--json", "--progress", "off"])
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    for child in children {
        let (code, _, error) = told(child.wait_with_output().unwrap());
        assert_eq!(code, Some(0), "{error}");
    }
    let folders = fs::read_dir(dir.path().join("runs")).unwrap().map(|entry| entry.unwrap().path());
    let ids: std::collections::BTreeSet<String> = folders
        .map(|folder| {
            let record: Value = serde_json::from_slice(&fs::read(folder.join("run.json")).unwrap()).unwrap();
            let id = record["run_id"].as_str().unwrap().to_owned();
            assert_eq!(folder.file_name().unwrap().to_str(), Some(id.as_str()));
            id
        })
        .collect();
    assert_eq!(ids.len(), 4);
}

#[test]
fn every_file_of_a_run_belongs_to_its_owner_alone() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    trained(&out, &["--epochs", "1"]);
    trained(&out, &["--resume", "--epochs", "2"]);
    for (path, digest) in tree(&out) {
        let expected = if digest.is_some() { 0o600 } else { 0o700 };
        let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, expected, "{} has {mode:o}", path.display());
    }
}

#[test]
fn a_report_whose_page_cannot_be_written_still_prints_the_summary() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    trained(&out, &["--epochs", "1"]);
    // Permissions mean nothing to root; a folder in the way stops everybody.
    fs::remove_file(out.join("report.html")).unwrap();
    fs::create_dir(out.join("report.html")).unwrap();
    let report = Command::new(assert_cmd::cargo::cargo_bin!("esper")).arg("report").arg(&out).output().unwrap();
    let (code, text, error) = told(report);
    assert_eq!(code, Some(FAILED), "{error}");
    assert!(text.contains("test accuracy"), "{text}");
    assert!(error.contains("report.html"), "{error}");

    let (code, summary, error) = train(&out, &["--resume", "--epochs", "2"]);
    assert_eq!(code, Some(FAILED), "{error}");
    let summary: Value = serde_json::from_str(summary.lines().last().unwrap()).unwrap();
    assert_eq!(summary["outcome"], "completed");
}

#[test]
fn the_wall_time_is_that_of_the_run_over_all_its_parts() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    let epochs_s = || -> f64 {
        let text = fs::read_to_string(out.join("metrics.jsonl")).unwrap();
        text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["wall_s"].as_f64().unwrap()).sum()
    };
    let clock = SystemClock::new();
    let first = trained(&out, &["--epochs", "2"])["wall_s"].as_f64().unwrap();
    assert!(epochs_s() < first && first < clock.now().as_secs_f64(), "{first} s");
    let clock = SystemClock::new();
    let second = trained(&out, &["--resume", "--epochs", "3"])["wall_s"].as_f64().unwrap();
    assert!(first < second && second - first < clock.now().as_secs_f64(), "{first} s, then {second} s");

    // Of a part that was killed, the time up to its newest checkpoint is known.
    fs::remove_file(out.join("summary.json")).unwrap();
    let third = trained(&out, &["--resume", "--epochs", "4"])["wall_s"].as_f64().unwrap();
    assert!(first < third && epochs_s() < third, "{first} s, then {third} s");
}
