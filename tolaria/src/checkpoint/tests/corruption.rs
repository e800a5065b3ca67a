//! Damaged and hostile bytes are found and named; they are never loaded and never panic.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use esper_disk::testkit::SimFs;
use leyline::error::{Error, ErrorKind};
use proptest::prelude::*;

use super::{DIR, assert_same, chain, saved, snapshot};
use crate::checkpoint::manifest::{Manifest, ManifestError, seal};
use crate::checkpoint::payload::{Payload, encode, parse_state, parse_tensors};
use crate::checkpoint::{CheckpointError, CheckpointStore, Fs, Generation};

const FILES: [&str; 3] = ["manifest.json", "state.json", "tensors.safetensors"];

fn path(name: &str) -> PathBuf {
    Path::new(DIR).join(Generation(2).directory_name()).join(name)
}

/// Generations 1 and 2, and the bytes of a file of the second.
fn victim(name: &str) -> (Arc<SimFs>, CheckpointStore, Vec<u8>) {
    let (fs, store) = saved(1..=2, 2);
    let bytes = fs.read(&path(name), u64::MAX).unwrap();
    (fs, store, bytes)
}

/// Generation 2 is refused by name, and generation 1 is loaded instead.
#[track_caller]
fn assert_falls_back(store: &CheckpointStore, name: &str) -> String {
    let loaded = store.load_latest().unwrap().unwrap();
    assert_eq!(loaded.generation, Generation(1));
    assert_eq!(loaded.skipped.len(), 1);
    let (skipped, reason) = &loaded.skipped[0];
    assert_eq!((*skipped, reason.kind()), (Generation(2), ErrorKind::Corrupt));
    let CheckpointError::Damaged { generation, path: named, .. } = reason else { panic!("{reason}") };
    assert_eq!((*generation, named), (Generation(2), &path(name)));
    assert!(store.verify(Generation(2)).is_err());
    chain(reason)
}

#[test]
fn every_flipped_bit_is_found() {
    let mut num_flips = 0;
    for name in FILES {
        let (fs, store, bytes) = victim(name);
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            fs.poke(&path(name), &flipped);
            assert_falls_back(&store, name);
            num_flips += 1;
        }
        fs.poke(&path(name), &bytes);
        assert_same(&store.load_latest().unwrap().unwrap().snapshot, &snapshot(2));
    }
    assert!(num_flips > 5_000, "{num_flips} flips");
}

#[test]
fn every_truncation_is_found() {
    for name in FILES {
        let (fs, store, bytes) = victim(name);
        for length in 0..bytes.len() {
            fs.poke(&path(name), &bytes[..length]);
            let reason = assert_falls_back(&store, name);
            let lengths = format!("it has {length} bytes, expected {}", bytes.len());
            assert!(name == "manifest.json" || reason.ends_with(&lengths), "{reason}");
        }
    }
}

#[test]
fn appended_bytes_are_found() {
    for name in FILES {
        let (fs, store, bytes) = victim(name);
        for junk in [&b"\0"[..], b"\n", b"}", &[0; 4096]] {
            fs.poke(&path(name), &[&bytes, junk].concat());
            let reason = assert_falls_back(&store, name);
            let length = format!("it has more than the expected {} bytes", bytes.len());
            assert!(name == "manifest.json" || reason.ends_with(&length), "{reason}");
        }
    }
}

#[test]
fn a_huge_manifest_is_not_read() {
    let (fs, store, _) = victim("manifest.json");
    fs.poke(&path("manifest.json"), &vec![b' '; (64 << 10) + 1]);
    let reason = assert_falls_back(&store, "manifest.json");
    assert!(reason.ends_with("it has more than the expected 65536 bytes"), "{reason}");
}

#[test]
fn files_of_another_generation_are_found() {
    let (fs, store, _) = victim("state.json");
    for name in FILES {
        let own = fs.read(&path(name), u64::MAX).unwrap();
        let other = Path::new(DIR).join(Generation(1).directory_name()).join(name);
        fs.poke(&path(name), &fs.read(&other, u64::MAX).unwrap());
        let reason = assert_falls_back(&store, name);
        if name == "manifest.json" {
            assert!(reason.ends_with("it says generation 1, but its directory says 2"), "{reason}");
        }
        fs.poke(&path(name), &own);
    }
}

#[test]
fn missing_files_are_found() {
    let (fs, store, _) = victim("state.json");
    fs.remove_dir_all(&path("")).unwrap();
    fs.create_dir(&path("")).unwrap();
    let reason = assert_falls_back(&store, "manifest.json");
    assert!(reason.ends_with("it is missing"), "{reason}");
}

/// Body of a sound manifest, changed by `change` and sealed again: what an attacker can do.
fn forged(change: impl FnOnce(&mut serde_json::Value)) -> Vec<u8> {
    let payload = encode(&snapshot(2).components).unwrap();
    let mut body = serde_json::to_value(Manifest::new(Generation(2), snapshot(2).meta, &payload, false)).unwrap();
    change(&mut body);
    seal(&serde_json::to_vec(&body).unwrap())
}

#[track_caller]
fn check_forged(expected: &str, change: impl FnOnce(&mut serde_json::Value)) {
    let (fs, store, _) = victim("manifest.json");
    fs.poke(&path("manifest.json"), &forged(change));
    let reason = assert_falls_back(&store, "manifest.json");
    assert!(reason.contains(expected), "{reason}");
}

#[test]
fn a_forged_manifest_cannot_reach_outside_or_ask_for_memory() {
    for name in ["../state.json", "/etc/passwd", "a/b", "..", "", "é"] {
        check_forged("is not allowed: expected 1 to 64 characters", |body| body["files"][0]["name"] = name.into());
    }
    check_forged("expected [\"state.json\", \"tensors.safetensors\"]", |body| body["files"][0]["name"] = "x".into());
    check_forged("expected [\"state.json\", \"tensors.safetensors\"]", |body| {
        drop(body["files"].as_array_mut().unwrap().pop());
    });
    check_forged("expected [\"state.json\", \"tensors.safetensors\"]", |body| {
        body["files"].as_array_mut().unwrap().reverse();
    });
    check_forged("the limit is 268435456", |body| body["files"][0]["bytes"] = u64::MAX.into());
    check_forged("the limit is 68719476736", |body| body["files"][1]["bytes"] = (1_u64 << 50).into());
    check_forged("it is not valid JSON of its kind", |body| body["files"][1]["bytes"] = (-1).into());
    check_forged("unknown field `more`", |body| body["more"] = 1.into());
    check_forged("unknown field `more`", |body| body["meta"]["more"] = 1.into());
    check_forged("is not a run id", |body| body["meta"]["run_id"] = "../x".into());
    check_forged("configuration digest", |body| body["meta"]["config_digest"] = "x".repeat(300).into());
    check_forged("its format is \"zip\", expected \"esper-checkpoint\"", |body| body["format"] = "zip".into());
    check_forged("it says generation 3", |body| body["generation"] = 3.into());
    check_forged("`pinned` is false in version 2", |body| body["version"] = 2.into());
    check_forged("`pinned` is true in version 1", |body| body["pinned"] = true.into());
    check_forged("it is not valid JSON", |body| *body = serde_json::Value::Null);
}

#[test]
fn an_unchanged_forgery_is_the_original() {
    let (_, _, bytes) = victim("manifest.json");
    let payload = encode(&snapshot(2).components).unwrap();
    assert_eq!(Manifest::new(Generation(2), snapshot(2).meta, &payload, false).to_bytes().unwrap(), bytes);
    assert!(serde_json::from_slice::<serde_json::Value>(&bytes).unwrap()["manifest"]["version"] == 1);
}

#[test]
fn another_version_is_named_and_not_passed_over() {
    let other = serde_json::json!({"format": "esper-checkpoint", "version": 3, "files": "elsewhere"});
    for manifest in [forged(|body| body["version"] = 3.into()), forged(|body| *body = other)] {
        let (fs, store, _) = victim("manifest.json");
        fs.poke(&path("manifest.json"), &manifest);
        for result in [store.load_latest().map(drop), store.verify(Generation(2)).map(drop)] {
            let error = result.unwrap_err();
            assert!(matches!(error, CheckpointError::UnsupportedVersion { found: 3, .. }), "{error}");
            let text = error.to_string();
            assert!(text.contains("has format version 3, but this build reads versions 1 to 2"), "{text}");
        }
        assert_same(&store.load(Generation(1)).unwrap(), &snapshot(1));
    }
}

/// Payload files that a sound manifest vouches for and that are wrong in themselves.
#[track_caller]
fn check_payload(state: &[u8], tensors: &[u8], file: &str, expected: &str) {
    let (fs, store, _) = victim("manifest.json");
    let payload = Payload { state: state.to_vec(), tensors: tensors.to_vec() };
    let manifest = Manifest::new(Generation(2), snapshot(2).meta, &payload, false).to_bytes().unwrap();
    for (name, bytes) in [("manifest.json", &*manifest), ("state.json", state), ("tensors.safetensors", tensors)] {
        fs.poke(&path(name), bytes);
    }
    let reason = assert_falls_back(&store, file);
    assert!(reason.contains(expected), "{reason}");
}

#[test]
fn a_sealed_payload_is_still_checked() {
    let tensors = |header: &str, data: &[u8]| [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat();
    let one = |name: &str, dtype: &str, size: usize| {
        let header = format!(r#"{{"{name}":{{"dtype":"{dtype}","shape":[1],"data_offsets":[0,{size}]}}}}"#);
        tensors(&header, &vec![0; size])
    };
    let (state, none) = (br#"{"c":""}"#, tensors("{}", &[]));
    check_payload(b"[]", &none, "state.json", "it is not valid JSON of its kind");
    check_payload(br#"{"a/b":""}"#, &none, "state.json", "component name \"a/b\" is not allowed");
    check_payload(br#"{"c":{}}"#, &none, "state.json", "it is not valid JSON of its kind");
    check_payload(state, b"", "tensors.safetensors", "it is not a valid safetensors file");
    check_payload(state, &one("d/x", "F32", 4), "tensors.safetensors", "tensor \"d/x\" belongs to no component");
    check_payload(state, &one("x", "F32", 4), "tensors.safetensors", "tensor \"x\" belongs to no component");
    check_payload(state, &one("c/", "F32", 4), "tensors.safetensors", "tensor name \"\" is not allowed");
    check_payload(state, &one("c/x", "U16", 2), "tensors.safetensors", "tensor \"c/x\" has type U16; expected U8");
    check_payload(state, &one("c/x", "F32", 3), "tensors.safetensors", "it is not a valid safetensors file");
    let huge = r#"{"c/x":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}}"#;
    check_payload(state, &tensors(huge, &[]), "tensors.safetensors", "it is not a valid safetensors file");
}

proptest! {
    #[test]
    fn no_bytes_make_a_decoder_panic(body in proptest::collection::vec(any::<u8>(), 0..200), text in ".{0,200}") {
        for bytes in [&*body, text.as_bytes()] {
            prop_assert!(matches!(Manifest::parse(bytes, Generation(1)), Err(ManifestError::Fault(_))));
            prop_assert!(Manifest::parse(&seal(bytes), Generation(1)).is_err());
            let documents = parse_state(bytes).unwrap_or_default();
            prop_assert!(parse_tensors(bytes, &documents).is_err());
        }
    }

    #[test]
    fn no_change_of_a_sealed_manifest_makes_it_panic(at in 0_usize..500, with in any::<u8>()) {
        let sealed = forged(|_| {});
        // Between `{"blake3":"<64 digits>","manifest":` and `}\n`.
        let mut body = sealed[88..sealed.len() - 2].to_vec();
        prop_assert_eq!(&seal(&body), &sealed);
        let at = at % body.len();
        body[at] = with;
        if let Ok(manifest) = Manifest::parse(&seal(&body), Generation(2)) {
            prop_assert!(manifest.tensors().bytes <= 64 << 30);
        }
    }
}
