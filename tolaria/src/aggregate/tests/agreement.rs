//! Any window against exact arithmetic, and the promises about bits.

use leyline::id::StepIndex;
use proptest::collection::vec;
use proptest::prelude::*;

use super::exact::Exact;
use super::window::{Outcome, Window, attribution, host_layout, windows};
use super::{MEAN, MEASURED, METHODS, PATHS, PCGRAD, cases};
use crate::aggregate::ConflictResolution;
use crate::aggregate::passes::Passes;
use crate::aggregate::sums::Field;
use crate::aggregate::{AggregationConfig, ProjectionOrder};
use crate::cpu::to_f32;
use crate::testing::{bits, random};

/// `(c_0 g_0 + c_1 g_1) + …` in `f32`, written down; no number in a domain that is not finite. Where owners are
/// not told apart for a method, the coefficients are the fractions.
fn in_order(window: &Window, config: &AggregationConfig, outcome: &Outcome) -> Vec<f32> {
    let (rows, plan) = (window.rows.len(), window.plan(config));
    let fractions: Vec<f32> = plan.arguments()[..rows].iter().copied().map(to_f32).collect();
    let element = |(at, isolated): (usize, bool)| {
        let resolved = plan.tells_owners_apart() && config.method != ConflictResolution::Mean && !isolated;
        let coefficients = if resolved { &outcome.coefficients[..rows] } else { &fractions };
        let products = window.rows.iter().zip(coefficients).map(|(row, coefficient)| row[at] * coefficient);
        products.reduce(|sum, product| sum + product).unwrap()
    };
    let parts = window.parts().into_iter().zip(&outcome.factors);
    let factors = parts.flat_map(|((range, ..), factor)| range.map(move |_| factor));
    window.is_isolated().into_iter().enumerate().map(element).zip(factors).map(|(sum, factor)| sum * factor).collect()
}

/// Equal in every bit, or, where candle's operations add a zero to each product, beside the sign of zeros.
#[track_caller]
fn assert_same(path: &Passes, found: &[f32], expected: &[f32]) {
    let positive = |values: &[f32]| match path {
        Passes::Composed => bits(&values.iter().map(|value| value + 0.0).collect::<Vec<_>>()),
        _ => bits(values),
    };
    let (found, expected) = (positive(found), positive(expected));
    let nan = |bits: u32| f32::from_bits(bits).is_nan();
    for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
        let same = found == expected || (nan(*found) && nan(*expected));
        assert!(same, "{path:?}, element {at}: {} is not {}", f32::from_bits(*found), f32::from_bits(*expected));
    }
}

/// All elements are within the bound of [`combine`](crate::aggregate::GradientEngine::combine) and `slack` of those
/// that these weights give.
#[track_caller]
fn assert_combined(found: &[f32], exact: &Exact, weights: &[f64], slack: f64, path: &Passes) {
    for (at, found) in found.iter().enumerate() {
        let (expected, bound) = exact.combination(weights, at);
        let error = (f64::from(*found) - expected).abs();
        assert!(error <= bound + slack, "{path:?}, element {at}: {found} is {error:e} from {expected:e}, {bound:e}");
    }
}

/// Every path and method against exact arithmetic with the weights that are reported.
fn check_methods(window: &Window) {
    for method in METHODS {
        let config = AggregationConfig { method, measure_conflicts: true, ..MEAN };
        for path in &PATHS {
            let outcome = window.run(path, &config);
            assert_same(path, &outcome.gradient, &in_order(window, &config, &outcome));
            let Some(exact) = Exact::of(window, &config).filter(|_| window.is_finite()) else { continue };
            let weights: Vec<f64> = outcome.sums.all(Field::Resolved, exact.owners.len());
            assert!(outcome.gradient.iter().all(|value| value.is_finite()), "{method:?} on {path:?}: {weights:?}");
            assert_combined(&outcome.gradient, &exact, &weights, 0.0, path);
        }
    }
}

/// `PCGrad` against the paper's algorithm over whole vectors.
fn check_pcgrad(window: &Window) -> Option<u64> {
    let exact = Exact::of(window, &PCGRAD).filter(|_| window.counts())?;
    let conflicts = exact.conflicts_of();
    let (reference, slack) = exact.pcgrad();
    let total = conflicts.iter().sum::<usize>() as u64;
    if exact.pairs().all(|(i, j)| exact.inner(i, j) >= 0.0 || exact.conflicts(i, j)) {
        assert_eq!(reference.conflicting_pairs, total);
    }
    for path in &PATHS {
        let outcome = window.run(path, &PCGRAD);
        let found = outcome.sums.all(Field::Conflicts, conflicts.len());
        assert_eq!(found, conflicts.iter().map(|count| *count as f64).collect::<Vec<_>>(), "{path:?}");
        assert_eq!(outcome.sums.conflicts().to_bits(), (total as f64).to_bits(), "{path:?}");
        if window.is_finite() {
            assert_combined(&outcome.gradient, &exact, &reference.weights, slack, path);
        }
        let isolated = window.is_isolated();
        for (at, found) in outcome.gradient.iter().enumerate().filter(|(at, _)| !isolated[*at]) {
            let (_, bound) = exact.combination(&reference.weights, at);
            let error = (f64::from(*found) - reference.gradient[at]).abs();
            assert!(error <= bound + slack, "{path:?}, element {at}: {found} is {error:e} from the paper's, {slack:e}");
        }
    }
    Some(total)
}

proptest! {
    #![proptest_config(cases(150))]

    #[test]
    fn any_window_is_the_combination_of_its_owners_with_the_weights_that_are_reported(window in windows(false)) {
        check_methods(&window);
    }

    #[test]
    fn windows_of_any_size_of_numbers_are_combined_alike(window in windows(true)) {
        check_methods(&window);
    }

    #[test]
    fn any_window_is_resolved_as_the_paper_does(window in windows(false)) {
        check_pcgrad(&window);
    }

    #[test]
    fn windows_of_any_size_of_numbers_are_resolved_as_the_paper_does(window in windows(true)) {
        check_pcgrad(&window);
    }

    #[test]
    fn without_a_conflict_any_window_is_the_plain_gradient_bit_for_bit(window in windows(true), positive in any::<bool>()) {
        let mut window = window;
        if positive {
            window.rows.iter_mut().flatten().for_each(|value| *value = value.abs());
        }
        for path in &PATHS {
            let (plain, resolved) = (window.run(path, &MEAN), window.run(path, &PCGRAD));
            prop_assert!(!positive || resolved.sums.conflicts() <= 0.0);
            if resolved.sums.conflicts() <= 0.0 {
                assert_same(path, &plain.gradient, &resolved.gradient);
                if window.is_finite() {
                    prop_assert_eq!(bits(&plain.gradient), bits(&resolved.gradient), "{:?}", path);
                }
            }
        }
    }

    #[test]
    fn measuring_does_not_change_a_bit_of_the_mean(window in windows(true)) {
        for path in &PATHS {
            let (plain, measured) = (window.run(path, &MEAN), window.run(path, &MEASURED));
            assert_same(path, &plain.gradient, &measured.gradient);
            prop_assert!(plain.sums.of_owners(window.geometry().owners().len()).iter().all(|sum| *sum <= 0.0));
            let apart = window.plan(&MEASURED).tells_owners_apart();
            let windows: f64 = measured.sums.all(Field::Windows, window.geometry().owners().len()).iter().sum();
            prop_assert_eq!(windows > 0.0, apart && window.counts());
        }
    }

    #[test]
    fn the_same_seed_and_step_give_the_same_bits(window in windows(true)) {
        for path in &PATHS {
            let (first, again) = (window.run(path, &PCGRAD), window.run(path, &PCGRAD));
            prop_assert_eq!(bits(&first.gradient), bits(&again.gradient));
            let words = |values: &[f64]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
            prop_assert_eq!(words(&first.sums.values), words(&again.sums.values));
        }
    }

    #[test]
    fn copies_of_one_gradient_are_that_gradient(
        row in vec(-1.0..1.0_f32, 1..40),
        scale in prop_oneof![Just(1.0_f32), Just(1e18), Just(1e-25)],
        microbatches in vec((1..9_usize, vec(0.0..0.2_f64, 5)), 2..12),
    ) {
        let row: Vec<f32> = row.iter().map(|value| value * scale).collect();
        let microbatches: Vec<_> = microbatches
            .iter()
            .map(|(num_samples, weights)| (*num_samples, attribution(&(1..).zip(weights.iter().copied()).collect::<Vec<_>>())))
            .collect();
        let order = ProjectionOrder { seed: 1, step: StepIndex(7) };
        let layout = host_layout(row.len());
        let rows = vec![row.clone(); microbatches.len()];
        let mut window = Window { layout, rows, microbatches, order, frozen: Vec::new() };
        let terms = (window.rows.len() + 1) as f64 * f64::from(f32::EPSILON) / 2.0;
        for path in &PATHS {
            let outcome = window.run(path, &PCGRAD);
            prop_assert_eq!(outcome.sums.conflicts().to_bits(), 0);
            for (found, expected) in outcome.gradient.iter().zip(&row) {
                let error = f64::from((found - expected).abs());
                prop_assert!(error <= 1.000_001 * terms * f64::from(expected.abs()), "{} is not {}", found, expected);
            }
        }
        // Halves and quarters are exact, and so is their sum.
        for num_samples in [&[3, 3][..], &[2, 2, 2, 2], &[2, 1, 1], &[1, 1, 2]] {
            window.rows = vec![row.clone(); num_samples.len()];
            let attributions = window.microbatches.iter().map(|(_, attribution)| attribution).cycle();
            let microbatches = num_samples.iter().zip(attributions).map(|(samples, to)| (*samples, to.clone())).collect();
            let window = Window { microbatches, ..window.clone() };
            for path in &PATHS {
                prop_assert_eq!(bits(&window.run(path, &PCGRAD).gradient), bits(&row), "{:?}", num_samples);
            }
        }
    }
}

#[test]
fn windows_with_conflicts_and_without_are_among_the_cases() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;

    let mut runner = TestRunner::new(cases(150));
    let found: Vec<Option<u64>> =
        (0..150).map(|_| check_pcgrad(&windows(true).new_tree(&mut runner).unwrap().current())).collect();
    let counts = [None, Some(false), Some(true)]
        .map(|kind| found.iter().filter(|found| found.map(|conflicts| conflicts > 0) == kind).count());
    assert!(counts.iter().all(|count| *count >= 10), "not told apart, peaceful, in conflict: {counts:?}");
}

#[test]
fn the_order_of_projections_follows_from_seed_and_step() {
    let rows: Vec<Vec<f32>> = (0..4).map(|k| random(3, 40 + k)).collect();
    let weights: [&[(u32, f64)]; 4] = [&[(1, 1.0)], &[(2, 1.0)], &[(3, 1.0)], &[]];
    let rows: Vec<_> = rows.iter().zip(weights).map(|(row, w)| (row.as_slice(), 1, w)).collect();
    let of = |path: &Passes, seed, step| {
        let order = ProjectionOrder { seed, step: StepIndex(step) };
        bits(&Window { order, ..Window::of_host(&rows) }.run(path, &PCGRAD).gradient)
    };
    for path in &PATHS {
        let results: Vec<_> = (0..8).map(|step| of(path, 1, step)).collect();
        assert_eq!(results, (0..8).map(|step| of(path, 1, step)).collect::<Vec<_>>());
        assert!(results.iter().any(|result| *result != results[0]), "the order has no effect on this window");
    }
}
