//! The loader as a user meets it: deliberate mistakes, layers, and the file that is written back.

use std::num::NonZeroUsize;
use std::path::Path;

use kasmina::ConfigIssue;
use kasmina::host::HostConfig;
use proptest::prelude::*;
use serde::{Deserialize, Serialize};

use super::*;
use crate::data::{DataName, Fraction};

const FILE: &str = "run.toml";

fn sets(settings: &[&str]) -> Vec<Layer> {
    settings.iter().map(|setting| Layer::set(setting).unwrap()).collect()
}

fn load_esper(file: &str, settings: &[&str]) -> Result<Loaded<EsperConfig>, ConfigError> {
    let mut layers = vec![Layer::text(FILE, file)];
    layers.extend(sets(settings));
    EsperConfig::from_layers(layers)
}

#[track_caller]
fn check_refused(file: &str, settings: &[&str], message: &str) {
    assert_eq!(load_esper(file, settings).unwrap_err().to_string(), message);
}

const SECTIONS: &str = "accepted: run, data, task, checkpoint, telemetry, host, seeds, policy, train";
const RUN_KEYS: &str = "accepted: epochs, max_steps, seed, device, gpu_dataset, gpu_dataset_mib, out";
const SETS: &str = "accepted: digits, mnist1d, mnist, fashion-mnist, PATH.csv, DIR/FILE";

#[test]
fn a_misspelt_key_or_section_is_answered_with_the_accepted_and_the_nearest() {
    let key = "`run.epochz` is not a setting";
    check_refused("[run]\nepochz = 3\n", &[], &format!("run.toml:2:1: {key}; {RUN_KEYS}; did you mean `epochs`?"));
    check_refused("", &["run.epochz=3"], &format!("--set run.epochz=3: {key}; {RUN_KEYS}; did you mean `epochs`?"));
    check_refused(
        "# a comment\n[rnu]\nepochs = 3\n",
        &[],
        &format!("run.toml:2:2: `rnu` is not a section; {SECTIONS}; did you mean `run`?"),
    );
    check_refused(
        "",
        &["data.mnist1d.trainsamples=5"],
        "--set data.mnist1d.trainsamples=5: `data.mnist1d.trainsamples` is not a setting; accepted: train_samples, \
         test_samples, seed; did you mean `train_samples`?",
    );
}

#[test]
fn of_very_many_mistakes_some_are_told() {
    let file: String = (0..200).map(|key| format!("run.x{key} = 1\n")).collect();
    let error = load_esper(&file, &[]).unwrap_err();
    assert!(matches!(&error, ConfigError::Invalid(mistakes) if mistakes.len() == 64), "{error}");
}

#[test]
fn a_key_in_the_wrong_section_is_answered_with_the_right_one() {
    check_refused(
        "epochs = 3\n",
        &[],
        &format!("run.toml:1:1: `epochs` is not a section; {SECTIONS}; did you mean `run.epochs`?"),
    );
    check_refused(
        "[run]\nkeep_last = 3\n",
        &[],
        &format!("run.toml:2:1: `run.keep_last` is not a setting; {RUN_KEYS}; did you mean `checkpoint.keep_last`?"),
    );
}

#[test]
fn a_value_of_the_wrong_type_is_quoted_with_what_was_expected() {
    check_refused(
        "[run]\nepochs = \"ten\"\n",
        &[],
        "run.toml:2:10: `run.epochs` is \"ten\", expected a whole number above 0",
    );
    check_refused("run = 3\n", &[], "run.toml:1:7: `run` is 3, expected a section");
    check_refused("[run]\nseed = 1.5", &[], "run.toml:2:8: `run.seed` is 1.5, expected a whole number, 0 or above");
    check_refused("", &["run.out=3"], "--set run.out=3: `run.out` is 3, expected path string");
    check_refused(
        "",
        &["telemetry.jsonl=yes"],
        "--set telemetry.jsonl=yes: `telemetry.jsonl` is \"yes\", expected true or false",
    );
}

#[test]
fn an_unknown_name_is_answered_with_the_accepted_names() {
    check_refused(
        "[data]\nname = \"fashion_mnits\"\n",
        &[],
        &format!("run.toml:2:8: `data.name` is `fashion_mnits`; {SETS}; did you mean `fashion-mnist`?"),
    );
    check_refused("", &["data.name=cifar"], &format!("--set data.name=cifar: `data.name` is `cifar`; {SETS}"));
    check_refused(
        "",
        &["run.gpu_dataset=maybe"],
        "--set run.gpu_dataset=maybe: `run.gpu_dataset` is `maybe`; accepted: auto, on, off",
    );
    check_refused(
        "",
        &["run.gpu_dataset=on", "train.execution.data_on_device=false"],
        "--set run.gpu_dataset=on: `run.gpu_dataset` is \"on\", expected `auto` or `off` beside \
         `train.execution.data_on_device = false`, its older name",
    );
    check_refused("", &["run.device=gpu"], "--set run.device=gpu: `run.device` is `gpu`; accepted: cpu, cuda:N");
    check_refused(
        "",
        &["run.device=cuda:+1"],
        "--set run.device=cuda:+1: `run.device` is `cuda:+1`; accepted: cpu, cuda:N",
    );
}

#[test]
fn a_number_out_of_range_is_answered_with_the_range() {
    check_refused("[run]\nepochs = -3\n", &[], "run.toml:2:10: `run.epochs` is -3, expected a whole number above 0");
    check_refused("", &["run.epochs=0"], "--set run.epochs=0: `run.epochs` is 0, expected a whole number above 0");
    let fraction = "expected a fraction above 0 and below 1";
    check_refused(
        "[data]\nvalidation_fraction = 1.5\n",
        &[],
        &format!("run.toml:2:23: `data.validation_fraction` is 1.5, {fraction}"),
    );
    check_refused("data.csv_scale = 0", &[], "run.toml:1:18: `data.csv_scale` is 0, expected a finite number above 0");
}

#[test]
fn numbers_that_no_setting_accepts_are_all_reported() {
    check_refused(
        "[data]\ncsv_scale = inf\nvalidation_fraction = nan\n[other]\nlist = [1.0, -inf]\nbig = 9223372036854775808",
        &[],
        "run.toml:2:13: `data.csv_scale` is inf, expected a finite number\n\
         run.toml:3:23: `data.validation_fraction` is nan, expected a finite number\n\
         run.toml:6:7: `other.big` is 9223372036854775808, expected a whole number from -9223372036854775808 to \
         9223372036854775807\n\
         run.toml:5:14: `other.list[1]` is -inf, expected a finite number",
    );
    check_refused("[run]\nseed = 1e999", &[], "run.toml:2:8: `run.seed` is 1e999, expected a finite number");
}

#[test]
fn settings_that_contradict_each_other_are_reported_at_their_place() {
    check_refused(
        "[data]\ntest_fraction = 0.9\n",
        &["data.mnist1d.train_samples=7"],
        "run.toml:2:1: `data.test_fraction` is 0.9, expected less than 0.8 beside data.validation_fraction\n\
         --set data.mnist1d.train_samples=7: `data.mnist1d` train_samples + test_samples is 1007, expected a multiple \
         of 10, at most 10000000",
    );
    check_refused(
        "",
        &["data.name=mnist1d", "data.test_fraction=0.2"],
        "--set data.test_fraction=0.2: `data.test_fraction` `mnist1d` comes with a test part; expected no such key",
    );
}

#[test]
fn a_gate_that_asks_for_more_epochs_than_the_policy_waits_is_refused() {
    for (gate, rule, most) in [("training_min_epochs", "training", 30), ("holding_min_epochs", "holding", 5)] {
        let refused = format!("seeds.gates.{gate}={}", most + 1);
        check_refused(
            "",
            &[&refused],
            &format!(
                "--set {refused}: `seeds.gates.{gate}` is {}: expected at most {most}, `policy.heuristic.{rule}.max_epochs`, after which \
                 the policy culls a seed whose gate is shut",
                most + 1
            ),
        );
        let longer = format!("policy.heuristic.{rule}.max_epochs={}", most + 1);
        for accepted in [format!("seeds.gates.{gate}={most}"), longer] {
            load_esper("", &[&refused, &accepted]).unwrap();
        }
        for accepted in
            ["policy.policy=\"off\"", "policy.policy=\"learned\"", "seeds.gates.off=[\"stability\",\"system_impact\"]"]
        {
            load_esper("", &[&refused, accepted]).unwrap();
        }
    }
}

#[test]
fn a_switch_of_the_process_is_refused_to_runs_at_the_same_time() {
    let shared = |precision: &str, jobs| {
        let config = load_esper("", &[&format!("train.precision={precision}")]).unwrap().config;
        config.shared_by(NonZeroUsize::new(jobs).unwrap()).map(|issue| (issue.key, issue.problem))
    };
    assert_eq!([shared("tf32", 1), shared("f32", 2), shared("bf16", 2)], [None, None, None]);
    let (key, problem) = shared("tf32", 2).unwrap();
    assert!(
        key == "train.precision" && problem.contains("expected another precision, or `--jobs 1`"),
        "{key} {problem}"
    );
}

#[test]
fn text_that_is_not_toml_is_answered_with_its_place() {
    check_refused("[run\nepochs = 3\n", &[], "run.toml:1:5: not TOML: unclosed table, expected `]`");
    check_refused("a = 1\na = 2\n", &[], "run.toml:2:1: not TOML: duplicate key");
    let missing = "not TOML: expected a value after `=`";
    check_refused("[run]\nepochs = \n", &[], &format!("run.toml:2:10: {missing}"));
    check_refused("seed = # none", &[], &format!("run.toml:1:8: {missing}"));
    check_refused("seed =", &[], &format!("run.toml:1:7: {missing}"));
    check_refused(
        "name = digits",
        &[],
        "run.toml:1:8: not TOML: string values must be quoted, expected literal string",
    );
    let deep = format!("a = {}", "[".repeat(100_000));
    assert!(load_esper(&deep, &[]).unwrap_err().to_string().starts_with("run.toml:1:"));
}

#[test]
fn files_that_cannot_be_read_are_named() {
    let error = EsperConfig::load(Some(Path::new("no/such.toml")), vec![]).unwrap_err();
    assert_eq!(error.to_string(), "cannot read the configuration no/such.toml; expected a TOML file");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("huge.toml");
    std::fs::write(&path, "#".repeat((1 << 20) + 1)).unwrap();
    assert!(matches!(EsperConfig::load(Some(&path), vec![]), Err(ConfigError::TooLarge { .. })));
    std::fs::write(&path, b"a = \"\xff\"").unwrap();
    assert!(matches!(EsperConfig::load(Some(&path), vec![]), Err(ConfigError::Read { .. })));
}

#[test]
fn the_sections_of_the_subsystems_are_checked_like_the_others() {
    check_refused(
        "",
        &["policy.policy=heuristics"],
        "--set policy.policy=heuristics: `policy.policy` is `heuristics`; accepted: heuristic, off, fixed, random, learned; did \
         you mean `heuristic`?",
    );
    check_refused(
        "[policy.random]\nrate = 1.5\n[seeds]\nseed_width = 0\n[host.mlp]\nhidden = [4, 0]\n",
        &[],
        "run.toml:6:14: `host.mlp.hidden[1]` is 0: expected 1 to 1048576\n\
         run.toml:4:1: `seeds.seed_width` is 0: expected 1 to 65536\n\
         run.toml:2:1: `policy.random.rate` is 1.5: expected 0 to 1",
    );
    check_refused(
        "[host.cnn1d]\nchannels = [4]\nkernal = 3\nstride = 1\n",
        &[],
        "run.toml:3:1: `host.cnn1d.kernal` is not a setting; accepted: channels, kernel, stride, pool; did you mean \
         `kernel`?",
    );
    check_refused(
        "[train.batch]\nbatch_size = 0\n",
        &[],
        "run.toml:2:14: `train.batch.batch_size` is 0, expected a whole number above 0",
    );
    check_refused(
        "[train]\nconflict_warn = 2\noptimizer = { kind = \"sgd\", momentum = 1.0 }\n",
        &["train.conflict=pc_grad"],
        "--set train.conflict=pc_grad: `train.conflict` is `pc_grad`; accepted: mean, pcgrad, mgda, upgrad, cagrad, \
         aligned_mtl; did you mean `pcgrad`?",
    );
    check_refused(
        "[train]\nconflict_warn = 2\noptimizer = { kind = \"sgd\", momentum = 1.0 }\n",
        &[],
        "run.toml:2:1: `train.conflict_warn` is 2, expected a number from 0 to 1\n\
         run.toml:3:29: `train.optimizer.momentum` is 1.0, expected a number of at least 0 and below 1",
    );
    check_refused(
        "[train]\ncagrad_radius = 1.0\n",
        &["train.conflict=cagrad"],
        "run.toml:2:1: `train.cagrad_radius` is 1.0, expected a number of at least 0 and below 1",
    );
    check_refused(
        "",
        &["train.optimizer.kind=adam"],
        "--set train.optimizer.kind=adam: `train.optimizer.kind` is `adam`; accepted: sgd, adam_w, lion, muon; did you mean \
         `adam_w`?",
    );
    check_refused(
        "[host.cnn]\nkernel = 3\n",
        &[],
        "run.toml:1:7: `host.cnn` is not a setting; accepted: mlp, cnn1d, transformer, language_model, cnn2d; did you \
         mean `cnn1d`?",
    );
    check_refused(
        "[host.cnn2d]\nheight = 8\nwidth = 4\nchannels = [4, 0]\nkernel = 5\nstride = 1\n",
        &[],
        "run.toml:5:1: `host.cnn2d.kernel` is 5: expected 1 to 4\n\
         run.toml:4:16: `host.cnn2d.channels[1]` is 0: expected 1 to 1048576",
    );
}

#[test]
fn a_host_of_images_says_which_samples_it_takes() {
    let file = "[host.cnn2d]\nheight = 8\nwidth = 8\nchannels = [4]\nkernel = 3\nstride = 1\n";
    let host = load_esper(file, &[]).unwrap().config.host;
    assert!(host.sized(64, 10).is_ok());
    let problem = "takes samples of [1, 8, 8], that is 64: expected the 784 features of the data";
    assert_eq!(host.sized(784, 10), Err(ConfigIssue::new("host.cnn2d", problem)));
    let color = load_esper(file, &["host.cnn2d.input_channels=3"]).unwrap().config.host;
    assert!(color.sized(192, 10).is_ok() && color.sized(64, 10).is_err());
    assert!(load_esper("", &[]).unwrap().config.host.sized(7, 10).is_ok());
    for (file, message) in [
        ("[host.mlp]\ninputs = 7\n", "`host.mlp.inputs` is 7: expected none, it follows from the data"),
        ("[host.mlp]\nclasses = 2\n", "`host.mlp.classes` is 2: expected none, it follows from the data"),
    ] {
        check_refused(file, &[], &format!("run.toml:2:1: {message}"));
    }
}

#[test]
fn the_sizes_of_a_transformer_are_checked_as_far_as_they_show_without_data() {
    let file = |rest: &str| format!("[host.transformer]\nwidth = 32\nlayers = 2\n{rest}");
    let host =
        |patch| HostConfig::Transformer { inputs: 0, patch, width: 32, heads: 4, layers: 2, mlp_ratio: 4, classes: 0 };
    for patch in [1, 7, 8, 1 << 20] {
        let loaded = load_esper(&file(&format!("heads = 4\npatch = {patch}\n")), &[]).unwrap().config;
        assert_eq!(loaded.host, host(patch));
    }
    check_refused(
        &file("heads = 3\npatch = 8\n"),
        &[],
        "run.toml:4:1: `host.transformer.heads` is 3: expected a divisor of 32, the width",
    );
    check_refused(
        &file("heads = 4\npatch = 1048577\n"),
        &[],
        "run.toml:5:1: `host.transformer.patch` is 1048577: expected 1 to 1048576",
    );
    check_refused(
        &file("heads = 4\npatch = 0\n"),
        &[],
        "run.toml:5:1: `host.transformer.patch` is 0: expected 1 to 1048576",
    );
    check_refused(&file("heads = 4\n"), &[], "run.toml:1:1: `host.transformer.patch` is missing");
}

#[test]
fn another_host_replaces_the_default_one() {
    let file = "[host.cnn1d]\nchannels = [4]\nkernel = 3\nstride = 1\n";
    let host = load_esper(file, &["host.cnn1d.stride=2"]).unwrap().config.host;
    assert_eq!(
        host,
        HostConfig::Cnn1d {
            length: 0,
            channels: vec![4],
            kernel: 3,
            stride: 2,
            classes: 0,
            pool: kasmina::host::Pool::Mean
        }
    );
    let wider = load_esper("", &["host.mlp.hidden=[12, 12]"]).unwrap().config.host;
    assert_eq!(wider, HostConfig::Mlp { inputs: 0, hidden: vec![12, 12], classes: 0 });
}

/// Shapes of settings that subsystems use: tagged alternatives, lists of tables, counts above zero.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Shapes {
    batch_size: NonZeroUsize,
    policy: PolicyShape,
    #[serde(default)]
    steps: Vec<StepShape>,
    #[serde(default)]
    note: String,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
enum PolicyShape {
    Heuristic { rate: f64 },
    Off {},
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StepShape {
    share: Fraction,
}

const POLICY: &[Alternative] = &[Alternative { path: "policy", tag: Some("kind"), filled_in: &[] }];
const SHAPES: &str = "batch_size = 32\n[policy]\nkind = \"heuristic\"\nrate = 0.5\n";

fn load_shapes(file: &str, settings: &[&str]) -> Result<Loaded<Shapes>, ConfigError> {
    let mut layers = vec![Layer::defaults("shapes", SHAPES), Layer::text(FILE, file)];
    layers.extend(sets(settings));
    load(layers, POLICY, |shapes: &Shapes| {
        let issue = Issue::new("steps[1].share", "is smaller than the one before, expected rising shares");
        if shapes.steps.windows(2).all(|pair| pair[0].share <= pair[1].share) { vec![] } else { vec![issue] }
    })
}

#[track_caller]
fn check_shapes_refused(file: &str, settings: &[&str], message: &str) {
    assert_eq!(load_shapes(file, settings).unwrap_err().to_string(), message);
}

#[test]
fn mistakes_inside_tagged_and_repeated_tables_have_their_place() {
    check_shapes_refused("batch_size = 0\n", &[], "run.toml:1:14: `batch_size` is 0, expected a whole number above 0");
    let kinds = "accepted: heuristic, off";
    check_shapes_refused(
        "[policy]\nkind = \"heuristics\"\n",
        &[],
        &format!("run.toml:2:8: `policy.kind` is `heuristics`; {kinds}; did you mean `heuristic`?"),
    );
    check_shapes_refused(
        "",
        &["policy.kind=learned"],
        &format!("--set policy.kind=learned: `policy.kind` is `learned`; {kinds}"),
    );
    check_shapes_refused(
        "[policy]\nrat = 0.5\n",
        &[],
        "run.toml:2:1: `policy.rat` is not a setting; accepted: rate; did you mean `rate`?",
    );
    check_shapes_refused(
        "[[steps]]\nshare = 0.1\n[[steps]]\nshare = 2\n",
        &[],
        "run.toml:4:9: `steps[1].share` is 2, expected a fraction above 0 and below 1",
    );
    check_shapes_refused("[[steps]]\n", &[], "run.toml:1:1: `steps[0].share` is missing");
    check_shapes_refused(
        "steps = [{ share = 0.5 }, { share = 0.2 }]\n",
        &[],
        "run.toml:1:29: `steps[1].share` is smaller than the one before, expected rising shares",
    );
}

#[test]
fn another_alternative_does_not_inherit_the_settings_of_the_default_one() {
    assert_eq!(load_shapes("", &["policy.kind=off"]).unwrap().config.policy, PolicyShape::Off {});
    assert_eq!(load_shapes("policy.rate = 0.25", &[]).unwrap().config.policy, PolicyShape::Heuristic { rate: 0.25 });
}

#[test]
fn settings_of_an_alternative_count_in_any_order_of_the_flags() {
    let optimizer = |settings: &[&str]| load_esper("", settings).unwrap().config.train.optimizer;
    let (momentum, kind) = ("train.optimizer.momentum=0.55", "train.optimizer.kind=sgd");
    assert_eq!(optimizer(&[momentum, kind]), optimizer(&[kind, momentum]));
    assert_ne!(optimizer(&[momentum, kind]), optimizer(&[kind]));
    // As a study says something else for one of its sets.
    let decay = "train.optimizer.weight_decay=0.5";
    assert_eq!(optimizer(&["train.optimizer.kind=lion", decay, kind, momentum]), optimizer(&[kind, momentum]));
    let misspelt = "train.schedule.decay.end_factor=0.2";
    check_refused(
        "",
        &[misspelt, "train.schedule.decay.kind=cosine"],
        &format!("--set {misspelt}: `train.schedule.decay.end_factor` is not a setting; accepted: final_ratio"),
    );
    let cnn1d = "host.cnn1d={channels = [4], kernel = 3, stride = 1}";
    let host = |settings: &[&str]| load_esper("", settings).unwrap().config.host;
    assert_eq!(host(&["host.mlp.hidden=[12]", cnn1d]), host(&[cnn1d]));
    let file = "[train.optimizer]\nkind = \"lion\"\nweight_decay = 0.5\n";
    assert_eq!(load_esper(file, &[momentum, kind]).unwrap().config.train.optimizer, optimizer(&[kind, momentum]));
}

#[test]
fn a_missing_key_is_named_with_its_section() {
    let loaded = load::<Shapes>(vec![Layer::text(FILE, "[policy]\nkind = \"off\"")], POLICY, |_| vec![]);
    assert_eq!(loaded.unwrap_err().to_string(), "run.toml:1:1: `batch_size` is missing");
}

#[test]
fn each_layer_wins_over_the_one_before_and_is_remembered() {
    let file = "[run]\nepochs = 7\nseed = 8\n[data]\nname = \"mnist1d\"\n";
    let loaded = load_esper(file, &["run.seed=9", "run.device=cuda:1"]).unwrap();
    let run = &loaded.config.run;
    assert_eq!((run.epochs.get(), run.seed, run.device), (7, 9, DeviceName::Cuda(1)));
    assert_eq!((&loaded.config.data.name, loaded.config.data.test_fraction), (&DataName::Mnist1d, None));
    let origin = |key: &str| loaded.provenance[key].to_string();
    assert_eq!(origin("run.epochs"), "run.toml:2:1");
    assert_eq!(origin("run.seed"), "--set run.seed=9");
    assert_eq!(origin("data.split_seed"), "defaults (mnist1d)");

    let epochs = load_esper("[data]\nname = \"mnist1d\"\n", &[]).unwrap();
    assert_eq!(epochs.config.run.epochs.get(), 60);
    assert_eq!(epochs.provenance["run.epochs"].to_string(), "defaults (mnist1d)");
}

#[test]
fn a_flag_chooses_the_defaults_of_its_data_set() {
    let layers = vec![
        Layer::text(FILE, "[data]\nname = \"digits\""),
        Layer::flag("--data mnist", "data.name", "mnist").unwrap(),
    ];
    let loaded = EsperConfig::from_layers(layers).unwrap();
    assert_eq!(loaded.config.data.folder, Path::new("data/mnist"));
    assert_eq!(loaded.provenance["data.name"], Place::Flag("--data mnist".into()));
}

#[test]
fn the_defaults_of_every_data_set_are_valid() {
    for name in ["digits", "mnist1d", "mnist", "fashion-mnist", "a/b.csv", "b.csv.gz"] {
        let config = EsperConfig::defaults_for(&DataName::parse(name).unwrap());
        assert_eq!(config.data.name.to_string(), name);
    }
}

#[test]
fn the_written_file_names_every_origin_and_loads_to_the_same_configuration() {
    let loaded = load_esper("[run]\nepochs = 7\nout = \"a # b\"\n", &["run.device=cuda:1"]).unwrap();
    let written = loaded.to_toml().unwrap();
    for line in [
        "epochs = 7  # file: run.toml:2:1\n",
        "out = \"a # b\"  # file: run.toml:3:1\n",
        "device = \"cuda:1\"  # flag: --set run.device=cuda:1\n",
        "seed = 1  # default\n",
    ] {
        assert!(written.contains(line), "no {line:?} in\n{written}");
    }
    // The tables of a list share the comment of the list.
    let without_lists = written.split("\n\n").filter(|section| !section.starts_with("[["));
    let bare: Vec<&str> =
        without_lists.flat_map(str::lines).filter(|line| line.contains('=') && !line.contains("  # ")).collect();
    assert_eq!(bare, [""; 0]);
    assert_eq!(load_esper(&written, &[]).unwrap().config, loaded.config);
}

#[test]
fn a_line_break_in_a_value_cannot_leave_its_comment() {
    let loaded = load_shapes("", &["note=x\nbatch_size=1"]).unwrap();
    let again = load_shapes(&loaded.to_toml().unwrap(), &[]).unwrap().config;
    assert_eq!(again, loaded.config);
    assert_eq!((again.batch_size.get(), again.note.as_str()), (32, "x\nbatch_size=1"));
}

proptest! {
    #[test]
    fn no_text_makes_the_loader_panic(file in "[ -~\n]{0,60}", section in "(run|data|policy|x)", value in ".{0,20}") {
        let layers = vec![Layer::text(FILE, format!("[{section}]\n{file}")), Layer::set(&format!("run.out={value}")).unwrap()];
        if let Err(error) = EsperConfig::from_layers(layers) {
            prop_assert!(!error.to_string().is_empty());
        }
    }

    #[test]
    fn any_text_survives_the_way_through_a_flag_and_the_written_file(note in any::<String>()) {
        let quoted = toml::Value::from(note.as_str()).to_string();
        let flag = Layer::flag("--note", "note", &quoted).unwrap();
        let loaded: Loaded<Shapes> = load(vec![Layer::defaults("shapes", SHAPES), flag], POLICY, |_| vec![]).unwrap();
        let again = load_shapes(&loaded.to_toml().unwrap(), &[]).unwrap().config;
        prop_assert_eq!(again, loaded.config);
    }
}
