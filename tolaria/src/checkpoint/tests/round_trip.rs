//! What is loaded is what was saved, to the bit.
#![expect(clippy::disallowed_methods, reason = "tests compare elements on the host")]

use std::collections::BTreeMap;

use candle_core::{DType, Device, Tensor};
use leyline::durable::SavedState;
use leyline::error::{Error, ErrorKind};

use super::{assert_same, chain, open, saved, snapshot};
use crate::checkpoint::payload::encode;
use crate::checkpoint::{CheckpointError, Snapshot};

fn with_tensor(tensor: Tensor) -> Snapshot {
    let state = SavedState { json: String::new(), tensors: BTreeMap::from([("x".to_owned(), tensor)]) };
    Snapshot { meta: snapshot(1).meta, components: BTreeMap::from([("c".to_owned(), state)]) }
}

/// Saves one tensor and gives back what is loaded.
#[track_caller]
fn through_the_store(tensor: Tensor) -> Tensor {
    let (_fs, mut store) = saved([], 1);
    let generation = store.save(&with_tensor(tensor)).unwrap();
    store.load(generation).unwrap().components["c"].tensors["x"].clone()
}

#[track_caller]
fn check(dtype: DType, bits: &[u8], shape: &[usize]) {
    let tensor = Tensor::from_raw_buffer(bits, dtype, shape, &Device::Cpu).unwrap();
    let loaded = through_the_store(tensor);
    assert_eq!((loaded.dtype(), loaded.dims()), (dtype, shape));
    // The elements are the last bytes of a file with one tensor.
    let payload = encode(&with_tensor(loaded).components).unwrap();
    assert!(payload.tensors.ends_with(bits), "{dtype:?} changed");
}

/// Signed zero, subnormal, largest, infinities, quiet and signaling NaN with payloads.
#[test]
fn every_bit_pattern_of_every_type_survives() {
    let join = |words: &[u64], size: usize| -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()[..size].to_vec()).collect()
    };
    let half = join(&[0, 0x8000, 1, 0x7bff, 0x7c00, 0xfc00, 0x7e01, 0x7c01], 2);
    let brain = join(&[0, 0x8000, 1, 0x7f7f, 0x7f80, 0xff80, 0x7fc1, 0x7f81], 2);
    let single = join(&[0, 0x8000_0000, 1, 0x7f7f_ffff, 0x7f80_0000, 0xff80_0000, 0x7fc0_1234, 0x7f80_0001], 4);
    let double =
        join(&[0, 1 << 63, 1, 0x7fef << 48, 0x7ff0 << 48, 0xfff0 << 48, 0x7ff8_0000_0000_1234, (0x7ff0 << 48) | 1], 8);
    let integers: Vec<u8> = (0..64_u8).map(|i| i.wrapping_mul(37) ^ 0x80).collect();
    check(DType::F16, &half, &[2, 4]);
    check(DType::BF16, &brain, &[8]);
    check(DType::F32, &single, &[2, 2, 2]);
    check(DType::F64, &double, &[4, 2]);
    check(DType::U8, &integers, &[64]);
    check(DType::I16, &integers, &[32]);
    check(DType::U32, &integers, &[4, 4]);
    check(DType::I32, &integers, &[16]);
    check(DType::I64, &integers, &[8]);
}

#[test]
fn scalars_and_empty_tensors_survive() {
    check(DType::F32, &1.5_f32.to_le_bytes(), &[]);
    check(DType::I64, &[], &[0]);
    check(DType::U8, &[], &[3, 0, 2]);
}

#[test]
fn elements_come_back_in_the_order_of_the_view() {
    let base = Tensor::from_vec(vec![0_u32, 1, 2, 3, 4, 5], (2, 3), &Device::Cpu).unwrap();
    let transposed = through_the_store(base.t().unwrap());
    assert_eq!(transposed.to_vec2::<u32>().unwrap(), [[0, 3], [1, 4], [2, 5]]);
    let narrowed = through_the_store(base.narrow(0, 1, 1).unwrap());
    assert_eq!(narrowed.to_vec2::<u32>().unwrap(), [[3, 4, 5]]);
    let repeated = through_the_store(base.narrow(1, 2, 1).unwrap().expand((2, 2)).unwrap());
    assert_eq!(repeated.to_vec2::<u32>().unwrap(), [[2, 2], [5, 5]]);
}

#[test]
fn a_snapshot_survives_a_new_process() {
    let (fs, mut store) = saved([1], 2);
    let generation = store.save(&snapshot(7)).unwrap();
    drop(store);
    let store = open(&fs, 2);
    let loaded = store.load_latest().unwrap().unwrap();
    assert_eq!((loaded.generation, loaded.skipped.len()), (generation, 0));
    assert_same(&loaded.snapshot, &snapshot(7));
    assert_eq!(store.verify(generation).unwrap(), snapshot(7).meta);
    // Not through the encoder that wrote it.
    let host = &loaded.snapshot.components["host"];
    assert_eq!(host.json, "{\"step\":7}");
    assert_eq!(host.tensors["seed-1/count"].to_scalar::<i64>().unwrap(), 7);
    assert_eq!(loaded.snapshot.components["policy"].json, "[7, \"é\\n\"]");
}

#[test]
fn a_snapshot_without_components_or_tensors_survives() {
    for components in [BTreeMap::new(), BTreeMap::from([("c".to_owned(), SavedState::default())])] {
        let (_fs, mut store) = saved([], 1);
        let empty = Snapshot { meta: snapshot(1).meta, components };
        let generation = store.save(&empty).unwrap();
        assert_same(&store.load(generation).unwrap(), &empty);
    }
}

#[test]
fn the_same_snapshot_gives_the_same_bytes() {
    let (a, b) = (encode(&snapshot(3).components).unwrap(), encode(&snapshot(3).components).unwrap());
    assert!(a.state == b.state && a.tensors == b.tensors);
}

#[test]
fn what_the_format_cannot_hold_is_refused_before_the_disk_is_touched() {
    let zero = || Tensor::zeros(1, DType::F32, &Device::Cpu).unwrap();
    let edit = |change: &dyn Fn(&mut Snapshot)| {
        let mut snapshot = with_tensor(zero());
        change(&mut snapshot);
        snapshot
    };
    let component =
        |name: &'static str| edit(&move |s| drop(s.components.insert(name.to_owned(), SavedState::default())));
    let eighth = Tensor::from_raw_buffer(&[0x38], DType::F8E4M3, &[1], &Device::Cpu).unwrap();
    let tensor = |name: &'static str, tensor: Tensor| {
        edit(&move |s| drop(s.components.get_mut("c").unwrap().tensors.insert(name.to_owned(), tensor.clone())))
    };
    let byte = Tensor::zeros(1, DType::U8, &Device::Cpu).unwrap();
    let huge = byte.expand((1 << 36) + 1).unwrap();
    let cases = [
        (tensor("y", huge), "does not fit `tensors.safetensors`: it has 68719476741 bytes", ErrorKind::Rejected),
        (component("a/b"), "component name \"a/b\"", ErrorKind::Rejected),
        (component(""), "component name \"\"", ErrorKind::Rejected),
        (tensor("a\nb", zero()), "tensor name \"a\\nb\"", ErrorKind::Rejected),
        (edit(&|s| s.meta.config_digest = "x\n".to_owned()), "configuration digest", ErrorKind::Rejected),
        (tensor("y", eighth), "`c/y` has type F8E4M3; expected u8", ErrorKind::Unsupported),
    ];
    let (fs, mut store) = saved([1], 2);
    let before = fs.digest();
    for (snapshot, message, kind) in cases {
        let error: CheckpointError = store.save(&snapshot).unwrap_err();
        assert!(chain(&error).contains(message), "{}", chain(&error));
        assert_eq!(error.kind(), kind);
        assert_eq!(fs.digest(), before);
    }
}
