//! Windows whose result is known, and what is read from the device.

use candle_core::{DType, Device, Tensor};

use super::window::{Row, Window, host_layout};
use super::{MEAN, MEASURED, METHODS, PATHS, PCGRAD};
use crate::aggregate::AggregationConfig;
use crate::aggregate::passes::Passes;
use crate::aggregate::sums::Field;
use crate::grad::GradientBufferPool;
use crate::host_read::HostReads;
use crate::testing::{HOST, bits, layout, seed, values, values_f64};

const SLOTS: usize = 6;

/// Both paths give exactly `expected`, with `conflicting` ordered pairs; `None` when owners are not told apart.
#[track_caller]
fn check(rows: &[Row<'_>], conflicting: Option<u32>, expected: &[f32]) {
    let window = Window::of_host(rows);
    assert_eq!(window.plan(&PCGRAD).tells_owners_apart(), conflicting.is_some());
    for path in &PATHS {
        let outcome = window.run(path, &PCGRAD);
        assert_eq!(outcome.gradient, expected, "{path:?}");
        let found = outcome.sums.conflicts();
        assert_eq!(found.to_bits(), f64::from(conflicting.unwrap_or(0)).to_bits(), "{path:?}: {found} conflicts");
        if conflicting.is_none() {
            assert!(outcome.sums.of_owners(SLOTS).iter().all(|sum| sum.to_bits() == 0), "{path:?}");
        }
    }
}

#[test]
fn one_microbatch_is_its_own_gradient_bit_for_bit() {
    let elements = [0.1, -0.0, 3e38];
    for config in METHODS.map(|method| AggregationConfig { method, ..MEASURED }) {
        for path in &PATHS {
            let outcome = Window::of_host(&[(&elements, 5, &[(1, 0.5)])]).run(path, &config);
            assert_eq!(bits(&outcome.gradient), bits(&elements), "{config:?} on {path:?}");
            assert!(outcome.sums.of_owners(SLOTS).iter().all(|sum| sum.to_bits() == 0));
        }
    }
}

#[test]
fn the_plain_gradient_is_the_mean_over_samples() {
    let window = Window::of_host(&[(&[4.0, 0.0], 1, &[]), (&[0.0, 8.0], 2, &[(1, 1.0)]), (&[4.0, -4.0], 1, &[])]);
    for path in &PATHS {
        let outcome = window.run(path, &MEAN);
        assert_eq!(outcome.gradient, [2.0, 3.0]);
        assert_eq!(outcome.reads.total(), 0);
        assert!(outcome.sums.of_owners(SLOTS).iter().all(|sum| sum.to_bits() == 0));
        assert!((outcome.sums.main_square() - 13.0).abs() < 1e-12);
    }
    assert!((window.plan(&MEAN).host_share() - 0.5).abs() < 1e-12);
}

#[test]
fn one_owner_needs_no_inner_products_and_has_the_bits_of_the_mean() {
    for weights in [&[][..], &[(2, 1.0)], &[(9, 1.0)]] {
        let rows: [Row<'_>; 3] = [(&[1.1, 0.3], 1, weights), (&[-3.0, 1.0], 1, weights), (&[0.7, -0.1], 2, weights)];
        let window = Window::of_host(&rows);
        assert!(!window.plan(&PCGRAD).tells_owners_apart());
        for config in METHODS.map(|method| AggregationConfig { method, ..MEASURED }) {
            for path in &PATHS {
                let (plain, outcome) = (window.run(path, &MEAN), window.run(path, &config));
                assert_eq!(bits(&plain.gradient), bits(&outcome.gradient), "{config:?} on {path:?}");
                assert_eq!((plain.sums, outcome.reads.total()), (outcome.sums, 0));
            }
        }
    }
    check(&[(&[1.0, 0.0], 1, &[(3, 1.0)]), (&[-3.0, 1.0], 1, &[(3, 1.0)])], None, &[-1.0, 0.5]);
}

#[test]
fn only_the_composed_path_reads_and_only_the_inner_products_once() {
    let window = Window::of_host(&[(&[1.0, 0.0], 1, &[(1, 1.0)]), (&[-1.0, 1.0], 1, &[])]);
    let configs = METHODS.map(|method| AggregationConfig { method, clip_norm: Some(0.1), ..MEASURED });
    for config in configs {
        assert_eq!(window.run(&Passes::Kernel, &config).reads.total(), 0);
        let reads = window.run(&Passes::Composed, &config).reads;
        assert_eq!(reads.counts().iter().collect::<Vec<_>>(), [(&"gradient inner products", &1)], "{config:?}");
    }
    let plain = AggregationConfig { clip_norm: Some(0.1), ..MEAN };
    assert_eq!(window.run(&Passes::Composed, &plain).reads.total(), 0);
}

#[test]
fn opposed_gradients_cancel() {
    check(&[(&[1.0, 0.0], 1, &[(1, 1.0)]), (&[-1.0, 0.0], 1, &[])], Some(2), &[0.0, 0.0]);
    check(&[(&[4.0, 0.0], 1, &[(1, 1.0)]), (&[-1.0, 0.0], 1, &[])], Some(2), &[0.0, 0.0]);
}

#[test]
fn a_conflict_is_projected_onto_the_originals() {
    // Halves (1, 0) and (-1, 1): the first loses (1/2, -1/2), the second (-1, 0); (1/2, 1/2) + (0, 1).
    check(&[(&[2.0, 0.0], 1, &[(1, 1.0)]), (&[-2.0, 2.0], 1, &[])], Some(2), &[0.5, 1.5]);
}

#[test]
fn copies_of_one_gradient_never_conflict() {
    let row = [0.3_f32, -0.7, 1e-3];
    let rows: [Row<'_>; 4] =
        [(&row, 1, &[(1, 1.0)]), (&row, 1, &[(2, 0.5)]), (&row, 1, &[(3, 1.0)]), (&row, 1, &[(1, 0.2), (2, 0.3)])];
    check(&rows, Some(0), &row);
}

#[test]
fn zero_gradients_conflict_with_nothing() {
    check(&[(&[0.0, 0.0], 1, &[(1, 1.0)]), (&[-1.0, 2.0], 1, &[])], Some(0), &[-0.5, 1.0]);
    check(&[(&[0.0, 0.0], 1, &[(1, 1.0)]), (&[0.0, 0.0], 1, &[])], Some(0), &[0.0, 0.0]);
}

#[test]
fn a_layout_without_an_element_has_nothing_to_combine() {
    for config in METHODS.map(|method| AggregationConfig { method, clip_norm: Some(1.0), ..MEASURED }) {
        for path in &PATHS {
            for rows in [&[(&[][..], 1, &[(1, 1.0)][..]), (&[], 1, &[])][..], &[(&[], 1, &[])]] {
                let outcome = Window::new(host_layout(0), rows).run(path, &config);
                assert!(outcome.gradient.is_empty() && outcome.factors.is_empty());
                assert!(outcome.sums.main_square() <= 0.0 && outcome.sums.conflicts() <= 0.0);
            }
        }
    }
}

/// Both paths find no conflict and give the plain gradient.
#[track_caller]
fn check_plain(rows: &[Row<'_>]) {
    let window = Window::of_host(rows);
    for path in &PATHS {
        let (plain, resolved) = (window.run(path, &MEAN), window.run(path, &PCGRAD));
        assert_eq!(resolved.sums.conflicts().to_bits(), 0, "{path:?}");
        assert_eq!(bits(&plain.gradient), bits(&resolved.gradient), "{path:?}");
        assert!(resolved.gradient.iter().all(|value| value.is_finite()));
    }
}

#[test]
fn what_rounding_leaves_of_a_cancelled_gradient_conflicts_with_nothing() {
    // Thrice 0.1 and 0.7, rounded, against three times their opposites.
    let third = [0.1_f32, 0.7];
    let thrice = third.map(|x| x * 3.0);
    let opposite = third.map(|x| -x);
    for other in [[0.3, -0.6], [-0.3, 0.6]] {
        check_plain(&[(&thrice, 1, &[(1, 1.0)]), (&opposite, 3, &[(1, 1.0)]), (&other, 1, &[])]);
    }
}

#[test]
fn a_vanishing_gradient_conflicts_with_nothing() {
    let tiny = [-1e-38_f32, 1e-38];
    check_plain(&[(&[1e38, 0.0], 1, &[(1, 1.0)]), (&tiny, 2, &[])]);
    check_plain(&[(&[1e-3, 0.0], 1, &[(1, 1.0)]), (&tiny, 2, &[])]);
}

#[test]
fn what_rounding_leaves_of_an_inner_product_is_no_conflict() {
    for case in 1..100 {
        // What seed 1 gets of the first two and of the third cancels, all but rounding, where seed 2 is.
        let (one, other) = (f64::from(case) / 701.0, f64::from(case) / 1009.0);
        let rows: [Row<'_>; 4] = [
            (&[1.0, 0.0], 1, &[(1, one)]),
            (&[1.0, 0.0], 1, &[(1, other)]),
            (&[-1.0, 1.0], 1, &[(1, one + other)]),
            (&[1.0, 0.0], 3, &[(2, 1.0)]),
        ];
        for path in &PATHS {
            let sums = Window::of_host(&rows).run(path, &MEASURED).sums;
            assert_eq!(sums.all(Field::Conflicts, 3)[1..], [0.0, 0.0], "{path:?}, case {case}");
        }
    }
}

#[test]
fn owners_of_very_different_size_still_conflict() {
    for (small, large) in [(1e-20_f32, 1.0_f32), (1e-14, 1e14), (1e-3, 1e3)] {
        let rows: [Row<'_>; 3] = [
            (&[large, 0.0, large], 1, &[(1, 1.0)]),
            (&[-small, small, 0.0], 2, &[]),
            (&[small, -small, small], 1, &[(2, 1.0)]),
        ];
        for path in &PATHS {
            // The host is opposed to both seeds, which agree.
            let outcome = Window::of_host(&rows).run(path, &PCGRAD);
            assert_eq!(outcome.sums.all(Field::Conflicts, 3), [2.0, 1.0, 1.0], "{path:?}, {small:e}");
        }
    }
}

#[test]
fn a_window_that_is_not_finite_is_no_number_whatever_the_method() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let rows: [Row<'_>; 3] =
            [(&[bad, 1.0], 1, &[(1, 1.0)]), (&[-1.0, -1.0], 1, &[(2, 0.5)]), (&[1.0, -9.0], 1, &[])];
        for config in METHODS.map(|method| AggregationConfig { method, clip_norm: Some(1.0), ..MEASURED }) {
            for path in &PATHS {
                let outcome = Window::of_host(&rows).run(path, &config);
                assert!(outcome.gradient.iter().all(|value| value.is_nan()), "{config:?} on {path:?}");
                assert_eq!((outcome.sums.of(Field::Skipped, 0), outcome.sums.skipped_samples()), (1.0, 3.0));
                assert!(outcome.sums.of_owners(6).iter().all(|sum| sum.to_bits() == 0), "{config:?} on {path:?}");
            }
        }
    }
}

#[test]
fn a_window_over_isolated_parts_only_has_no_conflicts() {
    let layout = layout(&[("a", 2, seed(1), true)]);
    let window = Window::new(layout, &[(&[1.0, 0.0], 1, &[(1, 1.0)]), (&[-3.0, 0.0], 1, &[])]);
    for config in METHODS.map(|method| AggregationConfig { method, ..MEASURED }) {
        for path in &PATHS {
            let outcome = window.run(path, &config);
            assert_eq!(outcome.gradient, [-1.0, 0.0]);
            assert_eq!(outcome.sums.conflicts().to_bits(), 0);
            assert_eq!(outcome.sums.all(Field::NormSquare, 2), [0.0; 2]);
        }
    }
}

#[test]
fn isolated_parts_get_the_plain_gradient_and_do_not_conflict() {
    let layout = layout(&[("a", 1, HOST, false), ("b", 2, seed(1), true)]);
    // The isolated elements point against each other, the others do not; and the other way round.
    let peaceful: [Row<'_>; 2] = [(&[1.0, 5.0, 2.0], 1, &[(1, 1.0)]), (&[1.0, -5.0, -4.0], 1, &[])];
    let opposed: [Row<'_>; 2] = [(&[1.0, 5.0, 2.0], 1, &[(1, 1.0)]), (&[-1.0, 5.0, -4.0], 1, &[])];
    for path in &PATHS {
        for (rows, gradient, conflicts) in [(&peaceful, [1.0, 0.0, -1.0], 0.0), (&opposed, [0.0, 5.0, -1.0], 2.0)] {
            let outcome = Window::new(layout.clone(), rows).run(path, &PCGRAD);
            assert_eq!((outcome.gradient, outcome.sums.conflicts()), (gradient.to_vec(), conflicts), "{path:?}");
        }
    }
}

#[test]
fn a_window_is_combined_with_and_without_arguments_and_sums() {
    let conflicting: &[(u32, f64)] = &[(1, 1.0)];
    for (weights, expected) in [(conflicting, [0.5_f32, 1.5]), (&[], [0.0, 1.0])] {
        let window = Window::of_host(&[(&[2.0, 0.0], 1, weights), (&[-2.0, 2.0], 1, &[])]);
        let (plan, mut engine) = (window.plan(&PCGRAD), window.engine(&PCGRAD));
        let given = Tensor::new(plan.arguments(), &Device::Cpu).unwrap();
        let sums = Tensor::zeros(engine.num_sums(), DType::F64, &Device::Cpu).unwrap();
        for (arguments, sums) in [(None, None), (Some(&given), None), (Some(&given), Some(&sums))] {
            let (pool, mut reads) = (GradientBufferPool::new(), HostReads::default());
            let rows = window.leases(&pool, DType::F32);
            let combination = engine.combine(rows, &plan, arguments, sums, &mut reads).unwrap();
            let gradient = combination.materialize(engine.geometry()).unwrap();
            assert_eq!(values(gradient.as_tensor()), expected);
            assert_eq!((reads.total(), pool.stats().outstanding), (0, 1));
        }
    }
}

#[test]
fn sums_grow_from_window_to_window() {
    let window = Window::of_host(&[(&[2.0, 0.0], 1, &[(1, 1.0)]), (&[-2.0, 2.0], 1, &[])]);
    for path in &PATHS {
        let sums = Tensor::zeros(window.engine(&PCGRAD).num_sums(), DType::F64, &Device::Cpu).unwrap();
        let pool = GradientBufferPool::new();
        for windows in 1..4 {
            window.combine(path, &PCGRAD, &pool, Some(&sums));
            let once = window.run(path, &PCGRAD).sums.values;
            let expected: Vec<f64> = once.iter().map(|value| value * f64::from(windows)).collect();
            values_f64(&sums).iter().zip(expected).for_each(|(found, expected)| {
                assert!((found - expected).abs() <= 1e-12 * expected.abs(), "{path:?}: {found}, expected {expected}");
            });
        }
    }
}

#[test]
fn other_float_types_take_the_composed_path() {
    let window = Window::of_host(&[(&[1.0, 0.0], 1, &[(1, 1.0)]), (&[-1.0, 0.0], 1, &[])]);
    let (pool, mut reads) = (GradientBufferPool::new(), HostReads::default());
    let (plan, mut engine) = (window.plan(&PCGRAD), window.engine(&PCGRAD));
    let combination = engine.combine(window.leases(&pool, DType::F64), &plan, None, None, &mut reads).unwrap();
    let gradient = combination.materialize(engine.geometry()).unwrap();
    assert!(values_f64(gradient.as_tensor()).iter().all(|value| value.abs() < 1e-15));
    assert_eq!(reads.counts().iter().collect::<Vec<_>>(), [(&"gradient inner products", &1)]);
}

#[test]
fn without_a_conflict_gradients_of_other_float_types_are_the_plain_ones_bit_for_bit() {
    // The parts of six owners, added up again, are a rounding away from the fraction.
    let spread: &[(u32, f64)] = &[(1, 0.09), (2, 0.13), (3, 0.15), (4, 0.03), (5, 0.02)];
    let rows: [Row<'_>; 3] = [(&[0.1, 0.7], 1, spread), (&[0.2, 0.3], 1, &[(1, 1.0)]), (&[0.9, 0.4], 1, spread)];
    let window = Window::of_host(&rows);
    for dtype in [DType::F64, DType::BF16] {
        let gradient = |config: &AggregationConfig| {
            let (pool, mut reads) = (GradientBufferPool::new(), HostReads::default());
            let (plan, mut engine) = (window.plan(config), window.engine(config));
            let combination = engine.combine(window.leases(&pool, dtype), &plan, None, None, &mut reads).unwrap();
            let gradient = combination.materialize(engine.geometry()).unwrap();
            values_f64(&gradient.as_tensor().to_dtype(DType::F64).unwrap())
        };
        let words = |config| gradient(config).iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert_eq!(words(&MEAN), words(&PCGRAD), "{dtype:?}");
    }
}
