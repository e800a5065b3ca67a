//! A text is learned, measured, exported and gone on with; what does not fit is refused.
#![expect(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::LazyLock;

use assert_cmd::Command;
use serde_json::Value;
use tempfile::TempDir;

/// Small enough for a test; the rest follows from the data.
const SMALL: &[&str] = &[
    "data.window=16",
    "host.language_model.width=16",
    "host.language_model.heads=2",
    "host.language_model.layers=1",
    "seeds.seed_width=8",
    "train.batch.batch_size=8",
    "train.schedule.decay.kind=constant",
    "train.schedule.learning_rate=0.01",
];

/// Some thousand bytes in which every word tells a part of the next one.
fn text() -> String {
    let words = ["the cat sat ", "on the mat ", "and saw a ", "dog that ran ", "to the sea. "];
    let mut state = 7_u32;
    let mut text = String::new();
    while text.len() < 4_000 {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let place = usize::try_from(state >> 16).unwrap() % words.len();
        text += words[place];
        text += words[(place + 1) % words.len()];
    }
    text
}

/// A run on a text whose name does not say that it is one, with a seed that becomes part of the network.
static RUN: LazyLock<(TempDir, PathBuf)> = LazyLock::new(|| {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("corpus"), text()).unwrap();
    let more = ["policy.fixed.training_epochs=1", "run.epochs=12"];
    let trained = train(dir.path(), &["--data", "text:corpus", "--policy", "fixed", "--out", "run"], &more);
    assert!(trained.status.success(), "{}", String::from_utf8_lossy(&trained.stderr));
    let run = dir.path().join("run");
    (dir, run)
});

fn esper(dir: &Path, args: &[&str]) -> Output {
    Command::cargo_bin("esper").unwrap().current_dir(dir).args(args).output().unwrap()
}

fn train(dir: &Path, args: &[&str], set: &[&str]) -> Output {
    let set: Vec<&str> = SMALL.iter().chain(set).flat_map(|set| ["--set", set]).collect();
    esper(dir, &[&["train"], args, &set].concat())
}

#[track_caller]
fn printed(args: &[&str]) -> String {
    let output = esper(RUN.0.path(), args);
    assert_eq!(output.status.code(), Some(0), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn check_refused(output: &Output, parts: &[&str]) {
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    for part in parts {
        assert!(error.contains(part), "`{part}` is missing in: {error}");
    }
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

#[test]
fn a_text_is_learned_in_order_with_perplexity_and_bits_per_byte() {
    let summary = json(&RUN.1.join("summary.json"));
    let (loss, measures) = (summary["test_loss"].as_f64().unwrap(), &summary["test_measures"]);
    assert!(loss < 2.0, "{summary}");
    let near = |name: &str, expected: f64| {
        let found = measures[name].as_f64().unwrap_or_else(|| panic!("{name} is missing in {summary}"));
        assert!((found - expected).abs() < 1e-4 * expected, "{name}: {found} against {expected}");
    };
    near("perplexity", loss.exp());
    near("bits_per_byte", loss / std::f64::consts::LN_2);
    assert!(fs::read_to_string(RUN.1.join("report.html")).unwrap().contains("Bits per byte"));
    let rows = json(&RUN.1.join("rows.json"));
    let part = |name: &str| -> Vec<u64> { serde_json::from_value(rows[name].clone()).unwrap() };
    let all = [part("train"), part("validation"), part("test")].concat();
    assert_eq!(all, (0..all.len() as u64).collect::<Vec<_>>(), "parts follow each other in the text");
    let config = fs::read_to_string(RUN.1.join("config.toml")).unwrap();
    assert!(config.contains("mlp_ratio = 4") && config.contains("name = \"./corpus\""), "{config}");
    let seeds = fs::read_to_string(RUN.1.join("metrics.jsonl")).unwrap();
    assert!(seeds.contains("seed-1"), "a seed lived");
}

#[test]
fn evaluation_of_run_and_export_are_those_of_the_run() {
    let summary = json(&RUN.1.join("summary.json"));
    let found: Value = serde_json::from_str(&printed(&["evaluate", "run", "--json"])).unwrap();
    assert_eq!(
        (&found["loss"], &found["measures"]["perplexity"]),
        (&summary["test_loss"], &summary["test_measures"]["perplexity"])
    );
    printed(&["export", "run", "--to", "evaluated"]);
    let [of_run, of_export] = ["run", "evaluated"].map(|subject| -> Value {
        serde_json::from_str(&printed(&["evaluate", subject, "--data", "corpus", "--json"])).unwrap()
    });
    assert_eq!((&of_run["loss"], &of_run["measures"]), (&of_export["loss"], &of_export["measures"]));
    assert!(of_run["samples"].as_u64().unwrap() > found["samples"].as_u64().unwrap());
}

#[test]
fn a_run_and_its_export_go_on_with_a_text_alike() {
    printed(&["export", "run", "--to", "exported"]);
    let generate = |more: &[&str]| printed(&[&["generate"], more].concat());
    let prompt = ["--prompt", "the cat sat on the mat and saw a dog", "--tokens", "60"];
    let plain = generate(&[&["run"][..], &prompt].concat());
    assert!(plain.starts_with(prompt[1]) && plain.ends_with('\n'), "{plain:?}");
    assert_eq!(plain, generate(&[&["exported"][..], &prompt].concat()));
    assert_ne!(plain, generate(&[&["run"][..], &prompt, &["--seed", "2"]].concat()));
    let greedy = [&prompt[..], &["--temperature", "0"]].concat();
    let found: Value = serde_json::from_str(&generate(&[&["run"], &greedy[..], &["--json"]].concat())).unwrap();
    let tokens: Vec<u8> = serde_json::from_value(found["tokens"].clone()).unwrap();
    assert_eq!((tokens.len(), found["text"].as_str().unwrap()), (60, std::str::from_utf8(&tokens).unwrap()));
    assert_eq!(
        generate(&[&["run"], &greedy[..]].concat()),
        format!("{}{}\n", prompt[1], found["text"].as_str().unwrap())
    );
    let one = [&prompt[..], &["--temperature", "1.5", "--top-k", "1"]].concat();
    assert_eq!(
        generate(&[&["run"], &greedy[..]].concat()),
        generate(&[&["run"], &one[..]].concat()),
        "one to draw from"
    );
    // It has learned which words there are.
    assert!(found["text"].as_str().unwrap().contains("the "), "{found}");
}

#[test]
fn a_run_that_was_stopped_goes_on_bit_for_bit() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("corpus.txt"), text()).unwrap();
    let run = |args: &[&str]| {
        let output = train(dir.path(), &[&["--data", "corpus.txt", "--policy", "fixed"], args].concat(), &[]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    run(&["--epochs", "4", "--out", "whole"]);
    run(&["--epochs", "2", "--out", "parts"]);
    run(&["--epochs", "4", "--out", "parts", "--resume"]);
    let [whole, parts] = ["whole", "parts"].map(|name| json(&dir.path().join(name).join("summary.json")));
    for key in ["test_loss", "test_measures", "epochs"] {
        assert_eq!(whole[key], parts[key], "{key}");
    }
    let exported = |name: &str| {
        assert!(esper(dir.path(), &["export", name, "--to", &format!("{name}-net")]).status.success());
        fs::read(dir.path().join(format!("{name}-net")).join("model.safetensors")).unwrap()
    };
    assert_eq!(exported("whole"), exported("parts"));
}

#[test]
fn numbers_of_tokens_are_prompts_where_there_is_no_text() {
    let dir = tempfile::tempdir().unwrap();
    let tokens: Vec<u8> = (0..2000_u16).flat_map(|index| (index * 7 % 40).to_le_bytes()).collect();
    fs::write(dir.path().join("a.u16"), tokens).unwrap();
    let output = train(dir.path(), &["--data", "a.u16", "--max-steps", "3", "--policy", "off", "--out", "run"], &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let summary = json(&dir.path().join("run/summary.json"));
    assert!(summary["test_measures"]["perplexity"].is_f64(), "{summary}");
    assert!(summary["test_measures"]["bits_per_byte"].is_null(), "nobody said what a token stands for: {summary}");
    let generate = |prompt: &str, more: &[&str]| {
        esper(dir.path(), &[&["generate", "run", "--tokens", "20", "--prompt", prompt], more].concat())
    };
    let text = String::from_utf8(generate("0 7 14", &[]).stdout).unwrap();
    let numbers: Vec<u32> = text.split_whitespace().map(|word| word.parse().unwrap()).collect();
    assert!(
        numbers.len() == 23 && numbers.starts_with(&[0, 7, 14]) && numbers.iter().all(|&token| token < 40),
        "{text}"
    );
    let found: Value = serde_json::from_slice(&generate("0", &["--json"]).stdout).unwrap();
    assert!(found["text"].is_null() && found["tokens"].as_array().unwrap().len() == 20, "{found}");
    for (prompt, shown) in
        [("0 40", "`40` is no token"), ("0 x\u{1b}", "`x\\u{1b}` is no token"), ("-1", "`-1` is no token")]
    {
        let expected = ["--prompt: ", shown, "expected numbers from 0 to 39 with spaces between them"];
        let output = esper(dir.path(), &["generate", "run", &format!("--prompt={prompt}")]);
        check_refused(&output, &expected);
    }
    check_refused(&generate("", &[]), &["--prompt is empty: expected one token or more"]);
}

/// Of the words of [`text`], each with the space behind it.
fn tokenizer() -> String {
    let words = ["the", "cat", "sat", "on", "mat", "and", "saw", "a", "dog", "that", "ran", "to", "sea"];
    let words: serde_json::Map<String, Value> =
        ["?", ".", "Ġ"].iter().chain(&words).enumerate().map(|(id, word)| ((*word).to_owned(), id.into())).collect();
    serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "?"},
    })
    .to_string()
}

#[test]
fn the_tokens_of_a_tokenizer_are_learned_measured_exported_and_gone_on_with_as_text() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    fs::write(path("corpus"), text().repeat(3)).unwrap();
    fs::write(path("words.json"), tokenizer()).unwrap();
    let data = ["--data", "text:corpus", "--tokenizer", "words.json", "--policy", "off"];
    let output = train(dir.path(), &[&data[..], &["--epochs", "8", "--out", "run"]].concat(), &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let summary = json(&path("run/summary.json"));
    let preparation = json(&path("run/preparation.json"));
    let bytes = preparation["target"]["bytes_per_token"].as_f64().unwrap();
    assert!((3.0..5.0).contains(&bytes), "{bytes}");
    assert_eq!(preparation["target"]["vocabulary"], 16);
    let expected = summary["test_loss"].as_f64().unwrap() / std::f64::consts::LN_2 / bytes;
    let bits = summary["test_measures"]["bits_per_byte"].as_f64().unwrap();
    assert!((bits - expected).abs() < 1e-4 * expected, "{summary}");
    // What follows does without the file.
    assert!(esper(dir.path(), &["export", "run", "--to", "net"]).status.success());
    fs::remove_file(path("words.json")).unwrap();
    let printed = |args: &[&str]| {
        let output = esper(dir.path(), args);
        assert_eq!(output.status.code(), Some(0), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let prompt = ["--prompt", "the cat sat on", "--tokens", "12", "--temperature", "0"];
    let said = printed(&[&["generate", "run"], &prompt[..]].concat());
    assert!(said.starts_with("the cat sat on the mat ") && said.ends_with('\n'), "{said}");
    assert_eq!(said, printed(&[&["generate", "net"], &prompt[..]].concat()));
    let found: Value = serde_json::from_str(&printed(&[&["generate", "net", "--json"], &prompt[..]].concat())).unwrap();
    assert_eq!(said, format!("{}{}\n", prompt[1], found["text"].as_str().unwrap()));
    assert_eq!(found["tokens"].as_array().unwrap().len(), 12);
    let [of_run, of_export] = ["run", "net"].map(|subject| -> Value {
        serde_json::from_str(&printed(&["evaluate", subject, "--data", "corpus", "--json"])).unwrap()
    });
    assert_eq!((&of_run["loss"], &of_run["measures"]), (&of_export["loss"], &of_export["measures"]));
    // Going on needs it, as it was.
    let more = ["--data", "text:corpus", "--tokenizer", "words.json", "--policy", "off", "--resume", "--out", "run"];
    let resume = || train(dir.path(), &[&more[..], &["--epochs", "9"]].concat(), &[]);
    check_refused(&resume(), &["data.tokenizer", "cannot read words.json", "expected a tokenizer.json"]);
    fs::write(path("words.json"), tokenizer().replace("\"sea\"", "\"see\"")).unwrap();
    check_refused(&resume(), &["data.tokenizer: words.json is not the tokenizer that the run was begun with"]);
    check_refused(
        &esper(dir.path(), &["evaluate", "run"]),
        &["words.json is not the tokenizer that the run was begun with"],
    );
    fs::write(path("words.json"), tokenizer()).unwrap();
    assert!(resume().status.success());
    let document = fs::read_to_string(path("net/model.json")).unwrap();
    fs::write(path("net/model.json"), document.replace("\\\"sea\\\"", "\\\"see\\\"")).unwrap();
    let args = ["generate", "net", "--prompt", "the"];
    check_refused(&esper(dir.path(), &args), &["preparation.tokenizer", "that of words.json as it was read"]);
    fs::write(path("words.json"), "{}").unwrap();
    let wrong = train(dir.path(), &data, &[]);
    check_refused(&wrong, &["words.json", "expected a tokenizer.json"]);
    let bytes = train(dir.path(), &["--data", "digits", "--tokenizer", "words.json"], &[]);
    check_refused(&bytes, &["data.tokenizer", "`digits` is none"]);
}

#[test]
fn what_does_not_fit_is_refused_with_what_does() {
    let dir = RUN.0.path();
    fs::write(dir.join("short.txt"), "too short").unwrap();
    fs::write(dir.join("rows.csv"), "a,b\n1,x\n").unwrap();
    for (args, parts) in [
        (
            &["train", "--data", "text:corpus", "--set", "host.mlp.hidden=[4]"][..],
            &["`host` is `mlp`, and the data are tokens; expected `language_model`"][..],
        ),
        (
            &["train", "--data", "rows.csv", "--set", "host.language_model={width=8,heads=1,layers=1}"],
            &["`host` is `language_model`", "expected `mlp`"],
        ),
        (
            &["train", "--set", "host.language_model={width=8,heads=1,layers=1}"],
            &["`host` is `language_model`", "expected `mlp`"],
        ),
        (&["train", "--data", "text:nothing"], &["data.name", "nothing", "No such file"]),
        (&["train", "--data", "short.txt"], &["found 9 tokens, expected 65 or more"]),
        (&["train", "--data", "text:corpus", "--set", "data.format=csv"], &["--set data.format=csv", "contradicts"]),
        (
            &["train", "--data", "text:corpus", "--set", "host.language_model.heads=5"],
            &["host.language_model.heads", "is 5: expected a divisor of"],
        ),
        (
            &["train", "--data", "text:corpus", "--set", "host.language_model.context=5"],
            &["host.language_model.context", "follows from the data"],
        ),
        (&["train", "--data", "text:corpus", "--set", "data.csv_scale=2"], &["data.csv_scale"]),
        (&["generate", "run", "--prompt", ""], &["--prompt is empty: expected one token or more"]),
        (
            &["generate", "run", "--prompt", "a", "--temperature", "-1"],
            &["--temperature is -1: expected a finite number from 0 on"],
        ),
        (
            &["generate", "run", "--prompt", "a", "--temperature", "NaN"],
            &["--temperature is NaN: expected a finite number from 0 on"],
        ),
        (&["generate", "run", "--prompt", "a", "--top-k", "0"], &["--top-k"]),
        (&["generate", "run", "--prompt", "a", "--tokens", "-3"], &["--tokens"]),
        (&["generate", "corpus", "--prompt", "a"], &["holds no trained network"]),
        (&["predict", "run", "--data", "corpus"], &["predicts tokens, as `esper generate` does"]),
        (&["export", "run", "--to", "onnx", "--onnx"], &["`network.host` is `language_model`", "for ONNX"]),
    ] {
        check_refused(&esper(dir, args), parts);
    }
    let digits = esper(dir, &["train", "--max-steps", "1", "--policy", "off", "--out", "digits"]);
    assert!(digits.status.success());
    check_refused(
        &esper(dir, &["generate", "digits", "--prompt", "a"]),
        &["predicts classes; expected a language model"],
    );
}
