//! The formulas against plain loops in `f64`, gradients against differences of those loops, and exactness at the ends.
#![allow(clippy::disallowed_methods, reason = "tests look at values")]

mod reference;

use candle_core::{DType, Var};
use leyline::command::{ChannelWeights, ConfidenceGate};
use leyline::unit::Alpha;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use reference::Problem;

use super::*;
use crate::graft::AlphaCell;

fn build(blend: &Blend, slot: SlotShape) -> Result<SeedBlend, Error> {
    let mut source = WeightSource::draw(ChaCha8Rng::seed_from_u64(3));
    SeedBlend::build(blend, SeedId(7), slot, &mut source, &Device::Cpu)
}

/// Every mode at this slot, with weights at both bounds and between, and gates within bounds and at them.
fn blends(slot: SlotShape) -> Vec<Blend> {
    let weights = (0_u8..).take(slot.channels()).map(|channel| [0.5, 1.0, 0.0, 0.3][usize::from(channel % 4)]);
    let mut blends = vec![
        Blend::Residual,
        Blend::Convex,
        Blend::Channel(ChannelWeights::new(weights.collect()).unwrap()),
        Blend::Multiply,
        Blend::Gate,
    ];
    if slot.channels() > 1 {
        let gates = [ConfidenceGate::default(), ConfidenceGate::new(9.0, 0.4, 0.3, 0.6).unwrap()];
        blends.extend(gates.map(Blend::Confidence));
    }
    blends
}

const SLOTS: [SlotShape; 7] = [
    SlotShape::Vector { features: 5 },
    SlotShape::Vector { features: 1 },
    SlotShape::Signal { channels: 3, length: 4 },
    SlotShape::Image { channels: 2, height: 3, width: 2 },
    SlotShape::Sequence { length: 4, features: 3 },
    SlotShape::Sequence { length: 1, features: 36 },
    SlotShape::Causal { length: 4, features: 3 },
];

fn cases() -> ProptestConfig {
    ProptestConfig { rng_seed: RngSeed::Fixed(42), failure_persistence: None, ..ProptestConfig::with_cases(60) }
}

fn slot() -> impl Strategy<Value = SlotShape> {
    prop_oneof![
        (1_usize..7).prop_map(|features| SlotShape::Vector { features }),
        (1_usize..6, 1_usize..5).prop_map(|(channels, length)| SlotShape::Signal { channels, length }),
        (1_usize..5, 1_usize..4, 1_usize..4).prop_map(|(channels, height, width)| SlotShape::Image {
            channels,
            height,
            width
        }),
        (1_usize..5, 1_usize..6).prop_map(|(length, features)| SlotShape::Sequence { length, features }),
        (1_usize..5, 1_usize..6).prop_map(|(length, features)| SlotShape::Causal { length, features }),
    ]
}

fn tensor(values: &[f64], shape: &[usize], dtype: DType) -> Tensor {
    Tensor::from_slice(values, shape, &Device::Cpu).unwrap().to_dtype(dtype).unwrap()
}

fn values(tensor: &Tensor) -> Vec<f64> {
    tensor.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

#[track_caller]
fn assert_close(found: &[f64], expected: &[f64], tolerance: f64, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let close = (found - expected).abs() <= tolerance * expected.abs().max(1.0);
        assert!(close, "{what}, element {index}: {found} against {expected}");
    }
}

/// α as device scalar, as fixed number, or none where it is 1.
fn with_strength<R>(alpha: f64, fixed: bool, dtype: DType, f: impl FnOnce(Strength<'_>) -> R) -> R {
    let cell = AlphaCell::new(Alpha::new(alpha).unwrap(), dtype, &Device::Cpu).unwrap();
    match (alpha >= 1.0, fixed) {
        (true, true) => f(Strength::Full),
        (false, true) => f(Strength::Fixed(alpha)),
        (_, false) => f(Strength::Cell(cell.tensor())),
    }
}

/// Values and all gradients in `f64`, `h` with channels that are not contiguous where `transposed`.
fn check_in_f64(problem: &Problem, alpha: f64, fixed: bool, transposed: bool) {
    let formula = build(&problem.blend, problem.slot).unwrap().formula;
    let shape = problem.slot.batch(problem.num_samples);
    let var = |values: &[f64], shape: &[usize]| Var::from_tensor(&tensor(values, shape, DType::F64)).unwrap();
    let (h, f) = (var(&problem.h, &shape), var(&problem.f, &shape));
    let weights: Vec<Var> = problem.gate.iter().map(|(values, shape)| var(values, shape)).collect();
    let views: Vec<Tensor> = weights.iter().map(|var| var.as_tensor().clone()).collect();
    let host = match h.rank() {
        2 => h.as_tensor().clone(),
        _ if transposed => h.transpose(1, 2).unwrap().contiguous().unwrap().transpose(1, 2).unwrap(),
        _ => h.as_tensor().clone(),
    };
    let y = with_strength(alpha, fixed, DType::F64, |strength| {
        mix(&formula, problem.slot, &views, &host, f.as_tensor().clone(), strength).unwrap()
    });
    assert_eq!(y.dims(), shape);
    let what = format!("{:?} at {} with alpha {alpha}", problem.blend, problem.slot);
    assert_close(&values(&y), &problem.output(alpha), 1e-12, &what);

    let objective = (y * tensor(&problem.objective, &shape, DType::F64)).unwrap().sum_all().unwrap();
    let gradients = objective.backward().unwrap();
    let expected = problem.gradients(alpha);
    for (index, var) in [&h, &f].into_iter().chain(&weights).enumerate() {
        let found = values(gradients.get(var).unwrap());
        assert_close(&found, &expected[index], 1e-6, &format!("{what}, gradient {index}"));
    }
}

proptest! {
    #![proptest_config(cases())]
    #[test]
    fn every_mode_follows_its_formula_with_gradients_to_host_seed_and_gate(
        slot in slot(),
        num_samples in 1_usize..4,
        seed in any::<u64>(),
        alpha in prop_oneof![Just(1.0), 0.01_f64..1.0],
        (fixed, transposed) in any::<(bool, bool)>(),
    ) {
        for blend in blends(slot) {
            check_in_f64(&Problem::random(blend, slot, num_samples, seed), alpha, fixed, transposed);
        }
    }

    /// What is added to h is a weight without α, times α: it grows with α and never changes its sign.
    #[test]
    fn what_a_seed_adds_grows_in_proportion_to_alpha(
        slot in slot(),
        seed in any::<u64>(),
        alphas in (0.01_f64..1.0, 0.01_f64..1.0),
    ) {
        let (low, high) = (alphas.0.min(alphas.1), alphas.0.max(alphas.1));
        for blend in blends(slot) {
            let problem = Problem::random(blend, slot, 2, seed);
            let [h, at_low, at_high] = [None, Some(low), Some(high)].map(|alpha| problem.computed(alpha, DType::F64));
            for ((h, low_y), high_y) in h.iter().zip(&at_low).zip(&at_high) {
                let (less, more) = (low_y - h, high_y - h);
                prop_assert!((less * high - more * low).abs() < 1e-12, "{:?}: {less} {more}", problem.blend);
                prop_assert!(less.abs() <= more.abs() + 1e-14 && less * more >= 0.0);
            }
        }
    }

    #[test]
    fn a_multiplier_lies_within_one_minus_and_one_plus_alpha(
        alpha in 1e-6_f32..1.0,
        h in prop::collection::vec(-1e3_f32..1e3, 8),
        f in prop::collection::vec(prop_oneof![-4.0_f32..4.0, Just(f32::INFINITY), Just(f32::MIN)], 8),
    ) {
        let slot = SlotShape::Vector { features: 4 };
        let blend = build(&Blend::Multiply, slot).unwrap();
        let of = |values: &[f32]| Tensor::from_slice(values, (2, 4), &Device::Cpu).unwrap();
        let y = blend.mix(&of(&h), of(&f), Strength::Fixed(f64::from(alpha)), View::Live).unwrap();
        for (h, y) in h.iter().zip(y.flatten_all().unwrap().to_vec1::<f32>().unwrap()) {
            let (least, greatest) = (h.abs() * (1.0 - alpha), h.abs() * (1.0 + alpha));
            prop_assert!((least..=greatest).contains(&y.abs()) && y * h >= 0.0, "{h} became {y}");
        }
    }
}

impl Problem {
    /// The output of the blend in this type; h as the type has it when there is no α.
    fn computed(&self, alpha: Option<f64>, dtype: DType) -> Vec<f64> {
        let h = tensor(&self.h, &self.slot.batch(self.num_samples), dtype);
        let Some(alpha) = alpha else { return values(&h) };
        let f = tensor(&self.f, &self.slot.batch(self.num_samples), dtype);
        let formula = build(&self.blend, self.slot).unwrap().formula;
        // A gate computes in the type of its weights.
        let gate_dtype = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
        let weights: Vec<Tensor> = self.gate.iter().map(|(values, shape)| tensor(values, shape, gate_dtype)).collect();
        let y =
            with_strength(alpha, true, dtype, |strength| mix(&formula, self.slot, &weights, &h, f, strength).unwrap());
        assert_eq!(y.dtype(), dtype);
        values(&y)
    }
}

#[test]
fn every_type_of_number_gives_the_formula_within_its_rounding() {
    for slot in SLOTS {
        for blend in blends(slot) {
            for (dtype, tolerance) in [(DType::F64, 1e-12), (DType::F32, 2e-6), (DType::BF16, 0.04)] {
                for alpha in [0.3, 1.0] {
                    let problem = Problem::random(blend.clone(), slot, 3, 5);
                    let found = problem.computed(Some(alpha), dtype);
                    assert_close(&found, &problem.output(alpha), tolerance, &format!("{blend:?} {slot} {dtype:?}"));
                }
            }
        }
    }
}

#[test]
fn a_gate_learns_in_the_type_of_its_weights_whatever_the_network_computes_in() {
    let slot = SlotShape::Signal { channels: 2, length: 3 };
    let blend = build(&Blend::Gate, slot).unwrap();
    let weights = blend.weights().unwrap();
    for parameter in weights.parameters() {
        parameter.var.set(&Tensor::full(0.5_f32, parameter.var.shape(), &Device::Cpu).unwrap()).unwrap();
    }
    for dtype in [DType::F32, DType::BF16, DType::F64] {
        let h = Tensor::ones(slot.batch(2), dtype, &Device::Cpu).unwrap();
        let y = blend.mix(&h, h.clone(), Strength::Full, View::Live).unwrap();
        assert_eq!(y.dtype(), dtype);
        let gradients = y.sum_all().unwrap().backward().unwrap();
        for parameter in weights.parameters() {
            let gradient = gradients.get(&parameter.var).unwrap();
            assert_eq!(gradient.dtype(), DType::F32, "{} {dtype:?}", parameter.name);
            assert!(values(gradient).iter().all(|value| *value != 0.0), "{} {dtype:?}", parameter.name);
        }
        let frozen = blend.mix(&h, h.clone(), Strength::Full, View::Frozen).unwrap();
        assert_eq!(values(&frozen), values(&y));
    }
}

/// f = 0 adds nothing; a mode that replaces the host's value takes its part away.
#[test]
fn a_newborn_seed_that_adds_or_multiplies_changes_no_number() {
    for slot in SLOTS {
        for blend in blends(slot) {
            let mut problem = Problem::random(blend, slot, 2, 8);
            problem.f.fill(0.0);
            for alpha in [0.3, 1.0] {
                let unchanged = problem.computed(Some(alpha), DType::F32) == problem.computed(None, DType::F32);
                let expected = matches!(problem.blend, Blend::Residual | Blend::Multiply | Blend::Gate);
                assert_eq!(unchanged, expected, "{:?} at {slot}", problem.blend);
            }
        }
    }
    let slot = SlotShape::Vector { features: 2 };
    let y = Problem { f: vec![0.0; 2], h: vec![8.0, -4.0], ..Problem::random(Blend::Convex, slot, 1, 0) };
    assert_eq!(y.computed(Some(0.25), DType::F32), [6.0, -3.0]);
}

/// A ramp that has arrived, an override at the same α and a permanent seed compute one function.
#[test]
fn alpha_on_the_device_in_an_evaluation_and_left_out_gives_the_same_bits() {
    for slot in SLOTS {
        for blend in blends(slot) {
            let problem = Problem::random(blend.clone(), slot, 2, 9);
            let built = build(&blend, slot).unwrap();
            for dtype in [DType::F32, DType::BF16] {
                let of = |values: &[f64]| tensor(values, &slot.batch(2), dtype);
                for alpha in [1.0, 0.3, 0.7, 1e-3, 0.999] {
                    let at = |fixed| {
                        with_strength(alpha, fixed, dtype, |strength| {
                            values(&built.mix(&of(&problem.h), of(&problem.f), strength, View::Live).unwrap())
                        })
                    };
                    let bits = |values: Vec<f64>| values.into_iter().map(f64::to_bits).collect::<Vec<_>>();
                    assert_eq!(bits(at(true)), bits(at(false)), "{blend:?} at {slot}, {alpha} in {dtype:?}");
                }
            }
        }
    }
}

#[test]
fn at_alpha_one_a_convex_seed_has_taken_the_place_of_the_host() {
    let slot = SlotShape::Signal { channels: 3, length: 4 };
    let problem = Problem::random(Blend::Convex, slot, 2, 10);
    let f = values(&tensor(&problem.f, &[problem.f.len()], DType::F32));
    assert_eq!(problem.computed(Some(1.0), DType::F32), f);
}

/// Output and gradients of one blend at a vector slot: h and f are filled with one number each.
#[track_caller]
fn check_constant(blend: Blend, (h, f, alpha): (f64, f64, f64), expected: [&[f64]; 3]) {
    let slot = SlotShape::Vector { features: expected[0].len() };
    let of = |value: f64| Var::from_tensor(&tensor(&vec![value; expected[0].len()], &slot.batch(1), DType::F64));
    let (h, f) = (of(h).unwrap(), of(f).unwrap());
    let blend = build(&blend, slot).unwrap();
    let y = blend.mix(&h, f.as_tensor().clone(), Strength::Fixed(alpha), View::Live).unwrap();
    let gradients = y.sum_all().unwrap().backward().unwrap();
    let found = [values(&y), values(gradients.get(&h).unwrap()), values(gradients.get(&f).unwrap())];
    for (found, expected) in found.iter().zip(expected) {
        assert_close(found, expected, 1e-12, "value");
    }
}

/// The numbers of the older system's acceptance tests; its host was detached and had no gradient.
#[test]
fn the_acceptance_examples_hold_with_a_host_that_learns() {
    check_constant(Blend::Convex, (1.0, 2.0, 0.3), [&[1.3; 2], &[0.7; 2], &[0.3; 2]]);
    check_constant(Blend::Residual, (1.0, 2.0, 0.4), [&[1.8; 2], &[1.0; 2], &[0.4; 2]]);
    let weights = Blend::Channel(ChannelWeights::new(vec![0.0, 0.5, 1.0]).unwrap());
    check_constant(weights, (1.0, 3.0, 0.4), [&[1.0, 1.4, 1.8], &[1.0, 0.8, 0.6], &[0.0, 0.2, 0.4]]);
    // All channels agree, so the margin is 0 and the gate σ(−4·0.2), which is above 0.1 and below 0.9.
    let gate = 0.5 * (1.0 + (-0.4_f64).tanh());
    let sure = Blend::Confidence(ConfidenceGate::new(4.0, 0.2, 0.1, 0.9).unwrap());
    let part = 0.5 * gate;
    check_constant(sure, (1.0, 3.0, 0.5), [&[1.0 + 2.0 * part; 3], &[1.0 - part; 3], &[part; 3]]);
    let bounded = Blend::Confidence(ConfidenceGate::new(4.0, 1.0, 0.25, 0.5).unwrap());
    check_constant(bounded, (1.0, 3.0, 0.5), [&[1.25; 2], &[0.875; 2], &[0.125; 2]]);
}

#[test]
fn settings_that_do_not_fit_the_slot_are_refused_with_what_would() {
    for slot in SLOTS {
        for count in [1, slot.channels() - 1, slot.channels() + 1, slot.num_positions()] {
            let blend = Blend::Channel(ChannelWeights::new(vec![0.5; count.max(1)]).unwrap());
            let found = build(&blend, slot).map(|_| ()).map_err(|error| error.to_string());
            let channels = slot.channels();
            let expected = (count.max(1) == channels).then_some(()).ok_or_else(|| {
                format!("{} channel weights were given for a slot of shape {slot}: expected {channels}", count.max(1))
            });
            assert_eq!(found, expected);
        }
        let sure = build(&Blend::Confidence(ConfidenceGate::default()), slot);
        assert_eq!(matches!(sure, Err(Error::NoMargin { shape }) if shape == slot), slot.channels() == 1);
    }
}

#[test]
fn only_a_gate_has_tensors_and_they_are_named_after_the_seed() {
    for (slot, hidden) in [(SLOTS[0], 8), (SLOTS[1], 8), (SLOTS[5], 9)] {
        for blend in blends(slot) {
            let built = build(&blend, slot).unwrap();
            let found = built.weights().map(|set| {
                set.parameters().iter().map(|p| (p.name.clone(), p.var.dims().to_vec())).collect::<Vec<_>>()
            });
            let expected = (blend == Blend::Gate).then(|| {
                let named = |name: &str, shape: &[usize]| (format!("seed.0007.gate.{name}"), shape.to_vec());
                vec![
                    named("down.weight", &[slot.channels(), hidden]),
                    named("down.bias", &[hidden]),
                    named("up.weight", &[hidden, 1]),
                    named("up.bias", &[1]),
                ]
            });
            assert_eq!(found, expected);
        }
    }
}
