//! Seeds of a saved state as a library gets them, and libraries that cannot be opened.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use candle_core::{DType, Device, Tensor};
use esper_weights::{Artifact, HostTensor, IfPublished, publish};
use leyline::durable::SavedState;
use leyline::id::{BlueprintId, SeedId};

use super::{open, saved};
use crate::config::LibraryConfig;
use crate::exit::UsageError;

fn state(dtype: DType) -> SavedState {
    let tensor = |values: &[f32], shape: &[usize]| {
        Tensor::from_slice(values, shape, &Device::Cpu).unwrap().to_dtype(dtype).unwrap()
    };
    let tensors = BTreeMap::from([
        ("host.layer0.weight".to_owned(), tensor(&[9.0], &[1])),
        ("seed.0001.down.weight".to_owned(), tensor(&[0.5, -0.25], &[1, 2])),
        ("seed.0001.up.bias".to_owned(), tensor(&[1.5], &[1])),
        ("seed.0001.gate.weight".to_owned(), tensor(&[7.0], &[1])),
        ("seed.0010.down.weight".to_owned(), tensor(&[3.0], &[1])),
        ("seed.0011.down.weight".to_owned(), tensor(&[4.0], &[1])),
    ]);
    let seed = |id: u32, stage: &str, pending: bool| serde_json::json!({"id": format!("seed-{id}"), "blueprint": "mlp", "stage": stage, "weights_pending": pending});
    let seeds = [
        seed(1, "fossilized", false),
        seed(2, "embargoed", false),
        seed(10, "training", false),
        seed(11, "germinated", true),
    ];
    SavedState { json: serde_json::json!({"format": 2, "seeds": seeds}).to_string(), tensors }
}

#[test]
fn a_seed_has_its_own_weights_and_no_gate_in_every_type_that_loses_nothing() {
    for dtype in [DType::F32, DType::BF16] {
        let (seed, tensors) = saved::weights(&state(dtype), SeedId(1)).unwrap();
        assert_eq!((seed.id, seed.blueprint.as_str(), seed.stage.as_str()), (SeedId(1), "mlp", "fossilized"));
        let expected = [
            HostTensor { name: "down.weight".into(), shape: vec![1, 2], values: vec![0.5, -0.25] },
            HostTensor { name: "up.bias".into(), shape: vec![1], values: vec![1.5] },
        ];
        assert_eq!(tensors, expected, "{dtype:?}");
    }
}

#[test]
fn a_seed_without_weights_is_answered_with_those_that_have_some() {
    let known = "seeds with weights: 1 (mlp, fossilized), 10 (mlp, training)";
    for (seed, problem) in [
        (3, "seed-3 is not in the checkpoint"),
        (2, "seed-2 is embargoed and has no weights"),
        (11, "seed-11 waits for weights itself"),
    ] {
        let error = saved::weights(&state(DType::F32), SeedId(seed)).unwrap_err();
        assert!(error.is::<UsageError>(), "{error}");
        assert_eq!(error.to_string(), format!("--seed {seed}: {problem}; {known}"));
    }
    let none = SavedState { json: r#"{"seeds":[]}"#.to_owned(), tensors: BTreeMap::new() };
    let error = saved::weights(&none, SeedId(1)).unwrap_err().to_string();
    assert_eq!(error, "--seed 1: seed-1 is not in the checkpoint; seeds with weights: none");
}

#[test]
fn weights_that_would_be_rounded_are_refused() {
    let error = saved::weights(&state(DType::F64), SeedId(1)).unwrap_err();
    assert!(error.is::<UsageError>(), "{error}");
    assert!(error.to_string().contains("`down.weight` of seed-1 has elements of f64"), "{error}");
}

fn library(path: &Path, blueprints: Option<&[&str]>) -> LibraryConfig {
    let ids = blueprints.map(|names| names.iter().map(|name| BlueprintId::new(*name).unwrap()).collect());
    let table = toml::Table::from_iter([("path".to_owned(), path.to_str().unwrap().into())]);
    LibraryConfig { blueprints: ids, ..table.try_into().unwrap() }
}

#[track_caller]
fn check_refused(config: &LibraryConfig, parts: &[&str]) {
    let issues = open(config).unwrap_err();
    let text: Vec<String> = issues.iter().map(|issue| format!("`{}` {}", issue.key, issue.problem)).collect();
    for part in parts {
        assert!(text.join("\n").contains(part), "`{part}` is missing in: {text:?}");
    }
}

#[test]
fn a_library_that_cannot_be_used_is_answered_with_its_key() {
    let dir = tempfile::tempdir().unwrap();
    let absent = dir.path().join("absent");
    check_refused(&library(&absent, None), &["seeds.library.path", "absent", "manifest.json", "esper seeds export"]);
    check_refused(&library(dir.path(), None), &["seeds.library.path", "manifest.json"]);
    fs::write(dir.path().join("manifest.json"), "[]").unwrap();
    check_refused(&library(dir.path(), None), &["seeds.library.path", "the manifest is not valid"]);
    fs::write(dir.path().join("manifest.json"), "{}").unwrap();
    let one = Some(&["mlp"][..]);
    check_refused(&library(dir.path(), one), &["`seeds.library.blueprints[0]` is `mlp`", "none"]);
    let tensor = HostTensor { name: "w".into(), shape: vec![1], values: vec![1.0] };
    let mlp = BlueprintId::new("mlp").unwrap();
    let artifact = Artifact::from_tensors(mlp.clone(), &[tensor]).unwrap();
    publish(dir.path(), &mlp, artifact.bytes(), IfPublished::Refuse).unwrap();
    assert!(open(&library(dir.path(), one)).is_ok());
    let two = Some(&["mlp", "conv"][..]);
    check_refused(&library(dir.path(), two), &["`seeds.library.blueprints[1]` is `conv`", ": mlp"]);
}
