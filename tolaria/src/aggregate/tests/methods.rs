//! Every method through the engine, on windows whose result is known from its definition.

use proptest::prelude::*;

use super::exact::Exact;
use super::window::{Window, windows};
use super::{MEASURED, METHODS, PATHS, cases};
use crate::aggregate::sums::Field;
use crate::aggregate::{AggregationConfig, ConflictResolution};
use crate::testing::random;

/// Two owners at 120 degrees, one twice as long; both halves of the window.
const LONG: [f32; 2] = [4.0, 0.0];
const SHORT: [f32; 2] = [-1.0, 1.732_050_8];

fn window() -> Window {
    Window::of_host(&[(&LONG, 1, &[(1, 1.0)]), (&SHORT, 1, &[])])
}

#[test]
fn two_owners_in_conflict_have_the_weights_of_each_definition() {
    // G_h = (-1/2, √3/2) of length 1, G_1 = (2, 0): inner products 1, −1, 4.
    let cos60 = 0.5;
    for (method, weights) in [
        (ConflictResolution::Mean, [1.0, 1.0]),
        // The host loses −1/4 of G_1, the seed −1 of G_h.
        (ConflictResolution::PcGrad, [2.0, 1.25]),
        // One other owner: the cone is a half-plane, as above.
        (ConflictResolution::UpGrad, [2.0, 1.25]),
        // |w G_h + (1 − w) G_1|² is least at w = (4 + 1)/(1 + 2 + 4); times two owners.
        (ConflictResolution::Mgda, [10.0 / 7.0, 4.0 / 7.0]),
    ] {
        for path in &PATHS {
            let outcome = window().run(path, &AggregationConfig { method, ..MEASURED });
            let found = outcome.sums.all(Field::Resolved, 2);
            for (found, expected) in found.iter().zip(weights) {
                assert!((found - expected).abs() < 1e-6, "{method:?} on {path:?}: {found}, expected {expected}");
            }
            let owners = [SHORT.map(|x| f64::from(x) * cos60), LONG.map(|x| f64::from(x) * 0.5)];
            for (at, found) in outcome.gradient.iter().enumerate() {
                let expected = weights[0] * owners[0][at] + weights[1] * owners[1][at];
                assert!((f64::from(*found) - expected).abs() < 1e-6, "{method:?} on {path:?}: {found}, {expected}");
            }
        }
    }
}

#[test]
fn methods_keep_their_promises_on_whole_vectors() {
    for case in 0..40 {
        let rows: Vec<Vec<f32>> = (0..4).map(|k| random(6, 900 + 10 * case + k)).collect();
        let weights: [&[(u32, f64)]; 4] = [&[(1, 1.0)], &[(2, 1.0)], &[(3, 0.8)], &[]];
        let rows: Vec<_> = rows.iter().zip(weights).map(|(row, w)| (row.as_slice(), 1, w)).collect();
        let window = Window::of_host(&rows);
        let exact = Exact::of(&window, &MEASURED).unwrap();
        let members: Vec<usize> = (0..6).filter(|slot| exact.takes_part(*slot)).collect();
        let largest = members.iter().map(|slot| exact.norm(*slot)).fold(0.0, f64::max);
        for path in &PATHS {
            let run = |method| {
                let outcome = window.run(path, &AggregationConfig { method, ..MEASURED });
                outcome.gradient.iter().copied().map(f64::from).collect::<Vec<_>>()
            };
            let least = |gradient: &[f64]| {
                let inner = members.iter().map(|slot| exact.dot(&exact.owners[*slot], gradient));
                inner.fold(f64::INFINITY, f64::min)
            };
            // Neither the dual cone's projections nor the shortest vector harm an owner.
            for method in [ConflictResolution::UpGrad, ConflictResolution::Mgda] {
                let gradient = run(method);
                assert!(least(&gradient) >= -1e-5 * largest * largest, "{method:?} on {path:?}");
            }
            // CAGrad improves on the worst case of the mean, within its radius.
            let (mean, near) = (run(ConflictResolution::Mean), run(ConflictResolution::CaGrad));
            assert!(least(&near) >= least(&mean) - 1e-6 * largest * largest);
            let away: Vec<f64> = near.iter().zip(&mean).map(|(a, b)| a - b).collect();
            let norm = |vector: &[f64]| vector.iter().map(|x| x * x).sum::<f64>().sqrt();
            assert!(norm(&away) <= 0.4 * norm(&mean) * 1.000_01, "{path:?}");
        }
    }
}

#[test]
fn every_method_has_a_name_of_its_own() {
    let names: Vec<String> = METHODS
        .iter()
        .map(|method| format!("{:?}", window().engine(&AggregationConfig { method: *method, ..MEASURED })))
        .collect();
    for (name, expected) in names.iter().zip(["mean", "pcgrad", "mgda", "upgrad", "cagrad", "aligned_mtl"]) {
        assert!(name.starts_with(&format!("GradientEngine {{ method: \"{expected}\"")), "{name}");
    }
}

proptest! {
    #![proptest_config(cases(200))]

    #[test]
    fn no_method_makes_a_gradient_longer_than_its_definition_allows(window in windows(false)) {
        for method in METHODS {
            let config = AggregationConfig { method, ..MEASURED };
            let Some(exact) = Exact::of(&window, &config) else { continue };
            let slots = exact.owners.len();
            let members: Vec<usize> = (0..slots).filter(|slot| !exact.is_idle[*slot]).collect();
            let norms: f64 = (0..slots).map(|slot| exact.norm(slot)).sum();
            let shortest = members.iter().map(|slot| exact.norm(*slot)).fold(f64::INFINITY, f64::min);
            let idle: f64 = (0..slots).filter(|slot| exact.is_idle[*slot]).map(|slot| exact.norm(slot)).sum();
            let sum: Vec<f64> = (0..exact.owners[0].len()).map(|at| exact.owners.iter().map(|owner| owner[at]).sum()).collect();
            let mean = exact.dot(&sum, &sum).sqrt();
            let count = members.len() as f64;
            let squares: f64 = members.iter().map(|slot| exact.norm(*slot).powi(2)).sum();
            let limit = match method {
                ConflictResolution::Mean => mean,
                ConflictResolution::PcGrad | ConflictResolution::UpGrad => norms,
                ConflictResolution::CaGrad => 1.4 * (mean + idle),
                ConflictResolution::Mgda => count * shortest,
                // √n times the smallest singular value but 0.
                ConflictResolution::AlignedMtl => (count * squares).sqrt(),
            };
            let limit = if count < 2.0 { mean } else { limit + idle };
            let scale: f64 = exact.scales.iter().sum();
            for path in &PATHS {
                let outcome = window.run(path, &config);
                let gradient: Vec<f64> = outcome.gradient.iter().copied().map(f64::from).collect();
                let found = exact.dot(&gradient, &gradient).sqrt();
                let weights = outcome.sums.all(Field::Resolved, slots);
                prop_assert!(
                    found <= limit * 1.000_01 + 1e-5 * scale,
                    "{:?} on {:?}: {}, limit {}, scale {}, weights {:?}", method, path, found, limit, scale, weights
                );
            }
        }
    }
}

#[test]
fn owners_that_are_opposed_to_a_rounding_do_not_blow_the_gradient_up() {
    for case in 0..960_u64 {
        let a = random([1, 2, 5, 50][(case % 4) as usize], case);
        let factor = [-0.5_f32, -1.5, -0.9, -1.0 / 3.0][(case / 4 % 4) as usize];
        let noise = [0.0_f32, 1e-6, 1e-4][(case / 16 % 3) as usize];
        let noisy = a.iter().zip(random(a.len(), case + 9999));
        let b: Vec<f32> = noisy.map(|(a, other)| a * factor + other * noise).collect();
        let window = Window::of_host(&[(&a, 1, &[(1, 1.0)]), (&b, 1, &[])]);
        let norm = |values: &[f32]| values.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
        let limit = norm(&a) + norm(&b);
        for method in METHODS {
            let config = AggregationConfig { method, ..MEASURED };
            for path in &PATHS {
                let found = norm(&window.run(path, &config).gradient);
                assert!(found <= limit, "{method:?} on {path:?}: {found} of gradients of {limit}, case {case}");
            }
        }
    }
}
