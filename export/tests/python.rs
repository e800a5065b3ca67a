//! The reader of `docs/examples/export_reader.py`, which knows nothing but the documented format, gives the same logits.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use candle_core::{Device, Tensor};
use esper_export::{Export, IfPresent, Network};
use kasmina::blueprint::Registry;
use kasmina::graft::{NetworkSpec, SeedSpec};
use kasmina::host::HostConfig;
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

fn export() -> Export {
    let seeds = vec![
        seed(1, "hidden0", "mlp", Blend::Residual, 1.0),
        seed(2, "input", "norm_mlp", Blend::Convex, 0.3),
        seed(3, "hidden1", "low_rank", Blend::Multiply, 1.0),
        seed(12, "hidden0", "norm_mlp", Blend::Residual, 0.625),
    ];
    let host = HostConfig::Mlp { inputs: 6, hidden: vec![5, 4], classes: 3 };
    let network = NetworkSpec { host, dtype: ElementType::F32, seeds };
    let make = |(index, (name, shape)): (usize, (String, Vec<usize>))| {
        let values: Vec<f32> =
            (0_u16..).take(shape.iter().product()).map(|i| (f32::from(i) * 0.83 + index as f32).sin() * 0.5).collect();
        (name, Tensor::from_vec(values, shape, &Device::Cpu).unwrap())
    };
    let tensors = network.tensors(&Registry::all()).unwrap().into_iter().enumerate().map(make).collect();
    let preparation = r#"{"version": 1, "source": "rows.csv", "sample_shape": [6], "scaling":
        {"means": [0, 1, 2, 3, 4, 5], "scales": [1, 2, 1, 2, 1, 2]}, "target": {"kind": "classes", "names": ["a", "b", "c"]}}"#;
    Export { network, tensors, preparation: serde_json::from_str(preparation).unwrap(), task: None }
}

#[test]
#[expect(
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "a test looks at values, and says what it left out"
)]
fn a_reader_in_python_gives_the_same_logits() {
    let Some(python) = python() else {
        eprintln!("SKIPPED: no python3 with numpy; set ESPER_PYTHON to one, with PyTorch if it is to be compared with");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let (net, rows) = (dir.path().join("net"), dir.path().join("rows.csv"));
    export().write(&net, IfPresent::Refuse).unwrap();
    let text: String = (0_u8..8)
        .map(|row| {
            (0_u8..6).map(|i| format!("{}", f32::from(row * 6 + i).sin() * 4.0)).collect::<Vec<_>>().join(",") + "\n"
        })
        .collect();
    std::fs::write(&rows, &text).unwrap();
    let network = Network::load(&net).unwrap();
    let applied = network.preparation().apply(&rows).unwrap();
    let expected = network.forward(&applied.to_tensor(&Device::Cpu).unwrap()).unwrap().to_vec2::<f32>().unwrap();

    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/examples/export_reader.py");
    let mut child =
        Command::new(python).arg(script).arg(&net).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let found = String::from_utf8(output.stdout).unwrap();
    let found: Vec<Vec<f64>> =
        found.lines().map(|line| line.split(',').map(|cell| cell.parse().unwrap()).collect()).collect();
    assert_eq!((found.len(), found[0].len()), (8, 3));
    let pairs = found.iter().flatten().zip(expected.iter().flatten());
    let largest = pairs.map(|(found, &expected)| (found - f64::from(expected)).abs()).fold(0.0, f64::max);
    eprintln!("largest difference of logits: {largest:e}");
    assert!(largest <= TOLERANCE, "{largest:e}: {found:?} against {expected:?}");
}
