//! What a window adds to the sums of an epoch.

use leyline::layout::Owner;
use proptest::prelude::*;

use super::exact::Exact;
use super::window::{Sums, Window, alpha, windows};
use super::{MEASURED, METHODS, PATHS, PCGRAD, cases};
use crate::aggregate::AggregationConfig;
use crate::aggregate::sums::Field;
use crate::testing::{HOST, layout, seed};

fn close(found: f64, expected: f64, tolerance: f64) -> bool {
    (found - expected).abs() <= tolerance
}

/// Counts, weights, shares, alphas and splits.
fn check_shares(sums: &Sums, exact: &Exact, owners: &[Owner]) {
    let slots = owners.len();
    let participants = exact.num_participants();
    let total = |field| sums.all(field, slots).iter().sum::<f64>();
    assert!(close(total(Field::Windows), participants as f64, 0.0));
    assert!(close(total(Field::Weight), 1.0, 1e-12), "weights {:?}", sums.all(Field::Weight, slots));
    assert!(close(total(Field::Share), 1.0, 1e-12), "shares {:?}", sums.all(Field::Share, slots));
    assert!(close(total(Field::Pairs), (participants * (participants - 1)) as f64, 0.0));
    assert!(close(total(Field::Conflicts), sums.conflicts(), 0.0));
    assert!(close(total(Field::Split), 1.0, 1e-12), "splits {:?}", sums.all(Field::Split, slots));
    let of_seeds: f64 = (1..slots).map(|slot| exact.shares[slot].iter().sum::<f64>()).sum();
    let norms: f64 = (0..slots).map(|slot| exact.norm(slot)).sum();
    let scales: f64 = exact.scales.iter().sum();
    for (slot, owner) in owners.iter().enumerate() {
        let weight: f64 = exact.shares[slot].iter().sum();
        let takes_part = exact.takes_part(slot);
        assert!(close(sums.of(Field::Windows, slot), f64::from(u8::from(takes_part)), 0.0));
        assert!(close(sums.of(Field::Weight, slot), weight, 1e-12));
        let (alpha, split) = match owner {
            Owner::Seed(id) if takes_part => (alpha(*id).unwrap_or(0.0), weight / of_seeds),
            _ => (0.0, 0.0),
        };
        assert!(close(sums.of(Field::Alpha, slot), alpha, 0.0));
        assert!(close(sums.of(Field::Split, slot), split, 1e-12));
        // A square may be off by 1e-14 of the scale's, which the root of a cancelled one magnifies.
        if takes_part && norms > 1e-3 * scales {
            assert!(close(sums.of(Field::Share, slot), exact.norm(slot) / norms, 1e-3), "share of {owner:?}");
        }
        if !takes_part {
            assert!(sums.of(Field::Share, slot) <= 0.0 && sums.of(Field::Resolved, slot) <= 0.0);
        }
    }
}

/// Squared norms, of the whole and of the parts.
fn check_norms(sums: &Sums, exact: &Exact, window: &Window) {
    let parts = window.parts();
    for (slot, scale) in exact.scales.iter().enumerate() {
        let square = sums.of(Field::NormSquare, slot);
        let tolerance = 1e-12 * scale * scale;
        assert!(close(square, exact.norm(slot).powi(2), tolerance), "{square} of slot {slot}");
        let layers: Vec<f64> = (0..parts.len()).map(|part| sums.layer(slot, part)).collect();
        let sum: f64 = layers.iter().sum();
        assert!(close(sum, square, 1e-9 * square + tolerance), "{layers:?} are not {square}");
        for ((range, _, isolated), layer) in parts.iter().zip(layers) {
            let own = &exact.owners[slot][range.clone()];
            let expected: f64 = own.iter().map(|value| value * value).sum();
            assert!(close(layer, expected, tolerance), "{layer}, expected {expected}");
            assert!(!isolated || layer <= 0.0);
        }
    }
}

/// Cosines of pairs, each in one place, and how many there are in the other.
fn check_cosines(sums: &Sums, exact: &Exact) {
    let slots = exact.owners.len();
    for i in 0..slots {
        for j in i + 1..slots {
            let cosine = sums.values[sums.layout.cosine(i, j)];
            let count = sums.values[sums.layout.cosine(j, i)];
            let both = !exact.is_idle[i] && !exact.is_idle[j];
            assert!(close(count, f64::from(u8::from(both)), 0.0), "cosines of {i} and {j}");
            assert!((-1.0..=1.0).contains(&cosine));
            if both {
                let norms = exact.norm(i) * exact.norm(j);
                let condition = (exact.scales[i] * exact.scales[j] / norms).powi(2);
                let expected = exact.inner(i, j) / norms;
                let tolerance = (1e-14 * condition).clamp(1e-6, 2.0);
                assert!(close(cosine, expected, tolerance), "cosine {cosine}, expected {expected}");
            } else {
                assert!(cosine.to_bits() == 0);
            }
        }
        assert!(sums.values[sums.layout.cosine(i, i)].to_bits() == 0);
    }
}

fn check_sums(window: &Window) {
    for config in METHODS.map(|method| AggregationConfig { method, ..MEASURED }) {
        let Some(exact) = Exact::of(window, &config) else { continue };
        for path in &PATHS {
            let sums = window.run(path, &config).sums;
            check_shares(&sums, &exact, window.geometry().owners());
            check_norms(&sums, &exact, window);
            check_cosines(&sums, &exact);
            let conflicts: Vec<f64> = exact.conflicts_of().into_iter().map(|count| count as f64).collect();
            assert_eq!(sums.all(Field::Conflicts, conflicts.len()), conflicts, "{config:?} on {path:?}");
        }
    }
}

proptest! {
    #![proptest_config(cases(120))]

    #[test]
    fn sums_of_any_window_are_those_of_its_owners(window in windows(false)) {
        check_sums(&window);
    }

    #[test]
    fn sums_of_windows_of_any_size_of_numbers_are_those_of_their_owners(window in windows(true)) {
        prop_assume!(window.is_finite());
        check_sums(&window);
    }

    #[test]
    fn a_window_that_is_not_finite_adds_nothing_but_that_it_was_skipped(window in windows(false), at in any::<prop::sample::Index>()) {
        let isolated = window.is_isolated();
        let free: Vec<usize> = (0..isolated.len()).filter(|at| !isolated[*at]).collect();
        if free.is_empty() {
            return Ok(());
        }
        let mut bad = window.clone();
        bad.rows[0][*at.get(&free)] = f32::NAN;
        let num_samples: usize = window.microbatches.iter().map(|(num_samples, _)| num_samples).sum();
        for config in [PCGRAD, MEASURED] {
            for path in &PATHS {
                let sums = bad.run(path, &config).sums;
                prop_assert!(sums.of_owners(window.geometry().owners().len()).iter().all(|sum| sum.to_bits() == 0));
                prop_assert_eq!((sums.of(Field::Skipped, 0), sums.main_square()), (1.0, 0.0));
                prop_assert!(close(sums.skipped_samples(), num_samples as f64, 0.0));
            }
        }
    }
}

#[test]
fn no_step_is_left_out_for_a_host_that_stays_as_it_is() {
    let layout = layout(&[("a", 1, HOST, false), ("b", 1, seed(4), false)]);
    let window = Window::new(layout, &[(&[f32::INFINITY, 3.0], 2, &[(4, 1.0)])]);
    for (frozen, skipped, square) in [(vec![HOST], 0.0, 9.0), (vec![], 1.0, 0.0)] {
        let window = Window { frozen, ..window.clone() };
        for path in &PATHS {
            let sums = window.run(path, &PCGRAD).sums;
            assert_eq!(sums.all(Field::Skipped, 2), [skipped; 2], "{path:?}");
            assert_eq!((sums.main_square(), sums.skipped_samples()), (square, 2.0 * skipped), "{path:?}");
            assert_eq!(sums.all(Field::ParameterSquare, 2), [0.0, square], "{path:?}");
        }
    }
}

#[test]
fn owners_are_reported_with_weight_norm_and_share() {
    let layout = layout(&[("a", 2, HOST, false), ("b", 0, seed(4), false)]);
    let window = Window::new(layout, &[(&[6.0, 0.0], 1, &[(4, 1.0)]), (&[0.0, 4.0], 3, &[])]);
    let expected: [(Field, [f64; 2]); 11] = [
        (Field::Windows, [1.0, 1.0]),
        (Field::Weight, [0.75, 0.25]),
        (Field::NormSquare, [9.0, 2.25]),
        (Field::Share, [2.0 / 3.0, 1.0 / 3.0]),
        (Field::Conflicts, [0.0, 0.0]),
        (Field::Pairs, [1.0, 1.0]),
        (Field::Resolved, [1.0, 1.0]),
        (Field::Alpha, [0.0, 0.5]),
        (Field::Split, [0.0, 1.0]),
        (Field::ParameterSquare, [11.25, 0.0]),
        (Field::Healthy, [1.0, 0.0]),
    ];
    for path in &PATHS {
        for config in [PCGRAD, MEASURED] {
            let sums = window.run(path, &config).sums;
            for (field, expected) in expected {
                let found = sums.all(field, 2);
                let is_close = found.iter().zip(expected).all(|(found, expected)| close(*found, expected, 1e-12));
                assert!(is_close, "{field:?} {found:?} on {path:?}");
            }
            let [above, below] = [sums.layout.cosine(0, 1), sums.layout.cosine(1, 0)];
            assert_eq!((sums.values[above], sums.values[below]), (0.0, 1.0));
            assert_eq!((sums.layer(0, 0), sums.layer(1, 0)), (9.0, 2.25));
        }
    }
}
