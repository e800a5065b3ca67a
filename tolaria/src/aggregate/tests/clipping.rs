//! Norms of the combination, and factors per domain.

use candle_core::{DType, Device, Tensor};
use proptest::prelude::*;

use super::exact::Exact;
use super::window::{Outcome, Row, Window, layout_with_shadows, windows};
use super::{MEAN, METHODS, PATHS, PCGRAD, cases};
use crate::aggregate::AggregationConfig;
use crate::aggregate::passes::Passes;
use crate::aggregate::sums::Field;
use crate::grad::GradientBufferPool;
use crate::testing::{HOST, assert_close, bits, layout, random, seed, values, values_f64};

/// Host (3) with seed 2 (2), isolated seed 1 (2), isolated seed 3 (1); the host again (1).
fn example(elements: &[f32]) -> [Window; 2] {
    let layout = layout_with_shadows();
    // Alone, and as two halves of the same kind that belong to different owners.
    let alone = Window::new(layout.clone(), &[(elements, 1, &[])]);
    [alone, Window::new(layout, &[(elements, 1, &[(2, 1.0)]), (elements, 1, &[])])]
}

struct Expected<'a> {
    main_sq: f64,
    owners_sq: [f64; 4],
    clipped: &'a [f32],
}

#[track_caller]
fn check(elements: &[f32], clip_norm: Option<f64>, expected: &Expected<'_>) {
    for window in example(elements) {
        for config in [MEAN, PCGRAD].map(|config| AggregationConfig { clip_norm, ..config }) {
            for path in &PATHS {
                let outcome = window.run(path, &config);
                let found = std::iter::once(outcome.sums.main_square());
                let found: Vec<f64> = found.chain(outcome.sums.all(Field::ParameterSquare, 4)).collect();
                let wanted = std::iter::once(expected.main_sq).chain(expected.owners_sq);
                for (found, wanted) in found.iter().zip(wanted) {
                    assert!((found - wanted).abs() <= 1e-12 * wanted, "{path:?}: {found}, expected {wanted}");
                }
                let healthy = expected.owners_sq.map(|square| f64::from(u8::from(square > 0.0)));
                assert_eq!(outcome.sums.all(Field::Healthy, 4), healthy);
                assert_eq!(bits(&outcome.gradient), bits(expected.clipped), "{config:?} on {path:?}");
            }
        }
    }
}

const ELEMENTS: [f32; 9] = [2.0, 0.0, 4.0, 5.0, 1.0, 3.0, 4.0, 100.0, -2.0];
/// By slot: host, seeds 1 to 3.
const SQUARES: [f64; 4] = [24.0, 25.0, 26.0, 10_000.0];

#[test]
fn without_a_limit_norms_are_measured_and_nothing_is_scaled() {
    for clip_norm in [None, Some(101.0)] {
        check(&ELEMENTS, clip_norm, &Expected { main_sq: 50.0, owners_sq: SQUARES, clipped: &ELEMENTS });
    }
}

#[test]
fn each_domain_is_clipped_by_its_own_norm() {
    let mut clipped = ELEMENTS;
    clipped[7] = 10.0;
    check(&ELEMENTS, Some(10.0), &Expected { main_sq: 50.0, owners_sq: SQUARES, clipped: &clipped });
    let elements = [8.0, 0.0, 0.0, 6.0, 0.0, 3.0, 4.0, 0.0, 0.0];
    let clipped = [4.0, 0.0, 0.0, 3.0, 0.0, 3.0, 4.0, 0.0, 0.0];
    let owners_sq = [64.0, 25.0, 36.0, 0.0];
    check(&elements, Some(5.0), &Expected { main_sq: 100.0, owners_sq, clipped: &clipped });
}

#[test]
fn the_clipped_norm_is_the_limit() {
    let layout = layout(&[("a", 5000, HOST, false), ("b", 0, seed(1), false)]);
    let elements = random(5000, 9);
    let norm = elements.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
    let expected: Vec<f64> = elements.iter().map(|x| f64::from(*x) * 0.3 / norm).collect();
    let window = Window::new(layout, &[(&elements, 1, &[(1, 1.0)]), (&elements, 1, &[])]);
    for config in [MEAN, PCGRAD].map(|config| AggregationConfig { clip_norm: Some(0.3), ..config }) {
        for path in &PATHS {
            // Elements are below 0.02; a rounded factor and a rounded product.
            assert_close(&window.run(path, &config).gradient, &expected, 0.02 * f64::from(f32::EPSILON));
        }
    }
}

#[test]
fn a_domain_that_is_not_finite_is_no_number_and_no_other_is_touched() {
    let layout = layout(&[("a", 2, HOST, false), ("b", 1, seed(1), true)]);
    for bad in [f32::NAN, f32::INFINITY] {
        for (at, spoiled, skipped) in [(0, 0..2, [1.0, 0.0]), (2, 2..3, [0.0, 1.0])] {
            let mut first = [1.0, 1.0, 8.0];
            first[at] = bad;
            let window = Window::new(layout.clone(), &[(&first, 3, &[(1, 1.0)]), (&[1.0, 1.0, 8.0], 2, &[])]);
            for config in [MEAN, PCGRAD].map(|config| AggregationConfig { clip_norm: Some(1.0), ..config }) {
                for path in &PATHS {
                    let Outcome { gradient, sums, .. } = window.run(path, &config);
                    for (at, value) in gradient.iter().enumerate() {
                        assert_eq!(value.is_nan(), spoiled.contains(&at), "{path:?}: {gradient:?}");
                    }
                    let host = skipped[0] > 0.0;
                    assert_eq!(sums.all(Field::Skipped, 2), skipped);
                    assert_eq!(sums.all(Field::Healthy, 2), [1.0 - skipped[0], 1.0 - skipped[1]]);
                    assert_eq!(sums.skipped_samples().to_bits(), f64::to_bits(if host { 5.0 } else { 0.0 }));
                    assert_eq!(sums.main_square() > 0.0, !host);
                    let of_owners: f64 = sums.of_owners(2).iter().map(|sum| sum.abs()).sum();
                    assert_eq!(of_owners > 0.0, !host && config.tells_owners_apart(), "{path:?} {config:?}");
                }
            }
        }
    }
}

#[test]
fn a_loss_that_is_not_finite_takes_the_window_out_of_the_sums() {
    let window = Window::of_host(&[(&[2.0, 0.0], 1, &[(1, 1.0)]), (&[-2.0, 2.0], 1, &[])]);
    for config in [MEAN, PCGRAD] {
        for path in &PATHS {
            let (engine, pool) = (window.engine(&config), GradientBufferPool::new());
            let sums = Tensor::zeros(engine.num_sums(), DType::F64, &Device::Cpu).unwrap();
            window.combine(path, &config, &pool, Some(&sums));
            let before = values_f64(&sums);
            for loss in [f64::NAN, f64::INFINITY] {
                sums.slice_set(&Tensor::new(&[loss, 7.0], &Device::Cpu).unwrap(), 0, 0).unwrap();
                let (combination, _) = window.combine(path, &config, &pool, Some(&sums));
                let gradient = combination.materialize_on(path, engine.geometry()).unwrap();
                assert!(values(gradient.as_tensor()).iter().all(|value| value.is_nan()), "{path:?} {config:?}");
            }
            let changed: Vec<(f64, f64)> = before
                .iter()
                .copied()
                .zip(values_f64(&sums))
                .filter(|(before, after)| before.to_bits() != after.to_bits())
                .collect();
            // Samples, and windows of the host; the seeds have no parameters of their own. Twice, for the next window.
            assert_eq!(changed, [(0.0, 4.0), (0.0, 2.0), (0.0, 4.0), (0.0, 2.0)], "{path:?} {config:?}");
        }
    }
}

#[test]
fn what_f32_may_not_hold_is_found_though_inner_products_are_finite() {
    let rows: [Row<'_>; 2] = [(&[3e38, 1.0], 3, &[(1, 1.0)]), (&[3e38, -1.0], 1, &[])];
    let outcome = Window::of_host(&rows).run(&Passes::Kernel, &AggregationConfig { clip_norm: Some(1.0), ..PCGRAD });
    assert!(outcome.gradient.iter().all(|value| value.is_nan()), "{:?}", outcome.gradient);
    assert_eq!(outcome.sums.all(Field::Skipped, 1), [1.0]);
}

/// Parts by domain: what is not isolated, then the isolated parts of each seed.
fn domains(window: &Window) -> Vec<Vec<usize>> {
    let parts = window.parts();
    let of = |domain: Option<_>| -> Vec<usize> {
        let belongs = |part: &usize| if parts[*part].2 { domain == Some(parts[*part].1) } else { domain.is_none() };
        (0..parts.len()).filter(belongs).collect()
    };
    let owners = window.geometry().owners().to_vec();
    std::iter::once(None).chain(owners.into_iter().map(Some)).map(of).filter(|parts| !parts.is_empty()).collect()
}

/// Norm of these parts of a gradient.
fn norm(window: &Window, gradient: &[f32], parts: &[usize]) -> f64 {
    let all = window.parts();
    let elements = parts.iter().flat_map(|part| all[*part].0.clone());
    elements.map(|at| f64::from(gradient[at]).powi(2)).sum::<f64>().sqrt()
}

/// What a norm that follows from inner products may be off by, as [`combine`](crate::aggregate::GradientEngine::combine)
/// says.
fn slack(window: &Window, outcome: &Outcome, parts: &[usize]) -> f64 {
    let rows = window.rows.len();
    let all = window.parts();
    let coefficients = &outcome.coefficients[if all[parts[0]].2 { rows } else { 0 }..];
    let terms: f64 = window
        .rows
        .iter()
        .zip(coefficients)
        .map(|(row, coefficient)| f64::from(coefficient.abs()) * norm(window, row, parts))
        .sum();
    // Longer than any chain of additions in these windows.
    let additions: f64 = 1000.0;
    let underflow = 1e-44 * (window.layout.num_elements() as f64).sqrt();
    terms * (rows as f64 * f64::from(f32::EPSILON) / 2.0 + (additions * f64::EPSILON / 2.0).sqrt()) + underflow
}

/// Norms and factors of every domain against the gradient that is formed without clipping.
fn check_clipping(window: &Window, config: &AggregationConfig, path: &Passes) {
    let clip_norm = config.clip_norm.unwrap();
    let free = window.run(path, &AggregationConfig { clip_norm: None, ..*config });
    assert!(free.factors.iter().all(|factor| factor.to_bits() == 1.0_f32.to_bits()), "nothing to scale by");
    let clipped = window.run(path, config);
    let told_apart = window.plan(config).tells_owners_apart();
    for parts in domains(window) {
        let unclipped = norm(window, &free.gradient, &parts);
        let slack = if told_apart { slack(window, &free, &parts) } else { 1e-12 * unclipped };
        if !window.parts()[parts[0]].2 {
            let found = clipped.sums.main_square().sqrt();
            assert!((found - unclipped).abs() <= slack, "{path:?}: {found} is not {unclipped}, {slack:e}");
        }
        let limit = clip_norm + slack + 1e-6 * clip_norm;
        let found = norm(window, &clipped.gradient, &parts);
        assert!(found <= limit, "{path:?}: {found} is above {clip_norm}");
        if unclipped + slack < clip_norm {
            for part in &parts {
                let range = window.parts()[*part].0.clone();
                assert_eq!(bits(&free.gradient[range.clone()]), bits(&clipped.gradient[range]), "within its norm");
            }
        }
        if unclipped - slack > clip_norm {
            assert!(found >= clip_norm * (1.0 - 1e-6) * (1.0 - slack / unclipped) - 1e-40, "{found} below {clip_norm}");
        }
    }
    for ((range, ..), factor) in window.parts().into_iter().zip(&clipped.factors) {
        assert!(*factor <= 1.0 && *factor >= 0.0);
        let scaled: Vec<f32> = free.gradient[range.clone()].iter().map(|value| value * factor + 0.0).collect();
        let found: Vec<f32> = clipped.gradient[range].iter().map(|value| value + 0.0).collect();
        assert_eq!(bits(&found), bits(&scaled), "{path:?} with {factor}");
    }
}

proptest! {
    #![proptest_config(cases(120))]

    #[test]
    fn domains_of_any_window_are_clipped_to_their_norm(
        window in windows(true),
        clip_norm in prop_oneof![Just(1e-3), Just(0.3), Just(3.0), Just(1e10)],
    ) {
        prop_assume!(window.is_finite());
        for method in METHODS {
            for path in &PATHS {
                check_clipping(&window, &AggregationConfig { method, clip_norm: Some(clip_norm), ..MEAN }, path);
            }
        }
    }

    #[test]
    fn norms_of_parameters_are_those_of_the_combination(window in windows(false)) {
        for config in [MEAN, PCGRAD] {
            for path in &PATHS {
                let outcome = window.run(path, &config);
                let parts = window.parts();
                let apart = Exact::of(&window, &config).is_some();
                for (slot, owner) in window.geometry().owners().iter().enumerate() {
                    let own: Vec<usize> = (0..parts.len()).filter(|part| parts[*part].1 == *owner).collect();
                    let found = outcome.sums.of(Field::ParameterSquare, slot).sqrt();
                    let expected = norm(&window, &outcome.gradient, &own);
                    let bound = |isolated: bool| {
                        let own: Vec<usize> = own.iter().copied().filter(|part| parts[*part].2 == isolated).collect();
                        if own.is_empty() { 0.0 } else { slack(&window, &outcome, &own) }
                    };
                    let slack = if apart { bound(false) + bound(true) } else { 1e-12 * expected };
                    prop_assert!((found - expected).abs() <= slack, "{:?}: {}, {}", path, found, expected);
                }
            }
        }
    }
}
