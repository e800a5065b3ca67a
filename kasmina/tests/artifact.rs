//! Weights of seeds from outside: a round trip, and refusals that name the tensor and change nothing.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use esper_weights::{Weights, WeightsError};
use kasmina::weight::ElementType;
use kasmina::{Error, KasminaConfig};
use leyline::command::Operation;
use leyline::error::{Error as _, ErrorKind};
use leyline::id::SeedId;
use leyline::region::Eager;
use leyline::seed::{SeedManager, SeedStage};
use safetensors::tensor::{Dtype, TensorView, serialize};
use support::{Rig, cnn, config, mlp, slot};

const SEED: SeedId = SeedId(1);

/// A seed of C = 4, width 8, with weights that are no longer those of a newborn.
fn rig(dtype: ElementType, eager: Eager) -> Rig {
    let mut rig = Rig::beside(KasminaConfig { dtype, ..config(mlp()) }, eager);
    let seed = rig.germinate("hidden0", "mlp");
    assert_eq!(seed, SEED);
    rig.bring_to(seed, SeedStage::Training);
    for variant in 0..3 {
        rig.descend(variant);
    }
    rig
}

type Plain = (String, Vec<usize>, Vec<f32>);

/// Tensors that fit the seed.
fn fitting() -> Vec<Plain> {
    let tensor = |name: &str, shape: &[usize], value: f32| {
        (name.to_owned(), shape.to_vec(), vec![value; shape.iter().product()])
    };
    vec![
        tensor("down.weight", &[4, 8], 0.25),
        tensor("down.bias", &[8], -0.5),
        tensor("up.weight", &[8, 4], 0.125),
        tensor("up.bias", &[4], 1.0),
    ]
}

fn stored(tensors: &[Plain]) -> Vec<u8> {
    let bytes: Vec<Vec<u8>> =
        tensors.iter().map(|(_, _, values)| values.iter().flat_map(|value| value.to_le_bytes()).collect()).collect();
    let views = tensors
        .iter()
        .zip(&bytes)
        .map(|((name, shape, _), bytes)| (name.as_str(), TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap()));
    serialize(views, None).unwrap()
}

#[test]
fn what_is_exported_comes_back_bit_for_bit_in_every_type_and_slot() {
    let mut eager = Eager::acquire().unwrap();
    for dtype in [ElementType::F32, ElementType::F64, ElementType::Bf16] {
        for (host, at, blueprints) in
            [(mlp(), "hidden0", &["mlp", "norm_mlp", "noise"][..]), (cnn(), "block1", &["mlp", "norm_mlp", "conv"][..])]
        {
            for blueprint in blueprints {
                let config = KasminaConfig { dtype, ..config(host.clone()) };
                let mut source = Rig::beside(config.clone(), eager);
                let seed = source.germinate(at, blueprint);
                source.bring_to(seed, SeedStage::Training);
                source.descend(1);
                let exported = source.manager.export_seed(&source.eager, seed).unwrap();
                let mut other = Rig::beside(KasminaConfig { init_seed: 77, ..config }, source.eager);
                other.germinate(at, blueprint);
                assert_ne!(other.manager.export_seed(&other.eager, seed).unwrap(), exported, "{blueprint}");
                let read = Weights::from_bytes(exported.bytes().clone()).unwrap();
                other.manager.load_seed(&mut other.eager, seed, &read).unwrap();
                assert_eq!(
                    other.manager.export_seed(&other.eager, seed).unwrap(),
                    exported,
                    "{blueprint} as {dtype:?}"
                );
                eager = other.eager;
            }
        }
    }
}

#[test]
fn loading_writes_the_tensors_that_optimizers_hold_and_bytes_equal_plain_tensors() {
    for dtype in [ElementType::F32, ElementType::F64, ElementType::Bf16] {
        let mut rig = rig(dtype, Eager::acquire().unwrap());
        let held = rig.seed_vars(SEED);
        let mut tensors = fitting();
        tensors.push(("gate.weight".to_owned(), vec![3], vec![f32::NAN; 3]));
        let plain = Weights::from_f32(tensors.clone()).unwrap();
        assert_eq!(Weights::from_bytes(stored(&tensors)).unwrap(), plain);
        rig.manager.load_seed(&mut rig.eager, SEED, &plain).unwrap();
        for (var, (name, _, values)) in held.iter().zip(fitting()) {
            let var = var.as_detached_tensor().to_dtype(candle_core::DType::F32).unwrap();
            let expected: Vec<u32> = values.iter().map(|value| value.to_bits()).collect();
            assert_eq!(support::bits(&var), expected, "{name}");
        }
    }
}

#[track_caller]
fn refuse(rig: &mut Rig, bytes: &[u8], message: &str) {
    let before = rig.manager.export_seed(&rig.eager, SEED).unwrap();
    let error = Weights::from_bytes(bytes)
        .map_err(Error::from)
        .and_then(|weights| rig.manager.load_seed(&mut rig.eager, SEED, &weights))
        .unwrap_err();
    assert_eq!(error.to_string(), message);
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert_eq!(rig.manager.export_seed(&rig.eager, SEED).unwrap(), before, "{message}");
}

#[test]
fn a_tensor_that_does_not_fit_is_named_and_nothing_is_written() {
    let mut rig = rig(ElementType::F32, Eager::acquire().unwrap());
    let names = "down.weight, down.bias, up.weight, up.bias";
    for (change, message) in [
        (
            (|t| drop(t.pop())) as fn(&mut Vec<Plain>),
            "artifact tensor `up.bias` is missing: expected shape [4]".to_owned(),
        ),
        (|t| t[3].0 = "up.offset".to_owned(), "artifact tensor `up.bias` is missing: expected shape [4]".to_owned()),
        (
            |t| t.push(("zz".to_owned(), vec![1], vec![0.0])),
            format!("artifact tensor `zz` belongs to no weight: expected one of {names}"),
        ),
        (|t| t[2].1 = vec![4, 8], "artifact tensor `up.weight` has shape [4, 8]: expected [8, 4]".to_owned()),
        (
            |t| t[3].2[2] = f32::NAN,
            "artifact tensor `up.bias` has the value NaN at 2: expected finite values of f32".to_owned(),
        ),
        (
            |t| t[0].2[31] = f32::INFINITY,
            "artifact tensor `down.weight` has the value inf at 31: expected finite values of f32".to_owned(),
        ),
    ] {
        let mut tensors = fitting();
        change(&mut tensors);
        refuse(&mut rig, &stored(&tensors), &message);
    }
    let mut tensors = fitting();
    tensors[1].2.pop();
    let error = Weights::from_f32(tensors).unwrap_err().to_string();
    assert_eq!(error, "artifact tensor `down.bias` has 7 values: expected 8 for shape [8]");
    let twice = [fitting(), fitting()].concat();
    let error = Weights::from_f32(twice).unwrap_err().to_string();
    assert_eq!(error, "the artifact has two tensors `down.weight`");
}

#[test]
fn a_type_that_would_be_rounded_or_does_not_hold_the_value_is_refused() {
    let wide = rig(ElementType::F64, Eager::acquire().unwrap());
    let exported = wide.manager.export_seed(&wide.eager, SEED).unwrap();
    let bytes = exported.bytes();
    let mut narrow = rig(ElementType::F32, wide.eager);
    refuse(&mut narrow, bytes, "artifact tensor `down.weight` has elements of f64: expected f32");
    let mut half = rig(ElementType::Bf16, narrow.eager);
    refuse(&mut half, bytes, "artifact tensor `down.weight` has elements of f64: expected f32 or bf16");
    let mut tensors = fitting();
    tensors[1].2[0] = f32::MAX;
    let message = format!(
        "artifact tensor `down.bias` has the value {} at 0: expected finite values of bf16",
        f64::from(f32::MAX)
    );
    refuse(&mut half, &stored(&tensors), &message);
    let integers = [0_u8; 16];
    let view = TensorView::new(Dtype::I32, vec![4], &integers).unwrap();
    let bytes = serialize([("up.bias", view)], None).unwrap();
    refuse(&mut half, &bytes, "artifact tensor `up.bias` has elements of i32: expected f32, f64 or bf16");
}

#[test]
fn what_is_no_safetensors_is_refused_by_its_first_bytes_and_damage_by_its_reader() {
    for (start, kind) in [
        (&b"PK\x03\x04 and more bytes"[..], "a zip archive"),
        (b"\x80\x02}q\x00(X\x0b\x00\x00", "a pickle"),
        (b"\x80\x04\x95\x10\x00\x00\x00\x00\x00", "a pickle"),
        (b"\x7fELF\x02\x01\x01\x00\x00\x00", "an executable"),
        (b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03", "a gzip archive"),
    ] {
        let error = Weights::from_bytes(start).unwrap_err();
        assert_eq!(error.to_string(), format!("the artifact is {kind}: expected safetensors"));
    }
    let good = stored(&fitting());
    for length in [0, 1, 7, 8, 20, good.len() - 1] {
        let error = Weights::from_bytes(&good[..length]).unwrap_err();
        assert!(matches!(error, WeightsError::Format(_)), "{length}: {error}");
    }
    let too_large = vec![0_u8; Weights::MAX_BYTES + 1];
    let error = Weights::from_bytes(too_large).unwrap_err().to_string();
    assert_eq!(error, "the artifact has 268435457 bytes: expected at most 268435456");
}

#[test]
fn a_header_whose_length_looks_like_a_pickle_is_read_all_the_same() {
    // 640 is 80 02 in the order of the file: the first bytes of a pickle of protocol 2.
    let mut header = br#"{"up.bias":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#.to_vec();
    header.resize(640, b' ');
    let mut bytes = 640_u64.to_le_bytes().to_vec();
    assert_eq!(bytes[..2], [0x80, 2]);
    bytes.extend(header);
    bytes.extend(0.5_f32.to_le_bytes());
    let read = Weights::from_bytes(bytes).unwrap();
    assert_eq!(read, Weights::from_f32([("up.bias", vec![1], vec![0.5])]).unwrap());
}

#[test]
fn an_unknown_seed_is_refused() {
    let mut rig = rig(ElementType::F32, Eager::acquire().unwrap());
    let weights = Weights::from_f32(fitting()).unwrap();
    assert!(matches!(
        rig.manager.load_seed(&mut rig.eager, SeedId(9), &weights),
        Err(Error::UnknownSeed { seed: SeedId(9) })
    ));
    assert!(matches!(rig.manager.export_seed(&rig.eager, SeedId(9)), Err(Error::UnknownSeed { seed: SeedId(9) })));
}

#[test]
fn a_germination_over_budget_is_refused_with_both_numbers() {
    let mut config = config(mlp());
    config.blueprint_budgets.insert("mlp".to_owned(), 75);
    config.blueprints = Some(vec!["norm_mlp".to_owned(), "mlp".to_owned(), "noise".to_owned()]);
    let mut rig = Rig::new(config);
    let germinate = |rig: &mut Rig, at: &str, name: &str| {
        rig.send(Operation::germinate(slot(at), leyline::id::BlueprintId::new(name).unwrap()))
            .map(|applied| applied.seed)
    };
    let error = germinate(&mut rig, "hidden0", "mlp").unwrap_err();
    assert_eq!(error.to_string(), "blueprint `mlp` needs 76 parameters: its budget is 75");
    assert_eq!(error.kind(), ErrorKind::Rejected);
    assert!(rig.states().is_empty());
    // The same blueprint is smaller where there are fewer channels.
    germinate(&mut rig, "hidden1", "mlp").unwrap();
    germinate(&mut rig, "hidden0", "norm_mlp").unwrap();
    let error = germinate(&mut rig, "input", "conv").unwrap_err();
    assert_eq!(error.to_string(), "there is no blueprint `conv`: expected one of mlp, noise, norm_mlp");
    let slots = rig.manager.export_slot_states(&rig.eager).unwrap();
    let names = |index: usize| slots[index].offers.iter().map(|offer| offer.blueprint.as_str()).collect::<Vec<_>>();
    assert_eq!(names(1), ["noise", "norm_mlp"]);
    assert_eq!(names(2), ["mlp", "noise", "norm_mlp"]);
}
