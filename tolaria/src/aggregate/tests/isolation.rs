//! What a seed's own loss trains touches nobody else.

use leyline::layout::Owner;
use proptest::prelude::*;

use super::exact::Exact;
use super::window::{OF_ALL_WINDOWS, Window, layout_with_shadows, windows};
use super::{MEAN, METHODS, PATHS, PCGRAD, cases};
use crate::aggregate::AggregationConfig;
use crate::aggregate::sums::Field;
use crate::grad::GradientBufferPool;
use crate::optim::{Optimizer, OptimizerConfig};
use crate::testing::{HOST, bits, flat, parameters, random, seed};

/// A window with shadows of seeds 1 and 3, in which seed 2 and the host conflict.
fn example() -> Window {
    let layout = layout_with_shadows();
    let rows: Vec<Vec<f32>> = (0..3).map(|k| random(9, 70 + k)).collect();
    let opposite: Vec<f32> = rows[0].iter().zip(&rows[1]).map(|(a, b)| 0.1 * b - a).collect();
    Window::new(layout, &[(&rows[0], 2, &[(2, 0.9)]), (&opposite, 1, &[]), (&rows[2], 1, &[(1, 0.5), (3, 0.5)])])
}

#[test]
fn what_is_frozen_counts_neither_where_others_are_clipped_nor_where_they_are_compared() {
    for (owner, own) in [(HOST, [0, 1, 2, 8].as_slice()), (seed(2), &[3, 4])] {
        let with = |factor: f32| {
            let mut window = Window { frozen: vec![owner], ..example() };
            window.rows.iter_mut().for_each(|row| own.iter().for_each(|place| row[*place] *= factor));
            window
        };
        for method in METHODS {
            let config = AggregationConfig { method, clip_norm: Some(0.5), ..MEAN };
            for path in &PATHS {
                let nothing = with(0.0).run(path, &config);
                assert!(nothing.sums.main_square() > 0.0);
                for factor in [1.0, 1e4, f32::NAN] {
                    let found = with(factor).run(path, &config);
                    let others = |gradient: &[f32]| {
                        let others = gradient.iter().enumerate().filter(|(place, _)| !own.contains(place));
                        bits(&others.map(|(_, element)| *element).collect::<Vec<_>>())
                    };
                    let what = format!("{owner:?} times {factor}, {method:?} on {path:?}");
                    assert_eq!(others(&found.gradient), others(&nothing.gradient), "{what}");
                    assert_eq!(found.sums.main_square().to_bits(), nothing.sums.main_square().to_bits(), "{what}");
                    // It is told, as it was, and what is no number moves nothing.
                    let slot = usize::from(owner != HOST) * 2;
                    let told = found.sums.all(Field::ParameterSquare, 4)[slot];
                    let is_number = factor.is_finite();
                    assert_eq!(told > 0.0, is_number, "{what}: {told}");
                    assert_eq!(found.gradient[own[0]].is_nan(), !is_number, "{what}");
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(cases(150))]

    #[test]
    fn isolated_parts_of_any_window_get_the_plain_gradient(window in windows(true)) {
        let isolated = window.is_isolated();
        let of = |values: &[f32]| -> Vec<u32> {
            let own = values.iter().zip(&isolated).filter(|(_, isolated)| **isolated);
            own.map(|(value, _)| if value.is_nan() { f32::NAN.to_bits() } else { value.to_bits() }).collect()
        };
        for path in &PATHS {
            let plain = of(&window.run(path, &MEAN).gradient);
            for method in METHODS {
                let outcome = window.run(path, &AggregationConfig { method, ..MEAN });
                prop_assert_eq!(&of(&outcome.gradient), &plain, "{:?} on {:?}", method, path);
            }
        }
    }

    #[test]
    fn a_number_in_a_shadow_of_any_window_changes_nobody_elses_bits(
        window in windows(false),
        row in any::<prop::sample::Index>(),
        which in any::<prop::sample::Index>(),
        wild in prop_oneof![Just(0.0_f32), Just(1e30), Just(f32::NAN), Just(f32::INFINITY)],
        clip_norm in prop_oneof![Just(None), Just(Some(0.25)), Just(Some(1e6))],
        measure_conflicts in any::<bool>(),
    ) {
        let parts = window.parts();
        let shadows: Vec<_> = parts.iter().filter(|(_, _, isolated)| *isolated).cloned().collect();
        if shadows.is_empty() {
            return Ok(());
        }
        let (range, owner, _) = which.get(&shadows).clone();
        let mut changed = window.clone();
        let row = row.index(window.rows.len());
        changed.rows[row][which.index(range.len()) + range.start] = wild;
        let others: Vec<usize> =
            parts.iter().filter(|(_, of, isolated)| !isolated || *of != owner).flat_map(|(range, ..)| range.clone()).collect();
        let slot = window.geometry().owners().iter().position(|known| *known == owner).unwrap();
        for method in METHODS {
            let config = AggregationConfig { method, measure_conflicts, clip_norm, ..MEAN };
            for path in &PATHS {
                let (calm, found) = (window.run(path, &config), changed.run(path, &config));
                let of = |values: &[f32]| others.iter().map(|at| values[*at].to_bits()).collect::<Vec<_>>();
                prop_assert_eq!(of(&calm.gradient), of(&found.gradient), "{:?} on {:?}", config, path);
                let mut sums = found.sums.clone();
                for field in OF_ALL_WINDOWS {
                    let place = sums.layout.of_slot(field, slot);
                    sums.values[place] = calm.sums.values[place];
                }
                prop_assert_eq!(&sums, &calm.sums, "{:?} on {:?}", config, path);
            }
        }
    }
}

#[test]
fn a_shadow_never_changes_a_bit_of_anybody_else() {
    for wild in [0.0, 1e30, f32::NAN, f32::INFINITY] {
        let (mut window, mut calm) = (example(), example());
        (window.rows[1][7], calm.rows[1][7]) = (wild, 0.5);
        for method in METHODS {
            let config = AggregationConfig { method, clip_norm: Some(0.25), ..MEAN };
            for path in &PATHS {
                let clip = |window: &Window| {
                    let mut bits = bits(&window.run(path, &config).gradient);
                    bits.remove(7);
                    bits
                };
                assert_eq!(clip(&window), clip(&calm), "{method:?} on {path:?} with {wild}");
            }
        }
    }
    assert!(example().run(&PATHS[0], &PCGRAD).sums.conflicts() > 0.0);
}

#[test]
fn a_shadow_that_is_not_finite_is_left_as_it_is_and_nobody_else() {
    let adam_w = OptimizerConfig::AdamW { beta1: 0.9, beta2: 0.99, eps: 1e-8, weight_decay: 0.1 };
    let updated = |window: &Window| {
        let parameters = parameters(&window.layout, &random(9, 5));
        let mut optimizer = Optimizer::new(adam_w);
        let config = AggregationConfig { clip_norm: Some(0.25), ..PCGRAD };
        let pool = GradientBufferPool::new();
        let (combination, _) = window.combine(&PATHS[0], &config, &pool, None);
        let plan = optimizer.prepare(&parameters, &window.layout, 0.1).unwrap();
        optimizer.apply_combination(&parameters, &window.layout, &combination, &plan, None).unwrap();
        flat(&parameters)
    };
    let mut wild = example();
    wild.rows[0][7] = f32::NAN;
    let (mut found, mut expected) = (updated(&wild), updated(&example()));
    assert_eq!((found[7].to_bits(), expected[7].to_bits() == found[7].to_bits()), (random(9, 5)[7].to_bits(), false));
    (found[7], expected[7]) = (0.0, 0.0);
    assert_eq!(bits(&found), bits(&expected));
}

#[test]
fn isolated_parts_are_not_in_the_inner_products_of_owners() {
    let window = example();
    let exact = Exact::of(&window, &PCGRAD).unwrap();
    assert!(window.parts().iter().all(|(_, owner, isolated)| !isolated || *owner != Owner::Host));
    for path in &PATHS {
        let sums = window.run(path, &PCGRAD).sums;
        for slot in 0..4 {
            let expected = exact.norm(slot).powi(2);
            assert!((sums.of(Field::NormSquare, slot) - expected).abs() <= 1e-12 * expected.max(1e-3));
            assert!(sums.layer(slot, 2) <= 0.0 && sums.layer(slot, 3) <= 0.0, "layers of shadows");
        }
    }
}
