//! Networks of each element type: the whole life of a seed, saving and bringing back.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use candle_core::{DType, Tensor, Var};
use kasmina::KasminaConfig;
use kasmina::host::HostConfig;
use kasmina::weight::ElementType;
use leyline::command::Operation;
use leyline::durable::Durable;
use leyline::error::{Error as _, ErrorKind};
use leyline::id::SeedId;
use leyline::model::{AlphaOverride, Pass, TrainableModel};
use leyline::region::Eager;
use leyline::seed::{AttributionMode, SeedManager, SeedStage};
use support::{Rig, alpha, batch, config, cross_entropy, hosts, ramp};

const TYPES: [ElementType; 3] = [ElementType::F32, ElementType::F64, ElementType::Bf16];

fn typed(host: HostConfig, dtype: ElementType) -> KasminaConfig {
    KasminaConfig { dtype, attribution: AttributionMode::Probe, ..config(host) }
}

#[allow(clippy::disallowed_methods, reason = "tests look at values")]
fn values(tensor: &Tensor) -> Vec<f64> {
    tensor.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

fn evaluate(rig: &Rig, overrides: &[AlphaOverride]) -> Vec<f64> {
    values(&rig.model().forward(&batch(1).inputs, Pass::Evaluate { overrides }).unwrap().logits)
}

fn parameters(rig: &Rig) -> Vec<(String, Vec<f64>)> {
    rig.model().parameters().iter().map(|p| (p.name.clone(), values(&p.var))).collect()
}

/// A rig with one permanent seed and one in the middle of its ramp, each of which has learned.
fn grown(config: KasminaConfig, eager: Eager) -> (Rig, SeedId) {
    let mut rig = Rig::beside(config, eager);
    let slots: Vec<String> = rig.model().host().slots().iter().map(|slot| slot.id.to_string()).collect();
    for (slot, blueprint) in [(&slots[1], "mlp"), (&slots[2], "norm_mlp")] {
        let before = evaluate(&rig, &[]);
        let seed = rig.germinate(slot, blueprint);
        rig.bring_to(seed, SeedStage::Training);
        assert_eq!(evaluate(&rig, &[AlphaOverride { seed, alpha: alpha(1.0) }]), before, "a newborn changes nothing");
        for variant in 0..4 {
            rig.descend(variant);
        }
        let learned = evaluate(&rig, &[AlphaOverride { seed, alpha: alpha(1.0) }]);
        assert_ne!(learned, evaluate(&rig, &[AlphaOverride { seed, alpha: alpha(0.0) }]), "{blueprint} learned");
        if blueprint == "mlp" {
            rig.send(Operation::StartBlending { seed, ramp: ramp(1.0, 0) }).unwrap();
            rig.ripen(seed);
            rig.send(Operation::Hold { seed }).unwrap();
            rig.ripen(seed);
            rig.send(Operation::Fossilize { seed }).unwrap();
        } else {
            rig.send(Operation::StartBlending { seed, ramp: ramp(0.7, 9) }).unwrap();
        }
    }
    for variant in 4..8 {
        rig.descend(variant);
    }
    (rig, SeedId(2))
}

#[test]
fn a_network_of_each_type_trains_blends_and_comes_back_as_it_was() {
    let mut eager = Eager::acquire().unwrap();
    for host in hosts() {
        for dtype in TYPES {
            let (mut rig, blending) = grown(typed(host.clone(), dtype), eager);
            let model = rig.model();
            assert_eq!(model.dtype(), dtype.dtype());
            assert!(model.parameters().iter().all(|p| p.var.dtype() == dtype.dtype()));
            let logits = model.forward(&batch(1).inputs, Pass::Train).unwrap().logits;
            let expected = if dtype == ElementType::F64 { DType::F64 } else { DType::F32 };
            assert_eq!(logits.dtype(), expected, "{dtype:?}");
            assert!(evaluate(&rig, &[]).iter().all(|logit| logit.is_finite()));
            let mut seen = vec![evaluate(&rig, &[])];
            for value in [0.0, 0.5, 1.0] {
                seen.push(evaluate(&rig, &[AlphaOverride { seed: blending, alpha: alpha(value) }]));
                assert!(!seen[..seen.len() - 1].contains(seen.last().unwrap()), "{dtype:?}: {value} acts");
            }
            let attribution = rig.manager.attribute_batch(&rig.eager, &batch(3)).unwrap();
            assert_eq!(attribution.used(), AttributionMode::Probe);
            assert_eq!(rig.manager.audit_isolation(&rig.eager, &batch(3)).unwrap(), []);

            let saved = rig.manager.save(&rig.eager).unwrap();
            let (before, weights) = (evaluate(&rig, &[]), parameters(&rig));
            let mut restored = Rig::beside(KasminaConfig { init_seed: 5, ..typed(host.clone(), dtype) }, rig.eager);
            restored.manager.restore(&mut restored.eager, &saved).unwrap();
            assert_eq!(evaluate(&restored, &[]), before);
            assert_eq!(parameters(&restored), weights);
            restored.descend(9);
            assert_ne!(parameters(&restored), weights);
            eager = restored.eager;
        }
    }
}

#[test]
fn a_state_of_another_type_is_refused_with_the_name_of_its_first_tensor() {
    let mut eager = Eager::acquire().unwrap();
    for saved_as in TYPES {
        let (rig, _) = grown(typed(support::mlp(), saved_as), eager);
        let saved = rig.manager.save(&rig.eager).unwrap();
        eager = rig.eager;
        for other in TYPES.into_iter().filter(|other| *other != saved_as) {
            let mut rig = Rig::beside(typed(support::mlp(), other), eager);
            let before = parameters(&rig);
            let error = rig.manager.restore(&mut rig.eager, &saved).unwrap_err();
            let name = "saved tensor `host.layer0.weight`";
            let (found, expected) = (saved_as.dtype().as_str(), other.dtype().as_str());
            assert_eq!(error.to_string(), format!("{name} has elements of {found}, expected {expected}"));
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            assert_eq!(parameters(&rig), before);
            eager = rig.eager;
        }
    }
}

#[test]
fn every_type_starts_from_the_same_numbers_as_far_as_it_holds_them() {
    let start = |dtype, eager| {
        let mut rig = Rig::beside(typed(support::cnn(), dtype), eager);
        let seed = rig.germinate("block0", "conv");
        rig.bring_to(seed, SeedStage::Training);
        (parameters(&rig), evaluate(&rig, &[]), rig.eager)
    };
    let (narrow, answer, eager) = start(ElementType::F32, Eager::acquire().unwrap());
    let (wide, wide_answer, eager) = start(ElementType::F64, eager);
    assert_eq!(narrow, wide, "every f32 is an f64");
    let (half, half_answer, _) = start(ElementType::Bf16, eager);
    for ((name, exact), (_, rounded)) in narrow.iter().zip(&half) {
        for (exact, rounded) in exact.iter().zip(rounded) {
            assert!((exact - rounded).abs() <= exact.abs() / 256.0, "{name}: {exact} became {rounded}");
        }
    }
    for ((answer, wide), half) in answer.iter().zip(&wide_answer).zip(&half_answer) {
        assert!((answer - wide).abs() < 1e-6, "{answer} against {wide}");
        // A few layers of 8 significant bits.
        assert!((answer - half).abs() < 0.02, "{answer} against {half}");
    }
}

/// Why logits of half precision are turned into `f32`: candle has the operations on the CPU, with 8 significant bits.
#[test]
fn the_loss_of_logits_of_half_precision_is_coarse() {
    let at = |dtype| {
        let logits = batch(2).inputs.narrow(1, 0, 5).unwrap().affine(4.0, 0.0).unwrap().to_dtype(dtype).unwrap();
        let logits = Var::from_tensor(&logits).unwrap();
        let loss = cross_entropy(&logits, &batch(2).targets).unwrap();
        let gradients = loss.backward().unwrap();
        (values(&loss)[0], values(gradients.get(&logits).unwrap()))
    };
    let (exact, _) = at(DType::F64);
    let (narrow, _) = at(DType::F32);
    let (half, gradient) = at(DType::BF16);
    assert!((narrow - exact).abs() < 1e-6, "{narrow} against {exact}");
    // Measured: 0.006 of 2.38 nats.
    let error = (half - exact).abs();
    assert!((1e-4..0.1).contains(&error), "{half} against {exact}");
    assert!(gradient.iter().all(|value| value.is_finite()));
}
