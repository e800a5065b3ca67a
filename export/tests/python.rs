//! The reader of `docs/examples/export_reader.py`, which knows nothing but the documented format, gives the same logits.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use candle_core::{DType, Device, Tensor};
use esper_export::{Export, IfPresent, Network};
use kasmina::blueprint::Registry;
use kasmina::graft::{NetworkSpec, SeedSpec};
use kasmina::host::{HostConfig, Pool};
use kasmina::weight::ElementType;
use leyline::command::Blend;
use leyline::id::{BlueprintId, SeedId, SlotId};
use leyline::unit::Alpha;

/// How far logits of about 1 may be apart: products are added in another order there.
const TOLERANCE: f64 = 1e-5;

/// The interpreter that `ESPER_PYTHON` names, or `python3`, where it has numpy.
fn python() -> Option<String> {
    let python = std::env::var("ESPER_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let found = Command::new(&python).args(["-c", "import numpy"]).stderr(Stdio::null()).status();
    found.is_ok_and(|status| status.success()).then_some(python)
}

fn seed(id: u32, slot: &str, blueprint: &str, blend: Blend, alpha: f64) -> SeedSpec {
    let (slot, blueprint) = (SlotId::new(slot).unwrap(), BlueprintId::new(blueprint).unwrap());
    SeedSpec { id: SeedId(id), slot, blueprint, width: 4, blend, alpha: Alpha::new(alpha).unwrap() }
}

fn network() -> NetworkSpec {
    let seeds = vec![
        seed(1, "hidden0", "mlp", Blend::Residual, 1.0),
        seed(2, "input", "norm_mlp", Blend::Convex, 0.3),
        seed(3, "hidden1", "low_rank", Blend::Multiply, 1.0),
        seed(12, "hidden0", "norm_mlp", Blend::Residual, 0.625),
        seed(13, "around0", "widen", Blend::Residual, 1.0),
        seed(14, "around1", "widen", Blend::Residual, 1.0),
        seed(15, "around1", "widen", Blend::Residual, 0.5),
    ];
    let host = HostConfig::Mlp { inputs: 6, hidden: vec![5, 4], classes: 3 };
    NetworkSpec { host, dtype: ElementType::F32, seeds }
}

fn export(network: NetworkSpec) -> Export {
    let make = |(index, (name, shape)): (usize, (String, Vec<usize>))| {
        let values: Vec<f32> =
            (0_u16..).take(shape.iter().product()).map(|i| (f32::from(i) * 0.83 + index as f32).sin() * 0.5).collect();
        let tensor = Tensor::from_vec(values, shape, &Device::Cpu).unwrap();
        (name, tensor.to_dtype(network.dtype.dtype()).unwrap())
    };
    let tensors = network.tensors(&Registry::all()).unwrap().into_iter().enumerate().map(make).collect();
    let preparation = r#"{"version": 1, "source": "rows.csv", "sample_shape": [6], "scaling":
        {"means": [0, 1, 2, 3, 4, 5], "scales": [1, 2, 1, 2, 1, 2]}, "target": {"kind": "classes", "names": ["a", "b", "c"]}}"#;
    Export { network, tensors, preparation: serde_json::from_str(preparation).unwrap(), task: None }
}

/// What the reader says of an export, given 8 rows; and what this crate answers to them.
#[expect(clippy::disallowed_methods, reason = "a test looks at values")]
fn read(python: &str, network: NetworkSpec) -> (Output, Vec<Vec<f64>>) {
    let dir = tempfile::tempdir().unwrap();
    let (net, rows) = (dir.path().join("net"), dir.path().join("rows.csv"));
    export(network).write(&net, IfPresent::Refuse).unwrap();
    let text: String = (0_u8..8)
        .map(|row| {
            (0_u8..6).map(|i| format!("{}", f32::from(row * 6 + i).sin() * 4.0)).collect::<Vec<_>>().join(",") + "\n"
        })
        .collect();
    std::fs::write(&rows, &text).unwrap();
    let network = Network::load(&net).unwrap();
    let applied = network.preparation().apply(&rows).unwrap();
    let expected = network.forward(&applied.to_tensor(&Device::Cpu).unwrap()).unwrap();
    let expected = expected.to_dtype(DType::F64).unwrap().to_vec2().unwrap();

    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/examples/export_reader.py");
    let mut command = Command::new(python);
    let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = pipes.arg(script).arg(&net).spawn().unwrap();
    // One that refuses does not read.
    child.stdin.take().unwrap().write_all(text.as_bytes()).ok();
    (child.wait_with_output().unwrap(), expected)
}

#[test]
#[expect(clippy::print_stderr, reason = "a test says what it left out")]
fn a_reader_in_python_gives_the_same_logits_or_refuses_by_name() {
    let Some(python) = python() else {
        eprintln!("SKIPPED: no python3 with numpy; set ESPER_PYTHON to one, with PyTorch if it is to be compared with");
        return;
    };
    for dtype in [ElementType::F32, ElementType::F64] {
        let (output, expected) = read(&python, NetworkSpec { dtype, ..network() });
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let found = String::from_utf8(output.stdout).unwrap();
        let found: Vec<Vec<f64>> =
            found.lines().map(|line| line.split(',').map(|cell| cell.parse().unwrap()).collect()).collect();
        assert_eq!((found.len(), found[0].len()), (8, 3));
        let pairs = found.iter().flatten().zip(expected.iter().flatten());
        let largest = pairs.map(|(found, expected)| (found - expected).abs()).fold(0.0, f64::max);
        eprintln!("largest difference of logits of {dtype:?}: {largest:e}");
        assert!(largest <= TOLERANCE, "{largest:e}: {found:?} against {expected:?}");
    }
    let host = HostConfig::Cnn1d { length: 6, channels: vec![2], kernel: 3, stride: 1, classes: 3, pool: Pool::Mean };
    let channel: Blend = serde_json::from_str(r#"{"channel": [0.5, 0.5, 0.5, 0.5, 0.5]}"#).unwrap();
    for (network, expected) in [
        (NetworkSpec { dtype: ElementType::Bf16, ..network() }, "the type BF16: expected one of F32, F64"),
        (NetworkSpec { host, seeds: vec![], ..network() }, "the host cnn1d: expected one of mlp"),
        (
            NetworkSpec { seeds: vec![seed(1, "hidden0", "norm", Blend::Residual, 1.0)], ..network() },
            "the blueprint norm: expected one of mlp, norm_mlp, low_rank",
        ),
        (
            NetworkSpec { seeds: vec![seed(1, "hidden0", "mlp", channel, 1.0)], ..network() },
            "expected one of residual, convex, multiply",
        ),
    ] {
        let (output, _) = read(&python, network);
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && error.contains(expected), "{error}");
        assert!(!error.contains("Traceback"), "{error}");
    }
}
