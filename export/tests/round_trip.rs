//! What is written is what is read, and what is not as it was written is refused with the file and what is accepted.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::error::Error as _;
use std::fs;
use std::path::Path;

use candle_core::{DType, Device, Tensor};
use esper_export::{DOCUMENT_FILE, Error, Export, IfPresent, Network, Prediction, Preparation, WEIGHTS_FILE};
use esper_weights::{Dtype, Weights};
use kasmina::blueprint::Registry;
use kasmina::graft::{NetworkSpec, SeedSpec};
use kasmina::host::{HostConfig, Pool};
use kasmina::weight::ElementType;
use leyline::command::Blend;
use leyline::id::{BlueprintId, SeedId, SlotId};
use leyline::unit::Alpha;
use proptest::prelude::*;

fn seed(id: u32, slot: &str, blueprint: &str, blend: Blend, alpha: f64) -> SeedSpec {
    let (slot, blueprint) = (SlotId::new(slot).unwrap(), BlueprintId::new(blueprint).unwrap());
    SeedSpec { id: SeedId(id), slot, blueprint, width: 3, blend, alpha: Alpha::new(alpha).unwrap() }
}

fn mlp() -> NetworkSpec {
    let seeds = vec![seed(1, "hidden0", "mlp", Blend::Residual, 1.0), seed(4, "hidden0", "mlp", Blend::Gate, 0.375)];
    NetworkSpec { host: HostConfig::Mlp { inputs: 6, hidden: vec![5], classes: 3 }, dtype: ElementType::F32, seeds }
}

fn networks() -> Vec<NetworkSpec> {
    let cnn = HostConfig::Cnn1d { length: 6, channels: vec![4], kernel: 3, stride: 1, classes: 3, pool: Pool::Mean };
    let transformer =
        HostConfig::Transformer { inputs: 6, patch: 2, width: 4, heads: 2, layers: 1, mlp_ratio: 2, classes: 3 };
    let of = |host, blueprint| {
        let seeds = vec![seed(2, "block0", blueprint, Blend::Convex, 0.25)];
        NetworkSpec { host, dtype: ElementType::F32, seeds }
    };
    let seeds =
        vec![seed(1, "around0", "widen", Blend::Residual, 1.0), seed(2, "around0", "widen", Blend::Convex, 0.5)];
    let around = NetworkSpec { seeds, ..mlp() };
    let mut networks = vec![mlp(), around, of(cnn, "conv"), of(transformer, "attention")];
    networks.extend([ElementType::F64, ElementType::Bf16].map(|dtype| NetworkSpec { dtype, ..mlp() }));
    networks
}

fn tensors(network: &NetworkSpec) -> BTreeMap<String, Tensor> {
    let make = |(index, (name, shape)): (usize, (String, Vec<usize>))| {
        let count: usize = shape.iter().product();
        let values: Vec<f32> = (0_u16..).take(count).map(|i| (f32::from(i) * 0.37 + index as f32).sin()).collect();
        let tensor = Tensor::from_vec(values, shape, &Device::Cpu).unwrap();
        (name, tensor.to_dtype(network.dtype.dtype()).unwrap())
    };
    network.tensors(&Registry::all()).unwrap().into_iter().enumerate().map(make).collect()
}

fn export(network: NetworkSpec) -> Export {
    let tensors = tensors(&network);
    Export { network, tensors, preparation: preparation(), task: None }
}

fn preparation() -> Preparation {
    let text = r#"{"version": 1, "source": "letters.csv", "sample_shape": [6], "scaling": {"means": [0.0], "scales": [16.0]},
        "target": {"kind": "classes", "names": ["a", "b", "c"]}}"#;
    serde_json::from_str(text).unwrap()
}

fn inputs() -> Tensor {
    let values: Vec<f32> = (0_u8..24).map(|i| (f32::from(i) * 0.7).cos()).collect();
    Tensor::from_vec(values, (4, 6), &Device::Cpu).unwrap()
}

#[expect(clippy::disallowed_methods, reason = "tests look at values")]
fn bits(tensor: &Tensor) -> Vec<u64> {
    let values = tensor.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1::<f64>().unwrap();
    values.into_iter().map(f64::to_bits).collect()
}

#[test]
fn a_loaded_network_answers_bit_for_bit_as_the_written_one() {
    use leyline::model::{Pass, TrainableModel as _};
    for network in networks() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("net");
        let export = export(network.clone());
        let written = export.write(&dir, IfPresent::Refuse).unwrap();
        let loaded = Network::load(&dir).unwrap();
        assert_eq!((loaded.document(), &loaded.document().network), (&written, &network));
        let original = network.build(export.tensors, &Registry::all(), &Device::Cpu).unwrap();
        let expected = original.forward(&inputs(), Pass::Evaluate { overrides: &[] }).unwrap().logits;
        assert_eq!(bits(&loaded.forward(&inputs()).unwrap()), bits(&expected), "{network:?}");
        let predictions = loaded.predict(&inputs()).unwrap();
        assert_eq!(predictions.len(), 4);
        for prediction in predictions {
            let Prediction::Class { class, probabilities } = prediction else { panic!("they are classes") };
            let best = probabilities.iter().copied().fold(0.0, f64::max);
            assert!((probabilities[class] - best).abs() < 1e-12);
        }
        let error = loaded.forward(&Tensor::zeros((2, 5), DType::F32, &Device::Cpu).unwrap()).unwrap_err().to_string();
        assert!(error.contains("(B, 6)"), "{error}");
    }
}

/// Writes an export, changes one of its files, and tries to load it.
fn refused(file: &str, change: impl Fn(Vec<u8>) -> Vec<u8>) -> String {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("net");
    export(mlp()).write(&dir, IfPresent::Refuse).unwrap();
    fs::write(dir.join(file), change(fs::read(dir.join(file)).unwrap())).unwrap();
    told(&Network::load(&dir).unwrap_err()).replace(dir.to_str().unwrap(), "DIR")
}

fn told(error: &Error) -> String {
    std::iter::successors(error.source(), |&cause| cause.source()).fold(error.to_string(), |a, b| format!("{a}: {b}"))
}

#[track_caller]
fn check_json(from: &str, to: &str, expected: &str) {
    let message = refused(DOCUMENT_FILE, |bytes| {
        let text = String::from_utf8(bytes).unwrap();
        assert!(text.contains(from), "`{from}` is not in {text}");
        text.replacen(from, to, 1).into_bytes()
    });
    assert!(message.contains(expected), "`{expected}` is missing in: {message}");
}

#[test]
fn a_description_that_is_not_one_is_refused_with_the_place() {
    let newer = "DIR/model.json: `format` is 2: expected 1, the format of this version";
    check_json("\"format\": 1", "\"format\": 2, \"layers\": []", newer);
    check_json("\"format\": 1,", "", "missing field `format`");
    check_json("\"format\": 1", "\"format\": \"1\"", "DIR/model.json:2:");
    check_json("\"written_by\"", "\"author\"", "unknown field `author`, expected one of");
    check_json("\"mlp\": {", "\"rnn\": {", "unknown variant `rnn`, expected one of `mlp`");
    check_json("\"alpha\": 0.375", "\"alpha\": 1.5", "1.5 is not a valid alpha: expected a number from 0 to 1");
    check_json("\"alpha\": 0.375", "\"alpha\": 0", "`seeds.seed-4.alpha` is 0, expected a number above 0");
    let numbers = "`preparation.sample_shape` is one of 6 numbers: expected one of 7, as `network.host` takes them";
    check_json("\"inputs\": 6", "\"inputs\": 7", numbers);
    check_json("\"classes\": 3", "\"classes\": 4", "`preparation.target` is one of 3 outputs: expected 4");
    check_json("\"inputs\": 6", "\"inputs\": 99999999", "`host.mlp.inputs` is 99999999: expected 1 to 1048576");
    check_json("\"kind\": \"classes\"", "\"kind\": \"magic\"", "unknown variant `magic`");
    check_json("16.0", "0.0", "`preparation.scaling` is a scale of 0: expected finite numbers above 0");
    check_json("\"version\": 1", "\"version\": 2", "`preparation.version` is 2: expected 1");
    check_json("\"means\": [", "\"means\": [1.0,", "`preparation.scaling` is 2 means and 1 scales");
    check_json("\"blake3\": \"", "\"blake3\": \"G", "expected 64 hexadecimal digits");
    check_json("\"bytes\": ", "\"bytes\": 9", "`weights.bytes` is 9");
    check_json("{", "[", "DIR/model.json:2:");
    for text in ["", "{}", "null", "[]", "\u{0}", "{\"format\": 1e99}"] {
        let message = refused(DOCUMENT_FILE, |_| text.as_bytes().to_vec());
        assert!(message.contains("DIR/model.json:"), "{text}: {message}");
    }
    let message = refused(DOCUMENT_FILE, |_| vec![b' '; (1 << 26) + 1]);
    assert!(message.contains("expected at most 67108864"), "{message}");
}

#[test]
fn weights_that_were_changed_are_refused_with_both_digests() {
    type Change = fn(&[u8]) -> Vec<u8>;
    let flipped = refused(WEIGHTS_FILE, |mut bytes| {
        *bytes.last_mut().unwrap() ^= 1;
        bytes
    });
    assert!(flipped.contains("DIR/model.safetensors has the BLAKE3 digest "), "{flipped}");
    let changes: [Change; 3] =
        [|bytes| bytes[..bytes.len() - 1].to_vec(), |bytes| [bytes, &b"x"[..]].concat(), |_| Vec::new()];
    for change in changes {
        let message = refused(WEIGHTS_FILE, |bytes| change(&bytes));
        assert!(message.contains("bytes: expected "), "{message}");
    }
}

#[test]
fn weights_of_another_network_are_refused_by_name_when_they_are_written_and_when_they_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let nan = Tensor::new(&[0_f32, f32::NAN, 0.0], &Device::Cpu).unwrap();
    let turned = Tensor::zeros((5, 3), DType::F32, &Device::Cpu).unwrap();
    for (number, (name, tensor, expected)) in [
        ("host.head.bias", nan, "`host.head.bias` has the value NaN at 1"),
        ("seed.0001.up.weight", turned, "`seed.0001.up.weight` has shape [5, 3]: expected [3, 5]"),
    ]
    .into_iter()
    .enumerate()
    {
        let mut export = export(mlp());
        let (good, bad) = (dir.path().join(format!("good{number}")), dir.path().join(format!("bad{number}")));
        let written = export.write(&good, IfPresent::Refuse).unwrap();
        export.tensors.insert(name.to_owned(), tensor);
        let message = told(&export.write(&bad, IfPresent::Refuse).unwrap_err());
        assert!(message.contains(expected) && !bad.exists(), "{message}");
        // As a program could write it that does not look.
        let views = export.tensors.iter().map(|(name, tensor)| {
            #[expect(clippy::disallowed_methods, reason = "tests look at values")]
            let values = tensor.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1().unwrap();
            (name.as_str(), Dtype::F32, tensor.dims(), values)
        });
        let weights = Weights::from_network(views).unwrap();
        let mut document = written;
        document.weights.bytes = weights.bytes().len() as u64;
        document.weights.blake3 = blake3::hash(weights.bytes()).to_hex().to_string();
        fs::write(good.join(WEIGHTS_FILE), weights.bytes()).unwrap();
        fs::write(good.join(DOCUMENT_FILE), serde_json::to_string(&document).unwrap()).unwrap();
        let message = told(&Network::load(&good).unwrap_err());
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn what_is_missing_is_named() {
    let dir = tempfile::tempdir().unwrap();
    for file in [DOCUMENT_FILE, WEIGHTS_FILE] {
        let dir = dir.path().join(file);
        export(mlp()).write(&dir, IfPresent::Refuse).unwrap();
        fs::remove_file(dir.join(file)).unwrap();
        let error = Network::load(&dir).unwrap_err();
        assert!(matches!(&error, Error::NotAnExport { file: missing, .. } if *missing == file), "{error}");
        fs::create_dir(dir.join(file)).unwrap();
        assert!(matches!(Network::load(&dir).unwrap_err(), Error::Read { .. }));
    }
    assert!(matches!(Network::load(dir.path().join("none")).unwrap_err(), Error::NotAnExport { .. }));
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_folder_is_written_whole_and_nothing_foreign_is_replaced() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("net");
    fs::create_dir(&dir).unwrap();
    let first = export(mlp());
    first.write(&dir, IfPresent::Refuse).unwrap();
    let error = first.write(&dir, IfPresent::Refuse).unwrap_err().to_string();
    assert!(error.contains("holds an export; expected a new or empty folder"), "{error}");
    let second = export(NetworkSpec { seeds: Vec::new(), ..mlp() });
    second.write(&dir, IfPresent::Replace).unwrap();
    assert_eq!(Network::load(&dir).unwrap().document().network.seeds, []);
    fs::write(dir.join("thesis.txt"), "years of work").unwrap();
    let error = first.write(&dir, IfPresent::Replace).unwrap_err().to_string();
    assert!(error.contains("holds thesis.txt"), "{error}");
    // What cannot be stored, or not be loaded, leaves what is there.
    fs::remove_file(dir.join("thesis.txt")).unwrap();
    let mut contradiction = export(mlp());
    contradiction.preparation.target.names.push("d".to_owned());
    let error = told(&contradiction.write(&dir, IfPresent::Replace).unwrap_err());
    assert!(error.contains("`preparation.target` is one of 4 outputs: expected 3"), "{error}");
    let mut unstorable = export(mlp());
    unstorable.tensors.insert("host.head.bias".to_owned(), Tensor::zeros(3, DType::U32, &Device::Cpu).unwrap());
    assert!(matches!(unstorable.write(&dir, IfPresent::Replace).unwrap_err(), Error::Weights { .. }));
    assert_eq!(Network::load(&dir).unwrap().document().network.seeds, []);
    assert_eq!(
        (names(parent.path()), names(&dir)),
        (vec!["net".to_owned()], vec![DOCUMENT_FILE.into(), WEIGHTS_FILE.into()])
    );
    fs::write(parent.path().join("file"), "").unwrap();
    let error = first.write(&parent.path().join("file"), IfPresent::Replace).unwrap_err().to_string();
    assert!(error.contains("is no folder"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_damaged_export_is_refused_or_is_the_same_network(at in any::<prop::sample::Index>(), bit in 0..8_u32, of_weights in any::<bool>()) {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("net");
        let written = export(mlp()).write(&dir, IfPresent::Refuse).unwrap();
        let path = dir.join(if of_weights { WEIGHTS_FILE } else { DOCUMENT_FILE });
        let mut bytes = fs::read(&path).unwrap();
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        fs::write(&path, bytes).unwrap();
        if let Ok(network) = Network::load(&dir) {
            // Text that people read, a name of a class, a digit of α or the divisor may be another valid one.
            prop_assert!(!of_weights);
            prop_assert_eq!(&network.document().weights, &written.weights);
        }
    }
}
