//! `model.onnx` gives the logits of the network, wherever a program that runs ONNX is; what cannot be written is refused by name.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use candle_core::{DType, Device, Tensor};
use esper_export::{Error, Export, IfPresent, Network, ONNX_FILE};
use kasmina::blueprint::Registry;
use kasmina::graft::{NetworkSpec, SeedSpec};
use kasmina::host::{HostConfig, Pool};
use kasmina::weight::ElementType;
use leyline::command::{Blend, ChannelWeights, ConfidenceGate};
use leyline::id::{BlueprintId, SeedId, SlotId};
use leyline::unit::Alpha;

/// How far logits of about 1 may be apart: products are added in another order there.
const TOLERANCE: f64 = 1e-5;
const NUM_SAMPLES: usize = 5;

/// The interpreter that `ESPER_PYTHON` names, or `python3`, where it has what runs ONNX.
fn python() -> Option<String> {
    let python = std::env::var("ESPER_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let found = Command::new(&python).args(["-c", "import numpy, onnxruntime"]).stderr(Stdio::null()).status();
    found.is_ok_and(|status| status.success()).then_some(python)
}

/// Seeds at these slots, each with a blueprint and a blend of its own, blended in by a half where they are alone.
fn seeds(slots: &[&str], blueprints: &[&str], channels: usize) -> Vec<SeedSpec> {
    let weights = (0..channels).map(|channel| 1.0 / (1.0 + channel as f64)).collect();
    let blends = [
        Blend::Residual,
        Blend::Convex,
        Blend::Channel(ChannelWeights::new(weights).unwrap()),
        Blend::Confidence(ConfidenceGate::new(4.0, 0.3, 0.1, 0.9).unwrap()),
        Blend::Multiply,
        Blend::Gate,
    ];
    let mut specs = Vec::new();
    for (index, (blueprint, blend)) in blueprints.iter().zip(blends.iter().cycle()).enumerate() {
        let last = index + slots.len() >= blueprints.len();
        let slot = SlotId::new(slots[index % slots.len()]).unwrap();
        let (id, alpha) = (SeedId(u32::try_from(index).unwrap() + 1), if last { 0.375 } else { 1.0 });
        let (blueprint, alpha) = (BlueprintId::new(*blueprint).unwrap(), Alpha::new(alpha).unwrap());
        specs.push(SeedSpec { id, slot, blueprint, width: 4, blend: blend.clone(), alpha });
    }
    specs
}

/// Each host with each of its blueprints and every blend, also in another order of the blends.
fn networks() -> Vec<NetworkSpec> {
    let image = HostConfig::Cnn2d {
        height: 4,
        width: 6,
        input_channels: 2,
        channels: vec![4, 4],
        kernel: 3,
        stride: 2,
        classes: 3,
        pool: Pool::Flatten,
    };
    let signal = |pool| HostConfig::Cnn1d { length: 9, channels: vec![4, 4], kernel: 5, stride: 1, classes: 3, pool };
    let sequence =
        HostConfig::Transformer { inputs: 12, patch: 3, width: 4, heads: 2, layers: 2, mlp_ratio: 2, classes: 3 };
    let local = ["mlp", "norm_mlp", "low_rank", "norm", "noise"];
    let near = ["conv", "depthwise"];
    let hosts = [
        (HostConfig::Mlp { inputs: 6, hidden: vec![4, 4], classes: 3 }, ["hidden0", "hidden1"], &[][..]),
        (signal(Pool::Mean), ["block0", "block1"], &near),
        (signal(Pool::Flatten), ["block0", "block1"], &near),
        (image, ["block0", "block1"], &near),
        (sequence, ["embedded", "block0"], &["attention"]),
    ];
    let mut networks = Vec::new();
    for (host, slots, more) in hosts {
        let all = [&local[..], more].concat();
        networks.push(NetworkSpec { host: host.clone(), dtype: ElementType::F32, seeds: Vec::new() });
        for turn in [0, 2, 4] {
            let turned: Vec<&str> = all.iter().cycle().skip(turn).take(all.len()).copied().collect();
            let seeds = seeds(&slots, &turned, 4);
            networks.push(NetworkSpec { host: host.clone(), dtype: ElementType::F32, seeds });
        }
    }
    // More units of both layers, and noise, around them; between them seeds of the usual kind.
    let host = HostConfig::Mlp { inputs: 6, hidden: vec![4, 4], classes: 3 };
    let mut around = seeds(&["around0", "around1", "hidden0"], &["widen", "noise", "mlp", "noise", "widen", "norm"], 4);
    around.extend(
        seeds(&["around0", "around1"], &["widen"; 2], 4)
            .into_iter()
            .zip(7..)
            .map(|(spec, id)| SeedSpec { id: SeedId(id), ..spec }),
    );
    around.iter_mut().take(6).for_each(|spec| spec.alpha = Alpha::ONE);
    networks.push(NetworkSpec { host, dtype: ElementType::F32, seeds: around });
    networks
}

fn export(network: NetworkSpec) -> Export {
    let make = |(index, (name, shape)): (usize, (String, Vec<usize>))| {
        let count = shape.iter().product();
        let values: Vec<f32> =
            (0_u16..).take(count).map(|i| (f32::from(i) * 0.83 + index as f32).sin() * 0.4).collect();
        (name, Tensor::from_vec(values, shape, &Device::Cpu).unwrap().to_dtype(network.dtype.dtype()).unwrap())
    };
    let tensors = network.tensors(&Registry::all()).unwrap().into_iter().enumerate().map(make).collect();
    let shape = network.host.sample_shape();
    let preparation = format!(
        r#"{{"version": 1, "source": "x", "sample_shape": {shape:?}, "scaling": {{"means": [0.0], "scales": [1.0]}},
        "target": {{"kind": "classes", "names": ["a", "b", "c"]}}}}"#
    );
    Export { network, tensors, preparation: serde_json::from_str(&preparation).unwrap(), task: None }
}

#[test]
#[expect(
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "a test looks at values, and says what it left out"
)]
fn a_program_that_runs_onnx_gives_the_same_logits() {
    let Some(python) = python() else {
        eprintln!("SKIPPED: no python3 with numpy and onnxruntime; set ESPER_PYTHON to one");
        return;
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/examples/run_onnx.py");
    let dir = tempfile::tempdir().unwrap();
    let (mut largest, networks) = (0.0_f64, networks());
    let num_networks = networks.len();
    for (index, network) in networks.into_iter().enumerate() {
        let net = dir.path().join(index.to_string());
        let shown = format!("{network:?}");
        export(network).write_with_onnx(&net, IfPresent::Refuse).unwrap();
        let loaded = Network::load(&net).unwrap();
        let features = loaded.preparation().num_features();
        let values: Vec<f32> = (0_u16..).take(NUM_SAMPLES * features).map(|i| (f32::from(i) * 0.7).cos()).collect();
        let text: String = values
            .chunks(features)
            .map(|row| row.iter().map(f32::to_string).collect::<Vec<_>>().join(",") + "\n")
            .collect();
        let inputs = Tensor::from_vec(values, (NUM_SAMPLES, features), &Device::Cpu).unwrap();
        let expected = loaded.forward(&inputs).unwrap().to_vec2::<f32>().unwrap();
        let mut child = Command::new(&python)
            .args([script.as_path(), &net])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && told.contains("outputs: a, b, c"), "{shown}: {told}");
        let found = String::from_utf8(output.stdout).unwrap();
        let found: Vec<f64> =
            found.lines().flat_map(|line| line.split(',')).map(|cell| cell.parse().unwrap()).collect();
        assert_eq!(found.len(), NUM_SAMPLES * 3, "{shown}");
        let pairs = found.iter().zip(expected.iter().flatten());
        let apart = pairs.map(|(found, &expected)| (found - f64::from(expected)).abs()).fold(0.0, f64::max);
        assert!(apart <= TOLERANCE, "{apart:e} of {shown}: {found:?} against {expected:?}");
        largest = largest.max(apart);
    }
    eprintln!("largest difference of logits of {num_networks} networks: {largest:e}");
}

#[test]
fn the_file_lies_beside_the_others_and_is_replaced_with_them() {
    let dir = tempfile::tempdir().unwrap();
    let net = dir.path().join("net");
    let export = export(networks().remove(1));
    export.write_with_onnx(&net, IfPresent::Refuse).unwrap();
    let bytes = fs::read(net.join(ONNX_FILE)).unwrap();
    assert_eq!(bytes, export.to_onnx().unwrap());
    assert_eq!(Network::load(&net).unwrap().document().network, export.network);
    export.write(&net, IfPresent::Replace).unwrap();
    assert!(!net.join(ONNX_FILE).exists(), "a file of another network is not left beside");
}

#[test]
fn what_cannot_be_written_is_refused_by_name() {
    for (dtype, name) in [(ElementType::F64, "f64"), (ElementType::Bf16, "bf16")] {
        let refused = export(NetworkSpec { dtype, ..networks().remove(1) });
        let dir = tempfile::tempdir().unwrap();
        let error = refused.write_with_onnx(&dir.path().join("net"), IfPresent::Refuse).unwrap_err().to_string();
        assert_eq!(error, format!("`network.dtype` is {name}: expected f32 for ONNX"));
        assert!(!dir.path().join("net").exists());
    }
    let good = export(networks().remove(1));
    type Change = fn(&mut BTreeMap<String, Tensor>, String);
    let changes: [(Change, &str); 4] = [
        (|tensors, name| drop(tensors.remove(&name)), "is missing"),
        (|tensors, name| drop(tensors.insert(name.clone() + ".more", tensors[&name].clone())), "belongs to no weight"),
        (|tensors, name| drop(tensors.insert(name.clone(), (&tensors[&name] * f64::NAN).unwrap())), "the value NaN"),
        (|tensors, name| drop(tensors.insert(name.clone(), tensors[&name].to_dtype(DType::F64).unwrap())), "of f64"),
    ];
    for name in good.tensors.keys() {
        for (change, expected) in changes {
            let mut bad = good.clone();
            change(&mut bad.tensors, name.clone());
            let Error::Weights { source, .. } = bad.to_onnx().unwrap_err() else { panic!("{name}: {expected}") };
            assert!(source.to_string().contains(expected), "{name}: {source}");
        }
    }
}
