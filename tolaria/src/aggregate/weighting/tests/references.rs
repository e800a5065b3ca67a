//! Each method against another way to its result, in `f64`.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::*;
use crate::aggregate::reference::pcgrad;

/// Independent gradients around a common direction, in the way of which they can stand.
fn problem() -> impl Strategy<Value = Problem> {
    (2..=6_usize, -0.6..0.6_f64).prop_flat_map(|(count, common)| {
        let vectors = vec(vec((-1.0..1.0_f64).prop_map(move |x| x + common), count + 3), count);
        let orders: Vec<_> =
            (0..count).map(|i| Just((0..count).filter(|j| *j != i).collect::<Vec<_>>()).prop_shuffle()).collect();
        (vectors, orders).prop_map(|(vectors, orders)| Problem { vectors, orders })
    })
}

/// Gaussian elimination with the largest pivot of each column.
fn solved(mut matrix: Vec<Vec<f64>>, mut right: Vec<f64>) -> Vec<f64> {
    let n = right.len();
    for column in 0..n {
        let pivot = (column..n).max_by(|a, b| matrix[*a][column].abs().total_cmp(&matrix[*b][column].abs())).unwrap();
        matrix.swap(column, pivot);
        right.swap(column, pivot);
        for row in (0..n).filter(|row| *row != column) {
            let factor = matrix[row][column] / matrix[column][column];
            let above = matrix[column].clone();
            matrix[row].iter_mut().zip(above).for_each(|(value, above)| *value -= factor * above);
            right[row] -= factor * right[column];
        }
    }
    (0..n).map(|i| right[i] / matrix[i][i]).collect()
}

/// All non-empty sets of owners.
fn subsets(count: usize) -> impl Iterator<Item = Vec<usize>> {
    (1..1_usize << count).map(move |bits| (0..count).filter(|i| bits >> i & 1 == 1).collect())
}

/// The shortest `G_i + Σ_j u_j G_j` with u ≥ 0, among the solutions for each set of free j.
fn projection(problem: &Problem, i: usize) -> Vec<f64> {
    let mut shortest = problem.vectors[i].clone();
    let bound = |x: &[f64]| problem.vectors.iter().all(|other| dot(x, other) >= -1e-9);
    let mut found = bound(&shortest);
    for free in subsets(problem.count()) {
        let of = |a: usize, b: usize| dot(&problem.vectors[a], &problem.vectors[b]);
        let matrix = free.iter().map(|a| free.iter().map(|b| of(*a, *b)).collect()).collect();
        let u = solved(matrix, free.iter().map(|a| -of(*a, i)).collect());
        let mut weights = vec![0.0; problem.count()];
        weights[i] = 1.0;
        free.iter().zip(&u).for_each(|(j, u)| weights[*j] += u);
        let vector = problem.combined(&weights);
        if u.iter().all(|u| *u >= 0.0) && bound(&vector) {
            assert!(!found || norm(&vector) <= norm(&shortest) + 1e-9, "the projection is unique");
            shortest = vector;
            found = true;
        }
    }
    assert!(found, "a projection exists");
    shortest
}

/// The inverse of a positive definite matrix's root, by the iteration of Denman and Beavers, and its largest square.
fn inverse_root(inner: &[f64], n: usize) -> Vec<Vec<f64>> {
    let identity = |i: usize| (0..n).map(|j| f64::from(u8::from(i == j))).collect::<Vec<_>>();
    let inverse =
        |matrix: &[Vec<f64>]| -> Vec<Vec<f64>> { (0..n).map(|i| solved(matrix.to_vec(), identity(i))).collect() };
    let mean = |a: &[Vec<f64>], b: &[Vec<f64>]| -> Vec<Vec<f64>> {
        a.iter().zip(b).map(|(a, b)| a.iter().zip(b).map(|(a, b)| 0.5 * (a + b)).collect()).collect()
    };
    let mut root: Vec<Vec<f64>> = inner.chunks(n).map(<[f64]>::to_vec).collect();
    let mut inverted: Vec<Vec<f64>> = (0..n).map(identity).collect();
    for _ in 0..60 {
        (root, inverted) = (mean(&root, &inverse(&inverted)), mean(&inverted, &inverse(&root)));
    }
    inverted
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(47),
        cases: 200,
        ..Default::default()
    })]

    #[test]
    fn pcgrad_does_what_the_paper_does_over_vectors(problem in problem()) {
        let expected = pcgrad(&problem.vectors, &problem.orders);
        assert_close(&problem.weights(&PcGrad), &expected.weights, 1e-9, "weights");
    }

    #[test]
    fn mgda_meets_the_conditions_of_the_shortest_vector(problem in problem()) {
        let n = problem.count() as f64;
        let weights: Vec<f64> = problem.weights(&Mgda).iter().map(|weight| weight / n).collect();
        prop_assert!(weights.iter().all(|weight| *weight >= 0.0));
        prop_assert!((weights.iter().sum::<f64>() - 1.0).abs() < 1e-12);
        let shortest = problem.combined(&weights);
        let square = dot(&shortest, &shortest);
        for (vector, weight) in problem.vectors.iter().zip(weights) {
            let excess = dot(vector, &shortest) - square;
            prop_assert!(excess >= -1e-10, "{excess}");
            prop_assert!((weight * excess).abs() <= 1e-10, "weight {weight} with {excess}");
        }
    }

    #[test]
    fn upgrad_is_the_sum_of_the_projections_onto_the_dual_cone(problem in problem()) {
        let projections: Vec<Vec<f64>> = (0..problem.count()).map(|i| projection(&problem, i)).collect();
        let expected: Vec<f64> =
            (0..projections[0].len()).map(|d| projections.iter().map(|vector| vector[d]).sum()).collect();
        let combined = problem.combined(&problem.weights(&UpGrad));
        assert_close(&combined, &expected, 1e-8, "combined gradient");
    }

    #[test]
    fn cagrad_has_no_duality_gap(problem in problem(), radius in 0.01..0.95_f64) {
        let n = problem.count();
        let weights = problem.weights(&CaGrad { radius });
        let average: Vec<f64> = problem.combined(&vec![1.0; n]).iter().map(|x| x / n as f64).collect();
        let direction: Vec<f64> = problem.combined(&weights).iter().map(|x| x / n as f64).collect();
        let moved: Vec<f64> = direction.iter().zip(&average).map(|(a, b)| a - b).collect();
        let scale = problem.largest_norm() * norm(&average);
        prop_assert!(norm(&moved) <= radius * norm(&average) * (1.0 + 1e-9));
        let least = problem.vectors.iter().map(|vector| dot(vector, &direction)).fold(f64::INFINITY, f64::min);
        // A point of the hull bounds what any direction within the radius reaches.
        let sum: f64 = weights.iter().map(|weight| weight - 1.0).sum();
        let point = problem.combined(&weights.iter().map(|weight| (weight - 1.0) / sum).collect::<Vec<_>>());
        prop_assert!(weights.iter().all(|weight| *weight >= 1.0));
        let bound = dot(&point, &average) + radius * norm(&average) * norm(&point);
        prop_assert!((bound - least).abs() <= 1e-10 * scale, "{least} of at most {bound}");
    }

    #[test]
    fn aligned_mtl_is_the_inverse_root_scaled_to_the_least_eigenvalue(problem in problem()) {
        let n = problem.count();
        let inverted = inverse_root(&problem.inner(), n);
        // Power iteration towards the least eigenvalue, the one with the largest inverse root.
        let mut vector: Vec<f64> = (0..n).map(|i| 1.0 + 0.1 * i as f64).collect();
        let mut length = 1.0;
        for _ in 0..20_000 {
            vector = inverted.iter().map(|row| dot(row, &vector)).collect();
            length = norm(&vector);
            vector.iter_mut().for_each(|x| *x /= length);
        }
        let expected: Vec<f64> = inverted.iter().map(|row| row.iter().sum::<f64>() / length).collect();
        assert_close(&problem.weights(&AlignedMtl), &expected, 1e-7, "weights");
    }
}

#[test]
fn cagrad_conflicts_with_none_where_the_hull_has_the_origin_in_its_border() {
    // The average is 0 along the first axis, so that it is a direction that conflicts with none already.
    let problem = Problem::new(&[&[1.0, 0.0], &[-1.0, 0.0], &[0.0, 1.0]]);
    let combined = problem.combined(&problem.weights(&CaGrad { radius: 0.4 }));
    assert_close(&combined, &[0.0, 1.0], 1e-9, "combined gradient");
    // Of opposite gradients no direction improves both; the nearest to improving none is as far as the radius goes.
    let problem = Problem::new(&[&[1.0, 0.0], &[-0.5, 0.0]]);
    assert_close(&problem.weights(&CaGrad { radius: 0.4 }), &[1.0, 1.4], 1e-9, "opposite gradients");
    // With room enough, the direction is the projection onto those that conflict with none.
    let problem = Problem::new(&[&[1.0, 0.1, 0.0], &[-1.0, -0.1, 0.0], &[0.3, 0.0, 1.0]]);
    let combined = problem.combined(&problem.weights(&CaGrad { radius: 0.9 }));
    let least = problem.vectors.iter().map(|vector| dot(vector, &combined)).fold(f64::INFINITY, f64::min);
    assert!(least >= -1e-9, "{combined:?} has the inner product {least} with one of them");
}
