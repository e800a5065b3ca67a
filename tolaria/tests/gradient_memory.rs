//! Gradients of microbatches that are added up on the way: the bits of all at once, in the memory of one.
#![expect(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::num::NonZeroUsize;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor, Var};
use leyline::durable::SavedState;
use leyline::region::Eager;
use leyline_testkit::recording_recorder::RecordingRecorder;
use tolaria::batch::{BatchConfig, Dataset};
use tolaria::host_read::{HostReads, read_vec};
use tolaria::plain::{NoPolicy, NoSeeds, PlainModel};
use tolaria::task::Classification;
use tolaria::trainer::{NullObserver, Parts, Splits, TrainConfig, Trainer};

/// Of the network: a row of 1.2 MB.
const WIDTH: usize = 300_000;
/// Windows of seven microbatches of three, of five, and one of two.
const SAMPLES: usize = 21 + 17;
const MICROBATCHES: usize = 7;

type Bits = Vec<(String, String, Vec<u32>)>;

/// What a run leaves behind, and the bytes of its gradients.
fn run(gradient_mib: u32, measures: bool) -> (Bits, f64) {
    let weight =
        Var::from_tensor(&Tensor::arange(0.0_f32, WIDTH as f32, &Device::Cpu).unwrap().sin().unwrap()).unwrap();
    let model = PlainModel::new(vec![("weight".to_owned(), weight.clone())], move |x: &Tensor| {
        let weight = weight.reshape((2, WIDTH / 2))?;
        let picked = x.narrow(1, 0, 1)?.broadcast_mul(&weight.narrow(0, 0, 1)?)?;
        Tensor::cat(
            &[picked.sum_keepdim(1)?, x.narrow(1, 1, 1)?.broadcast_mul(&weight.sum_keepdim(1)?.narrow(0, 1, 1)?)?],
            1,
        )
    });
    let inputs = Tensor::arange(0.0_f32, 2.0 * SAMPLES as f32, &Device::Cpu).unwrap().cos().unwrap();
    let targets = Tensor::from_iter((0..SAMPLES).map(|i| u32::from(i % 3 == 0)), &Device::Cpu).unwrap();
    let data = Dataset::new((inputs.reshape((SAMPLES, 2)).unwrap() * 0.01).unwrap(), targets).unwrap();
    let count = |n| NonZeroUsize::new(n).unwrap();
    let config = TrainConfig {
        batch: BatchConfig { batch_size: count(3), microbatches_per_step: count(MICROBATCHES) },
        gradient_mib,
        measure_conflicts: measures,
        ..TrainConfig::default()
    };
    let recorder = Arc::new(RecordingRecorder::new());
    let splits = Splits { train: data.clone(), validation: data.clone(), test: data };
    let task = Arc::new(Classification::new(2));
    let parts = Parts {
        num_epochs: 2,
        recorder: recorder.clone(),
        ..Parts::new(task, NoSeeds::new(model.unwrap()), NoPolicy, splits)
    };
    let mut trainer = Trainer::new(config, parts).unwrap();
    let mut eager = Eager::acquire().unwrap();
    trainer.run(&mut eager, &mut NullObserver).unwrap();
    let bits = |tensor: &Tensor| {
        assert_eq!(tensor.dtype(), DType::F32);
        read_vec(tensor, "test", &mut HostReads::default()).unwrap().into_iter().map(f32::to_bits)
    };
    let of = |(name, state): (String, SavedState)| {
        (name, state.json, state.tensors.values().flat_map(bits).collect::<Vec<_>>())
    };
    let state = trainer.snapshot(&eager).unwrap().components.into_iter().map(of).collect();
    let bytes = |part| recorder.gauge_value("tolaria.memory.part_bytes", &[part]).unwrap();
    assert!((bytes("parameters") - 4.0 * WIDTH as f64).abs() < 0.5);
    assert!((bytes("moments") - 8.0 * WIDTH as f64).abs() < 0.5);
    let told: Vec<_> = trainer.memory().keys().copied().collect();
    assert_eq!(told, ["gradients", "moments", "parameters"]);
    assert!((trainer.memory()["gradients"] as f64 - bytes("gradients")).abs() < 0.5);
    (state, bytes("gradients") / (4.0 * WIDTH as f64))
}

#[test]
fn gradients_that_are_added_up_on_the_way_come_to_the_same_bits_in_one_row() {
    let (expected, rows) = run(256, false);
    assert!((rows - 7.0).abs() < 1e-9, "{rows} rows");
    // Seven of 1.2 MB take 8.01 MiB.
    for (mib, expected_rows) in [(0, 1.0), (8, 1.0), (9, 7.0)] {
        let (found, rows) = run(mib, false);
        assert!((rows - expected_rows).abs() < 1e-9, "{mib} MiB: {rows} rows");
        assert!(found == expected, "{mib} MiB: other bits");
    }
}

#[test]
fn one_owner_alone_is_added_up_when_owners_are_to_be_told_apart() {
    let (expected, _) = run(256, true);
    let (found, rows) = run(0, true);
    assert!(found == expected && (rows - 1.0).abs() < 1e-9, "{rows} rows");
}
