//! What holds for any gradients.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::*;

fn problem_of(element: impl Strategy<Value = f64> + Clone, spare: usize) -> impl Strategy<Value = Problem> {
    (2..=12_usize, 0..=spare).prop_flat_map(move |(count, room)| {
        let dimension = if spare == 0 { count + 3 } else { 1 + room };
        vec(vec(element.clone(), dimension), count).prop_map(|vectors| {
            let vectors: Vec<&[f64]> = vectors.iter().map(Vec::as_slice).collect();
            Problem::new(&vectors)
        })
    })
}

/// Independent gradients of like lengths.
fn tame() -> impl Strategy<Value = Problem> {
    problem_of(-1.0..1.0_f64, 0)
}

/// Few dimensions, copies, zeros, tiny and huge elements, and some that are not finite.
fn wild() -> impl Strategy<Value = Problem> {
    let element = prop_oneof![
        40 => -1.0..1.0_f64,
        20 => prop_oneof![Just(0.0), Just(1.0), Just(-1.0)],
        10 => (-1.0..1.0_f64).prop_map(|x| x * 1e-25),
        10 => (-1.0..1.0_f64).prop_map(|x| x * 1e18),
        1 => prop_oneof![Just(f64::NAN), Just(f64::INFINITY)],
    ];
    problem_of(element.boxed(), 8)
}

/// Gradients that are nearly multiples of one, of either sign.
fn nearly_parallel() -> impl Strategy<Value = Problem> {
    (problem_of(-1.0..1.0_f64, 8), 0..9_i32).prop_map(|(mut problem, digits)| {
        let first = problem.vectors[0].clone();
        for (index, vector) in problem.vectors.iter_mut().enumerate() {
            let sign = if index % 3 == 1 { -1.0 } else { 1.0 };
            for (value, first) in vector.iter_mut().zip(&first) {
                *value = sign * first + *value * 10.0_f64.powi(-digits);
            }
        }
        problem
    })
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(53),
        cases: 400,
        ..Default::default()
    })]

    #[test]
    fn weights_are_finite_for_any_input(problem in prop_oneof![wild(), nearly_parallel()]) {
        for (name, weighting) in all() {
            let weights = problem.weights(&*weighting);
            prop_assert!(weights.iter().all(|weight| weight.is_finite()), "{}: {:?}", name, weights);
        }
    }

    #[test]
    fn weights_are_finite_for_numbers_that_no_gradients_have(
        inner in vec(prop_oneof![3 => -1.0..1.0_f64, 1 => -1e300..1e300_f64, 1 => Just(0.0)], 25),
    ) {
        let (scales, mut scratch) = ([1.0; 5], Vec::new());
        let orders: Vec<f64> = (0..5_u8).flat_map(|i| (0..5).filter(move |j| *j != i)).map(f64::from).collect();
        let owners = Owners { count: 5, inner: &inner, scales: &scales, is_idle: &[false; 5] };
        for (name, weighting) in all() {
            let mut weights = [1.0; 5];
            weighting.weigh(&owners, &orders, &mut scratch, &mut weights);
            prop_assert!(weights.iter().all(|weight| weight.is_finite()), "{}: {:?}", name, weights);
        }
    }

    #[test]
    fn without_a_conflict_pcgrad_and_upgrad_leave_the_plain_gradient_bit_for_bit(problem in tame()) {
        let vectors = problem.vectors.iter().map(|vector| vector.iter().map(|x| x.abs()).collect()).collect();
        let problem = Problem { vectors, ..problem };
        for weighting in [&PcGrad as &dyn Weighting, &UpGrad] {
            prop_assert_eq!(problem.weights(weighting), vec![1.0; problem.count()]);
        }
    }

    #[test]
    fn a_common_factor_leaves_the_weights(problem in tame(), digits in -20..=20_i32) {
        let factor = 10.0_f64.powi(digits);
        let vectors = problem.vectors.iter().map(|vector| vector.iter().map(|x| x * factor).collect()).collect();
        let scaled = Problem { vectors, ..problem.clone() };
        for (name, weighting) in all() {
            assert_close(&scaled.weights(&*weighting), &problem.weights(&*weighting), 1e-9, name);
        }
    }

    #[test]
    fn weights_follow_their_owners_when_these_change_places(problem in tame(), turn in 1..12_usize) {
        let mut vectors = problem.vectors.clone();
        vectors.rotate_left(turn % problem.count());
        let rotated = Problem { vectors, ..problem.clone() };
        for (name, weighting) in all().filter(|(name, _)| *name != "pcgrad") {
            let mut expected = problem.weights(&*weighting);
            expected.rotate_left(turn % problem.count());
            assert_close(&rotated.weights(&*weighting), &expected, 1e-9, name);
        }
    }

    #[test]
    fn upgrad_conflicts_with_no_owner(problem in prop_oneof![2 => tame(), 1 => nearly_parallel()]) {
        let combined = problem.combined(&problem.weights(&UpGrad));
        let largest = problem.largest_norm();
        for vector in &problem.vectors {
            let inner = dot(vector, &combined);
            prop_assert!(inner >= -1e-6 * norm(vector) * largest, "{inner}");
        }
    }

    #[test]
    fn copies_of_one_gradient_combine_to_their_sum(vector in vec(-1.0..1.0_f64, 1..9), count in 2..=12_usize) {
        prop_assume!(norm(&vector) > 1e-3);
        let problem = Problem::new(&vec![vector.as_slice(); count]);
        for (name, weighting) in all() {
            let sum: f64 = problem.weights(&*weighting).iter().sum();
            // The direction of `CAGrad` is longer by the radius when nothing stands against the average.
            let longer = if name == "cagrad" { 1.4 } else { 1.0 };
            assert_close(&[sum], &[longer * count as f64], 1e-9, name);
        }
    }
}
